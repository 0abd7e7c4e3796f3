"""What a run of the simulated cluster draws from its seed: workers, links, policies, limits, how
long steps take, what the planner wants, and the faults.

Everything is drawn from one generator in one order, so that a seed stays the same run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cluster.tiers.config import TierLimits
from tandem.cluster.worker.machine import WorkerConfig
from tandem.cost.worker import LinkCost, StepShape, WorkerCost
from tandem.facts.fleet import Role, Tier
from tandem.facts.health import Health
from tandem.policy.admission.policies import ADMISSIONS
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.chance import draw
from tandem.policy.dispatch.contract import Transfer
from tandem.policy.dispatch.policies import DISPATCHES
from tandem.policy.eviction.policies import EVICTIONS, make_eviction
from tandem.policy.planning.contract import FleetView, Flip, Move, Plan
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.routing.policies import ROUTINGS, make_routing
from tandem.policy.speculation import Speculation
from tandem.twin.block_contents import BlockContents
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.faults.kinds import (
    Cause,
    ClientsLeave,
    Crash,
    Drained,
    Fault,
    GatewayCrash,
    Hang,
    LossyLink,
    Partition,
    SlowLink,
    TierCorrupted,
    TierDown,
    TierFull,
    TierLost,
)
from tandem.twin.network.paths import NodeLinks
from tandem.twin.scenario import Policies, Pool, Scenario, WorkerKind

CONTEXT_TOKENS = 40
CLASSES = Classes((ServiceClass("gold", reserved=0.7), ServiceClass("batch", priority=1)))
ROLES = ((Role.PREFILL, Role.DECODE), (Role.BOTH,), (Role.PREFILL, Role.DECODE, Role.BOTH))
SPARE = "spare-0"
REPORT_S, SILENCE_S, LEASE_S = 0.1, 1.0, 3.0
LINK = LinkCost(1e6)
SLOW_TIERS = (Tier.HOST, Tier.DISK, Tier.REMOTE)
Contents = Callable[[WorkerConfig], BlockContents]


@dataclass(frozen=True, slots=True)
class World:
    """What a seed draws from: whether there are slower tiers and a pool, whether somebody plans,
    and about how many faults and at most how many requests there are in a run. With `checks_kv` a
    ledger knows what lies in every block, and what every answer is. Where it `speculates` about
    two of three kinds of workers check drafts."""

    tiers: bool = False
    plans: bool = False
    faults: int = 6
    gateways: int = 2
    requests: int = 24
    checks_kv: bool = True
    # Not shown: the runs of worlds without are as they were.
    speculates: bool = field(default=False, repr=False)


@dataclass(frozen=True, slots=True)
class RandomSteps:
    """Steps take any time up to `most_s`, drawn by what is computed."""

    seed: int
    most_s: float
    stages: int = 1

    def seconds(self, shape: StepShape) -> float:
        key = (len(shape.chunks), shape.decode_sequences, shape.decode_context_tokens)
        return self.most_s * draw(self.seed, *key, sum(start for start, _ in shape.chunks))

    def decode_seconds(self, sequences: int, context_tokens: int) -> float:
        return self.seconds(StepShape((), sequences, context_tokens, sequences))


@dataclass
class RandomPlanner:
    """A planner that wants anything, until it is `quiet`."""

    chance: Random
    interval_s: float = 0.02
    quiet: bool = False

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        del now_ns
        chance = self.chance
        workers = [view.worker for view in fleet.workers]
        if self.quiet or not workers or not chance.randrange(3):
            return Plan()
        roles = [chance.choice(["prefill", "decode"]) for _ in workers]
        flips = [Flip(*each) for each in zip(workers, roles, strict=True)]
        move = Move(chance.choice(workers), chance.choice(workers), chance.randint(10, 120))
        return Plan(
            chance.choice([None, 0, 1, 2, 3]),
            chance.choice([None, 0, 1, 2, 3]),
            flips=tuple(flip for flip in flips if not chance.randrange(5)),
            moves=(move,) * chance.randrange(2),
        )


def worker_names(cluster: SimulatedCluster) -> list[str]:
    """All that may be up before the run settles."""
    return [name for name in cluster.pools if name != SPARE]


class ScenarioDraws:
    """Draws from `chance`, which the run goes on with."""

    def __init__(self, chance: Random, world: World) -> None:
        self.chance, self.world = chance, world
        self.planner = RandomPlanner(Random(chance.random())) if world.plans else None
        self.roles = chance.choice(ROLES)

    def scenario(self, seed: int, contents: Contents | None) -> Scenario:
        """What there is; `contents` models the KV of each worker."""
        chance, world = self.chance, self.world
        tiers = world.tiers
        sizes = chance.choice(
            [(1,), (2,), (4,)] if tiers else [(1,), (2,), (4,), (8,), (2, 4), (8, 4, 1)]
        )
        count = chance.randint(1 + (len(self.roles) > 1), 3) if tiers else chance.randint(2, 5)
        room = [chance.choice([0, 3, 20, 200]), chance.choice([0, 20, 200])] if tiers else [0, 0]
        names = [f"w{index}" for index in range(count)]
        kinds = {name: self._kind(seed, chance.choice(sizes), room) for name in [*names, "spare"]}
        pools = tuple(
            Pool(name, self._role(index), kind, name != "spare", 0, 1)
            for index, (name, kind) in enumerate(kinds.items())
        )
        if world.plans:
            pools = self._planned(pools)
        eviction = chance.choice(sorted(EVICTIONS))
        return Scenario(
            pools=pools,
            policies=self._policies(lambda: make_eviction(eviction, room[0] or 1)),
            block_size=kinds[names[0]].block_size,
            context_tokens=CONTEXT_TOKENS,
            remote_blocks=1000 * tiers,
            pool_nodes=chance.randint(1, 2),
            pool_bytes_per_s=chance.choice([1e3, 1e5]),
            quotas=chance.choice([{}, {"": 0.5, "tenant": 0.25}]) if tiers else {},
            longest_pause_s=10.0 * tiers,
            message_latency_s=chance.choice([0.0, 1e-4, 1e-3]),
            message_jitter_s=chance.choice([0.0, 0.003, 0.03]),
            network_latency_s=chance.choice([0.0, 0.005]),
            health=Health(
                transfer_timeout_s=chance.choice([0.05, 1.0, 60.0]),
                report_interval_s=REPORT_S,
                heartbeat_timeout_s=SILENCE_S,
                lease_s=LEASE_S,
            ),
            seed=seed,
            encodes=True,
            explains=chance.choice([False, True]),
            fast_forward=False,
            gateways=chance.randint(1, world.gateways),
            live_reports=True,
            contents=contents,
            tier_limits=TierLimits(
                stagings=chance.randint(1, 3),
                copies=chance.randint(1, 2),
                copy_blocks=chance.randint(1, 4),
                queued_blocks=chance.choice([2, 8, 100]),
                trial_fetches=1,
                trial_tokens=chance.choice([4, 1000]),
            ),
        )

    def _role(self, index: int) -> Role:
        return self.roles[index % len(self.roles)]

    def _planned(self, pools: tuple[Pool, ...]) -> tuple[Pool, ...]:
        """Even ones prefill, odd ones decode, and all may be started and stopped."""
        *some, spare = pools
        prefill, decode = (
            replace(some[0], name=name, role=role, count=1, min_count=1, max_count=2)
            for name, role in (("even", Role.PREFILL), ("odd", Role.DECODE))
        )
        return prefill, replace(decode, max_count=3), replace(spare, role=Role.BOTH)

    def _kind(self, seed: int, block_size: int, room: list[int]) -> WorkerKind:
        chance = self.chance
        least_blocks = -(-CONTEXT_TOKENS // block_size)
        most_blocks = least_blocks + 1 if self.world.tiers else 3 * least_blocks
        max_sequences = chance.randint(1, 6)
        links = (1e3, 1e4, 1e6)
        tiers = dict.fromkeys(SLOW_TIERS, LINK)
        steps = RandomSteps(seed, chance.choice([0.002, 0.02]), chance.choice([1, 1, 1, 2, 3]))
        return WorkerKind(
            cost=WorkerCost(steps, 1.0, 16, tiers, LINK),
            device="tiny",
            devices=1,
            block_count=chance.randint(least_blocks, most_blocks),
            max_sequences=max_sequences,
            batching=TokenBudgetBatching(
                chance.randint(max_sequences, 48), chance.choice([0, 3, 7])
            ),
            steps_in_flight=chance.randrange(2),
            links=NodeLinks(
                fabric_bytes_per_s=chance.choice(links),
                host_bytes_per_s=chance.choice(links),
                disk_read_bytes_per_s=chance.choice(links),
                disk_write_bytes_per_s=chance.choice(links),
            ),
            host_blocks=room[0],
            disk_blocks=room[1],
            startup_s=chance.choice([0.0, 0.05]),
            block_size=block_size,
            speculation=self._speculation(),
        )

    def _speculation(self) -> Speculation | None:
        if not self.world.speculates or not self.chance.randrange(3):
            return None
        return Speculation(self.chance.randint(1, 5), self.chance.choice([False, True]))

    def _policies(self, eviction: Callable) -> Policies:
        chance, transfer = self.chance, self.chance.choice(list(Transfer))
        dispatch = chance.choice(["local", "remote", "remote", "queue", "seconds", "conditional"])
        bounds = {"local_tokens": 8} if dispatch == "conditional" else {}
        return Policies(
            routing=make_routing(chance.choice(sorted(ROUTINGS)), chance.randrange(100)),
            admission=ADMISSIONS["none"](),
            dispatching=DISPATCHES[dispatch](transfer=transfer, **bounds),
            eviction=eviction,
            planning=self.planner,
            classes=CLASSES,
            queue=RequestQueueConfig(
                max_requests=chance.choice([0, 0, 3]), prefill_depth=chance.choice([0, 0, 1, 2])
            ),
        )

    def fault(self, cluster: SimulatedCluster, spread_ns: int) -> tuple[str, Fault]:
        """What goes wrong within that time, and its kind."""
        chance = self.chance
        kind, cause = self._cause(cluster)
        # Some last longer than the silence after which somebody counts as dead.
        for_s = chance.choice([0.01, 0.1, 0.5, 1.5]) * (0.5 + chance.random())
        return kind, Fault(chance.randrange(spread_ns) / 1e9, cause, for_s)

    def _cause(self, cluster: SimulatedCluster) -> tuple[str, Cause]:
        chance = self.chance
        workers, gateways = worker_names(cluster), cluster.scenario.gateway_names
        worker = chance.choice(workers)
        gateway = chance.choice(gateways)
        tier, of_worker = chance.choice(SLOW_TIERS), chance.choice(["", worker])
        of_worker = "" if tier is Tier.REMOTE else of_worker
        pool = chance.choice(cluster.pool_names or ("",))
        others = [name for name in [*workers, *gateways] if name != worker]
        causes: list[tuple[str, Cause]] = [
            ("workers killed", Crash(worker)),
            ("workers killed silently", Crash(worker, silently=True)),
            ("workers hang", Hang(worker)),
            ("workers hang, replaced", Hang(worker, replaced=True)),
            ("links slow", SlowLink(worker, 0.01 + 0.4 * chance.random())),
            ("transfers lost", LossyLink(worker, chance.choice([0.2, 1.0]))),
            ("links cut", Partition((worker,), tuple(n for n in others if n in workers))),
            ("channels cut", Partition((worker,), (gateway,))),
            ("isolated", Partition((worker,), tuple(others))),
            ("drains", Drained(worker)),
            ("flips", Drained(worker, chance.choice(list(Role)))),
            ("gateways killed", GatewayCrash(gateway)),
            ("gateways hang", Hang(gateway)),
            ("crowds leave", ClientsLeave(chance.choice([0.2, 1.0]))),
        ]
        if self.world.tiers:
            causes += [
                ("tiers down", TierDown(tier, of_worker)),
                ("tiers full", TierFull(tier, of_worker)),
                ("tiers lost", TierLost(tier, chance.choice([0.3, 1.0]), of_worker)),
                ("tiers corrupt", TierCorrupted(tier, of_worker)),
                ("pool processes killed", Crash(pool)),
                ("pool processes hang", Hang(pool)),
                ("pool channels cut", Partition((pool,), (gateway,))),
            ]
            # What only these clusters suffer from comes more often.
            causes += causes[-7:]
        return chance.choice(causes)
