"""Sections of a cluster file about its workers: pools, network, tiers, transport, health, and the
machines of a Ray cluster. How a key is declared: `config.cluster.keys`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

from tandem.config.cluster.keys import SHARED_POOL, Choice, Known, OptionsOf, Secret, doc
from tandem.config.cluster.tree import RefusedAt
from tandem.config.options import OF_GATEWAYS, ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role

Positive = Annotated[int, Meta(ge=1)]
# Beyond this somebody mistyped, and would wait for ever.
Workers = Annotated[int, Meta(ge=1, le=100_000)]
BlockSize = Annotated[int, Meta(ge=1, le=1024)]
# "auto" is bfloat16 to the simulator, and live what `tandem serve` would choose.
PRECISIONS = ("auto", "float32", "bfloat16", "float16", "fp8", "int8", "fp4", "int4")
Precision = Annotated[str, Known("precision", PRECISIONS)]
Connector = Annotated[str, Known("connector", ("shm", "tcp", "nixl", "cuda-ipc"))]
WIRE_DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")
WireDtype = Annotated[str, Known("wire_dtype", WIRE_DTYPES)]
AllReduce = Annotated[str, Known("all_reduce", ("one-shot", "two-shot", "library", "auto"))]
TimeModel = Annotated[Choice, Known("time model", ("roofline", "tables", "profile"))]
Launcher = Annotated[str, Known("launcher", ("local", "ray"))]
Placement = Annotated[str, Known("placement", ("spread", "pack", "strict_spread"))]

# Options of `tandem serve` that have one place of their own in a cluster file.
_ELSEWHERE = {
    "device": "write the pool's device",
    "block_size": "write it at the top of the file or at the pool",
    "max_model_len": "write it at the top of the file",
}
_FOR_ALL = ("revision", "served_model_name", "load_format", "seed")
_OF_GATEWAYS = tuple(name.replace("-", "_") for name in OF_GATEWAYS)
_AT_THE_TOP = "write it under serve at the top of the file"
_NOT_OF_A_POOL = dict.fromkeys((*_FOR_ALL, *_OF_GATEWAYS), _AT_THE_TOP)
Serve = Annotated[Mapping[str, object], OptionsOf(ServeOptions, _ELSEWHERE)]
PoolServe = Annotated[Mapping[str, object], OptionsOf(ServeOptions, _ELSEWHERE | _NOT_OF_A_POOL)]


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """Workers alike. The planner keeps the pool within `min_count` and `max_count`."""

    name: Annotated[str, doc("Its workers are NAME-0, NAME-1, ...")]
    device: Annotated[str, doc("`cpu`, a GPU's bundled datasheet, or the path of one.")]
    role: Annotated[Role, doc("What its workers take.")] = Role.BOTH
    count: Annotated[Workers, doc("Workers at the start.")] = 1
    min_count: Annotated[Workers | None, doc("A planner leaves at least so many; left out: 1.")] = (
        None
    )
    max_count: Annotated[
        Workers | None, doc("A planner starts at most so many; left out: `count`.")
    ] = None
    tensor_parallel: Annotated[Positive, doc("Ranks that share every layer of a worker.")] = 1
    pipeline_parallel: Annotated[Positive, doc("Stages of layers of a worker.")] = 1
    dtype: Annotated[
        Precision,
        doc(
            "Storage of the weights. Live: `auto` as `tandem serve` chooses, `int8` quantises on a "
            "CPU. Pools of unlike `dtype` never take each other's KV."
        ),
    ] = "auto"
    kv_dtype: Annotated[
        Precision, doc("Storage of the KV; between unlike pools it is converted as it moves.")
    ] = "auto"
    max_num_seqs: Annotated[Positive, doc("Sequences of a worker that run at once.")] = 256
    max_num_batched_tokens: Annotated[Positive, doc("Tokens of a step at most.")] = 8192
    memory_utilization: Annotated[
        float, Meta(gt=0, le=1), doc("Share of a device's memory to use in all.")
    ] = 0.9
    startup_s: Annotated[float, doc("Until a new worker is ready.")] = 60.0
    price_usd_per_hour: Annotated[
        float | None,
        doc("Dollars an hour for one device; left out: the datasheet's.", only="simulator"),
    ] = None
    time_model: Annotated[
        TimeModel,
        doc("How long steps take: `roofline`, or `tables` or `profile` with their `path`."),
    ] = field(default=Choice("roofline"))
    serve: Annotated[
        PoolServe,
        doc(
            "Options of `tandem serve` for these workers; they count before the pool's figures.",
            only="live",
        ),
    ] = field(default_factory=dict)
    block_size: Annotated[
        BlockSize | None,
        doc("Tokens of a KV block; of unlike pools, one size must divide the other.", only="live"),
    ] = None
    all_reduce: Annotated[
        AllReduce,
        doc("How tensor-parallel ranks add up: the first two in the order of ranks.", only="live"),
    ] = "one-shot"
    sequence_parallel: Annotated[
        bool, doc("Share out tokens between tensor-parallel layers.", only="live")
    ] = False
    resources: Annotated[
        Mapping[str, float],
        doc(
            "What Ray sets aside for a worker: `num_cpus`, `num_gpus`, or of its own.", only="live"
        ),
    ] = field(default_factory=dict)

    @property
    def devices(self) -> int:
        """Devices of one worker."""
        return self.tensor_parallel * self.pipeline_parallel

    def __post_init__(self) -> None:
        low, high = self.min_count or 1, self.max_count or self.count
        if not low <= self.count <= high:
            raise RefusedAt(
                "count",
                f"pool {self.name}: count {self.count} must lie within min_count {low} and "
                f"max_count {high}",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise RefusedAt(
                "max_num_batched_tokens",
                f"pool {self.name}: max_num_batched_tokens ({self.max_num_batched_tokens}) must be "
                f"at least max_num_seqs ({self.max_num_seqs})",
            )


@dataclass(frozen=True, slots=True)
class NetworkConfig:
    """Between workers, as the simulator and the routing policies reckon with it."""

    fabric_bytes_per_s: Annotated[
        float | None,
        doc("What one worker sends and, at the same time, receives; left out: the datasheet's."),
    ] = None
    latency_s: Annotated[float | None, doc("Of a transfer; left out: the datasheet's.")] = None


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Room for KV beyond the devices: of each worker on host and disk, for all when remote."""

    capacity_bytes: Annotated[float, doc("Of each worker; when remote, of all nodes together.")]
    bandwidth_bytes_per_s: Annotated[
        float | None, doc("Of one worker's way there; left out: the datasheet's.")
    ] = None
    latency_s: Annotated[float | None, doc("Of one access; left out: the datasheet's.")] = None


@dataclass(frozen=True, slots=True)
class DiskTierConfig(TierConfig):
    """A file for each worker, found again after a restart."""

    path: Annotated[
        str | None,
        doc("The folder of the files; left out: one of the cluster's own.", only="live"),
    ] = None


@dataclass(frozen=True, slots=True)
class RemoteTierConfig(TierConfig):
    """The shared pool. What does not fit into the memory of its processes goes to their disks, or
    to a Redis or Valkey server."""

    nodes: Annotated[Positive, doc("Processes that share the capacity.", only="live")] = 1
    replicas: Annotated[
        Positive, doc("Nodes at most that hold a block many ask for.", only="live")
    ] = 2
    disk: Annotated[
        DiskTierConfig | None, doc("Where blocks go that memory does not hold.", only="live")
    ] = None
    redis: Annotated[
        str | None,
        Secret(SHARED_POOL),
        doc("The URL of a server for them, instead of a disk.", only="live"),
    ] = None
    redis_password_file: Annotated[
        str | None, doc("The file that holds its password, read at each connection.", only="live")
    ] = None
    redis_password_env: Annotated[
        str | None, doc("The variable of the environment that holds it.", only="live")
    ] = None
    redis_capacity_bytes: Annotated[float, doc("What the server may hold.", only="live")] = 0.0


@dataclass(frozen=True, slots=True)
class TierConfigs:
    """A tier that is not named does not exist."""

    host: Annotated[TierConfig | None, doc("Memory of each worker's machine.")] = None
    disk: Annotated[DiskTierConfig | None, doc("Disk of each worker's machine.")] = None
    remote: Annotated[RemoteTierConfig | None, doc("The shared pool.")] = None
    pin_sessions_s: Annotated[
        float, doc("So long what a session's request left is kept after its answer.")
    ] = 0.0
    longest_pin_s: Annotated[
        float,
        doc(
            "So long clients may pin KV, where neither their tenant nor their class says it.",
            only="live",
        ),
    ] = 0.0
    pin_share: Annotated[
        float,
        Meta(ge=0, le=0.9),
        doc("Share of a tier that all pins together may take.", only="live"),
    ] = 0.5


# What a worker's report interval of 0 means where reports are messages.
LIVE_REPORT_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How long silence is tolerated."""

    report_interval_s: Annotated[
        float,
        doc("How often a worker sends its load; 0: always known to the simulator, 100 ms live."),
    ] = 0.0
    heartbeat_timeout_s: Annotated[float, doc("A silent worker counts as dead after it.")] = 10.0
    transfer_timeout_s: Annotated[float, doc("A transfer counts as lost after it.")] = 60.0
    lease_s: Annotated[
        float, doc("A worker gives up requests that no gateway asked for in so long.", only="live")
    ] = 30.0

    @property
    def live_report_interval_s(self) -> float:
        return self.report_interval_s or LIVE_REPORT_INTERVAL_S

    def __post_init__(self) -> None:
        for key, seconds in (
            ("heartbeat_timeout", self.heartbeat_timeout_s),
            ("transfer_timeout", self.transfer_timeout_s),
            ("lease", self.lease_s),
        ):
            if seconds <= 0:
                raise InvalidConfiguration(f"{key} must be more than 0, got {seconds:g}s")
        if 2 * self.report_interval_s > self.heartbeat_timeout_s:
            raise InvalidConfiguration(
                f"heartbeat_timeout ({self.heartbeat_timeout_s:g}s) must be at least twice "
                f"report_interval ({self.report_interval_s:g}s), or one late report kills a worker"
            )


@dataclass(frozen=True, slots=True)
class TransportConfig:
    """How KV moves between live workers."""

    connectors: Annotated[
        tuple[Connector, ...] | None,
        doc(
            "The first that reaches the other worker is used; left out: what suits the devices "
            "(`[shm, tcp]`, with GPUs `[cuda-ipc, tcp]`)."
        ),
    ] = None
    wire_dtype: Annotated[
        WireDtype | None,
        doc("KV on the wire; narrower than it is stored it moves fewer bytes, and is not exact."),
    ] = None
    checksums: Annotated[bool, doc("Check every chunk of KV before it is used.")] = True

    def __post_init__(self) -> None:
        if self.connectors is not None and not self.connectors:
            raise InvalidConfiguration("connectors: name at least one, as [shm, tcp]")


@dataclass(frozen=True, slots=True)
class RayConfig:
    """The Ray cluster to which this machine belongs."""

    address: Annotated[str, doc("The host:port of its head; `auto`: found by Ray.")] = "auto"
    placement: Annotated[Placement, doc("How processes are put on its machines.")] = "spread"
    timeout_s: Annotated[float, doc("So long a process may wait for a place there.")] = 60.0

    def __post_init__(self) -> None:
        if "://" in self.address:
            raise RefusedAt(
                "address",
                f"ray.address {self.address}: gateways run on this machine, which must belong to "
                "the Ray cluster; write auto, or the host:port of its head",
            )
