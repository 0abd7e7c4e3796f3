"""Sections of a cluster file about its workers: pools, network, tiers, transport, health, and the
machines of a Ray cluster. How a key is declared: `config.cluster.keys`."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta

from tandem.config.cluster.keys import (
    SHARED_POOL,
    Change,
    Choice,
    Known,
    OptionsOf,
    Secret,
    key,
    section,
)
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
CONNECTORS = ("shm", "tcp", "nixl", "cuda-ipc")
Connector = Annotated[str, Known("connector", CONNECTORS)]
WIRE_DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")
WireDtype = Annotated[str, Known("wire_dtype", WIRE_DTYPES)]
AllReduce = Annotated[str, Known("all_reduce", ("one-shot", "two-shot", "library", "auto"))]
EngineKind = Annotated[str, Known("engine", ("model", "dummy"))]
TimeModel = Annotated[Choice, Known("time model", ("roofline", "tables", "profile"))]
Launcher = Annotated[str, Known("launcher", ("local", "ray"))]
Placement = Annotated[str, Known("placement", ("spread", "pack", "strict_spread"))]

# Options of `tandem serve` that have one place of their own in a cluster file.
_ELSEWHERE = {
    "device": "write the pool's device",
    "block_size": "write it at the top of the file or at the pool",
    "max_model_len": "write it at the top of the file",
    **dict.fromkeys(
        ("cascade_model", "cascade_floor", "cascade_window"),
        "only a server of one process has a model cascade",
    ),
    "embeddings": "only a server of one process gives those of its own model; write its path under "
    "encoder_models, too",
}
_FOR_ALL = ("revision", "served_model_name", "load_format", "seed")
_OF_GATEWAYS = tuple(name.replace("-", "_") for name in OF_GATEWAYS)
_AT_THE_TOP = "write it under serve at the top of the file"
_NOT_OF_A_POOL = dict.fromkeys((*_FOR_ALL, *_OF_GATEWAYS), _AT_THE_TOP)
Serve = Annotated[Mapping[str, object], OptionsOf(ServeOptions, _ELSEWHERE)]
PoolServe = Annotated[Mapping[str, object], OptionsOf(ServeOptions, _ELSEWHERE | _NOT_OF_A_POOL)]


@section
class PoolConfig:
    """Workers alike. The planner keeps the pool within `min_count` and `max_count`."""

    name: str = key("Its workers are NAME-0, NAME-1, ...")
    device: str = key("`cpu`, a GPU's bundled datasheet, or the path of one.")
    role: Role = key("What its workers take.", default=Role.BOTH)
    model: str | None = key(
        "Another model of the same tokens; its workers serve the classes that name the pool. Left "
        "out: the cluster's.",
        default=None,
    )
    count: Workers = key("Workers at the start.", default=1, live=Change.WORKERS)
    min_count: Workers | None = key(
        "A planner leaves at least so many; left out: 1.", default=None, live=Change.AT_ONCE
    )
    max_count: Workers | None = key(
        "A planner starts at most so many; left out: `count`.", default=None, live=Change.WORKERS
    )
    tensor_parallel: Positive = key("Ranks that share every layer of a worker.", default=1)
    pipeline_parallel: Positive = key("Stages of layers of a worker.", default=1)
    dtype: Precision = key(
        "Storage of the weights. Live: `auto` as `tandem serve` chooses, `int8` and `int4` "
        "quantise on a CPU. Pools of unlike `dtype` never take each other's KV.",
        default="auto",
    )
    kv_dtype: Precision = key(
        "Storage of the KV; between unlike pools it is converted as it moves.", default="auto"
    )
    max_num_seqs: Positive = key("Sequences of a worker that run at once.", default=256)
    max_num_batched_tokens: Positive = key("Tokens of a step at most.", default=8192)
    memory_utilization: Annotated[float, Meta(gt=0, le=1)] = key(
        "Share of a device's memory to use in all.", default=0.9
    )
    startup_s: float = key("Until a new worker is ready.", default=60.0, live=Change.AT_ONCE)
    price_usd_per_hour: float | None = key(
        "Dollars an hour for one device; left out: the datasheet's.", default=None, only="simulator"
    )
    time_model: TimeModel = key(
        "How long steps take: `roofline`, or `tables` or `profile` with their `path`.",
        default=Choice("roofline"),
    )
    engine: EngineKind = key(
        "`dummy`: nothing is computed; steps take as long as `time_model` says and draw one word "
        "for ever.",
        default="model",
        only="live",
    )
    serve: PoolServe = key(
        "Options of `tandem serve` for these workers, before the pool's figures and `serve`.",
        factory=dict,
        only="live",
    )
    block_size: BlockSize | None = key(
        "Tokens of a KV block; of unlike pools, one size must divide the other.",
        default=None,
        only="live",
    )
    all_reduce: AllReduce = key(
        "How tensor-parallel ranks add up: the first two in the order of ranks.",
        default="one-shot",
        only="live",
    )
    sequence_parallel: bool = key(
        "Share out tokens between tensor-parallel layers.", default=False, only="live"
    )
    resources: Mapping[str, float] = key(
        "What Ray sets aside for a worker: `num_cpus`, `num_gpus`, or of its own.",
        factory=dict,
        only="live",
    )

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
        if self.engine == "dummy" and self.devices > 1:
            raise RefusedAt(
                "engine",
                f"pool {self.name}: a dummy engine has one rank; set tensor_parallel and "
                "pipeline_parallel to 1, and let time_model say how quick its workers are",
            )
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise RefusedAt(
                "max_num_batched_tokens",
                f"pool {self.name}: max_num_batched_tokens ({self.max_num_batched_tokens}) must be "
                f"at least max_num_seqs ({self.max_num_seqs})",
            )


@section
class NetworkConfig:
    """Between workers, as the simulator and the routing policies reckon with it."""

    fabric_bytes_per_s: float | None = key(
        "What one worker sends and, at the same time, receives; left out: the datasheet's.",
        default=None,
    )
    latency_s: float | None = key("Of a transfer; left out: the datasheet's.", default=None)


@section
class TierConfig:
    """Room for KV beyond the devices: of each worker on host and disk, for all when remote."""

    capacity_bytes: float = key("Of each worker; when remote, of all nodes together.")
    bandwidth_bytes_per_s: float | None = key(
        "Of one worker's way there; left out: the datasheet's.", default=None
    )
    latency_s: float | None = key("Of one access; left out: the datasheet's.", default=None)


@section
class DiskTierConfig(TierConfig):
    """A file for each worker, found again after a restart."""

    path: str | None = key(
        "The folder of the files; left out: one of the cluster's own.", default=None, only="live"
    )


@section
class RemoteTierConfig(TierConfig):
    """The shared pool. What does not fit into the memory of its processes goes to their disks, or
    to a Redis or Valkey server."""

    nodes: Positive = key("Processes that share the capacity.", default=1)
    replicas: Positive = key("Nodes at most that hold a block many ask for.", default=2)
    disk: DiskTierConfig | None = key(
        "Where blocks go that memory does not hold.", default=None, only="live"
    )
    redis: Annotated[str | None, Secret(SHARED_POOL)] = key(
        "The URL of a server for them, instead of a disk.", default=None, only="live"
    )
    redis_password_file: str | None = key(
        "The file that holds its password, read at each connection.", default=None, only="live"
    )
    redis_password_env: str | None = key(
        "The variable of the environment that holds it.", default=None, only="live"
    )
    redis_capacity_bytes: float = key("What the server may hold.", default=0.0, only="live")


@section
class TierConfigs:
    """A tier that is not named does not exist."""

    host: TierConfig | None = key("Memory of each worker's machine.", default=None)
    disk: DiskTierConfig | None = key("Disk of each worker's machine.", default=None)
    remote: RemoteTierConfig | None = key("The shared pool.", default=None)
    pin_sessions_s: float = key(
        "So long what a session's request left is kept after its answer.",
        default=0.0,
        live=Change.NEW_REQUESTS,
    )
    longest_pin_s: float = key(
        "So long clients may pin KV, where neither their tenant nor their class says it.",
        default=0.0,
        only="live",
        live=Change.NEW_REQUESTS,
    )
    pin_share: Annotated[float, Meta(ge=0, le=0.9)] = key(
        "Share of a tier that all pins together may take.",
        default=0.5,
        live=Change.WORKER_RESTART,
    )
    longest_pause_s: Annotated[float, Meta(ge=0, le=86_400)] = key(
        "Of a session that pauses for a tool up to so long, KV leaves the device and is back in "
        "time; 0: pauses are not followed.",
        default=0.0,
    )
    learn_pauses: bool = key(
        "Pauses that no client announces are expected to be as those before.", default=True
    )


@section
class TransportConfig:
    """How KV moves between live workers."""

    connectors: tuple[Connector, ...] | None = key(
        "The first that reaches the other worker is used; left out: what suits the devices "
        "(`[shm, tcp]`, with GPUs `[cuda-ipc, tcp]`).",
        default=None,
    )
    wire_dtype: WireDtype | None = key(
        "KV on the wire; narrower than it is stored it moves fewer bytes, and is not exact.",
        default=None,
    )
    checksums: bool = key("Check every chunk of KV before it is used.", default=True)

    def __post_init__(self) -> None:
        if self.connectors is not None and not self.connectors:
            raise InvalidConfiguration("connectors: name at least one, as [shm, tcp]")


@section
class RayConfig:
    """The Ray cluster to which this machine belongs."""

    address: str = key("The host:port of its head; `auto`: found by Ray.", default="auto")
    placement: Placement = key("How processes are put on its machines.", default="spread")
    timeout_s: float = key("So long a process may wait for a place there.", default=60.0)

    def __post_init__(self) -> None:
        if "://" in self.address:
            raise RefusedAt(
                "address",
                f"ray.address {self.address}: gateways run on this machine, which must belong to "
                "the Ray cluster; write auto, or the host:port of its head",
            )
