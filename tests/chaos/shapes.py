"""The clusters that storms pass over: their files, and who in them may be hit."""

from dataclasses import dataclass

from tests.chaos.live_faults import Pace, Victims

HEARTBEAT_S = 2.0
TEXT = """
model: tandem-mini
block_size: 16
gateways: {gateways}
listen: {listen}
serve: {{port: 0, max-num-seqs: 24, kv-cache-memory: 96MiB, threads: 1}}
pools:
{pools}
transport: {{connectors: [{connector}]}}
policies: {{dispatch: {dispatch}, transfer: {transfer}{policies}}}
health: {{heartbeat_timeout: 2s, lease: 4s, transfer_timeout: 3s}}
{tiers}
{more}
"""


@dataclass(frozen=True)
class Shape:
    """`workers` are counts by role; `pools` counts processes of a shared pool; `tiers` are lines of
    the cluster file, where {folder} is the place for files and {redis} a port. `policies` are
    others than dispatch, and `more` is what they need. With `network` every worker has a host of
    its own."""

    name: str
    workers: tuple[tuple[str, int], ...]
    gateways: int = 1
    connector: str = "shm"
    dispatch: str = "remote"
    transfer: str = "push"
    network: bool = False
    tiers: str = ""
    pools: int = 0
    policies: str = ""
    more: str = ""

    def text(self, listen: str = "127.0.0.1", folder: str = "", redis: int = 0) -> str:
        pools = "\n".join(
            f"  - {{name: {role}, role: {role}, device: cpu, count: {count}}}"
            for role, count in self.workers
        )
        return TEXT.format(
            gateways=self.gateways,
            listen=listen,
            pools=pools,
            connector=self.connector,
            dispatch=self.dispatch,
            transfer=self.transfer,
            tiers=self.tiers.format(folder=folder, redis=redis),
            policies=self.policies,
            more=self.more.format(folder=folder),
        )

    def names(self) -> frozenset[str]:
        return frozenset(f"{role}-{i}" for role, count in self.workers for i in range(count))

    def victims(self) -> Victims:
        groups = {role: tuple(f"{role}-{i}" for i in range(n)) for role, n in self.workers}
        groups["gateway"] = tuple(f"gateway-{i}" for i in range(self.gateways))
        groups["pool"] = tuple(f"pool-{i}" for i in range(self.pools))
        return Victims(
            {group: names for group, names in groups.items() if names},
            network=self.network,
            files="{folder}" in self.tiers,
            redis="{redis}" in self.tiers,
        )


HOST_AND_DISK = """tiers:
  host: {{capacity: 32 MiB}}
  disk: {{capacity: 64 MiB, path: {folder}}}
  pin_sessions: 5s
"""
SHARED = """tiers:
  host: {{capacity: 32 MiB}}
  disk: {{capacity: 64 MiB, path: {folder}}}
  remote: {{capacity: 64 MiB, nodes: 2}}
"""
REDIS = """tiers:
  remote: {{capacity: 16 MiB, redis: "redis://127.0.0.1:{redis}", redis_capacity: 64 MiB}}
"""
# Promises that are kept also while workers are gone, so that all answers can be compared.
CONTROL = """classes:
  - {{name: urgent, priority: 0, reserved: 20%, slo: {{ttft: 60s, tpot: 5s}}}}
  - {{name: standard, priority: 5, default: true, slo: {{ttft: 80s, tpot: 10s}},
     degrade: {{no_n: true, max_tokens: 4096}}}}
tenants:
  - {{name: quiet, weight: 2, limits: {{requests_per_minute: 6000, tokens_per_minute: 60000000}}}}
limits: {{concurrent_requests: 400}}
queue: {{max_requests: 64}}
planning: {{window: 2s}}
journal: {{directory: "{folder}/journal"}}
"""
EVERY_POLICY = (
    ", routing: cost, admission: {name: prediction, breaker: {window_s: 6s}}, planning: {name: "
    "tandem, interval_s: 2s, history_s: 10s, patience: {dwell_s: 4s, cooldown_s: 8s}, "
    "simulate: true}"
)
PAUSES = """tiers:
  host: {{capacity: 32 MiB}}
  disk: {{capacity: 64 MiB, path: {folder}}}
  pin_sessions: 5s
  longest_pause: 30s
"""
BOTH = (("both", 3),)
SPLIT = (("prefill", 2), ("decode", 2))
SMALL = Shape("one prefills, two decode", (("prefill", 1), ("decode", 2)), 2)
PLAIN = (
    Shape("prefill and decode apart, pushed", SPLIT),
    Shape("two gateways, pulled over tcp", SPLIT, 2, "tcp", transfer="pull"),
    Shape("both phases on each of three", BOTH, 2, dispatch="queue"),
)
ON_A_NETWORK = (
    Shape("a host each, pushed over tcp", SPLIT, 1, "tcp", network=True),
    Shape("a host each, both phases on each", BOTH, 2, "tcp", network=True),
)
CONTROLLED = (
    Shape(
        "every policy on", (("prefill", 2), ("decode", 3)), 2, dispatch="seconds",
        tiers=PAUSES, policies=EVERY_POLICY, more=CONTROL,
    ),
)  # fmt: skip
WITH_TIERS = (
    Shape("host and disk", SPLIT, tiers=HOST_AND_DISK),
    Shape("shared pool", SPLIT, 2, tiers=SHARED, pools=2),
    Shape("a pool over Redis", BOTH, tiers=REDIS, pools=1),
)


def pace(duration_s: float, every_s: float) -> Pace:
    """Mishaps in the middle of so long a load."""
    return Pace(
        first_s=min(1.0, duration_s / 8),
        until_s=0.8 * duration_s,
        every_s=every_s,
        short_s=0.3 * HEARTBEAT_S,
        long_s=2.0 * HEARTBEAT_S,
    )
