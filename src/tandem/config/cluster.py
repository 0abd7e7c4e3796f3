"""What stands in a cluster file: a model on pools of workers, with network, tiers and policies.

The same file drives `tandem simulate` and a live cluster (`tandem up`). Everything a user may say
is in these dataclasses; `read_cluster` finds the file and reads it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import yaml
from msgspec import Meta

from tandem.config.cluster_build import Choice, Known, OptionsOf, build
from tandem.config.cluster_ray import Launcher, RayConfig
from tandem.config.cluster_tree import RefusedAt, nearest, override, parse
from tandem.config.options import OF_GATEWAYS, ServeOptions
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.facts.slo import LEAST_URGENT, Slo
from tandem.forecast.choose import NAMES as FORECASTS
from tandem.policy.admission.registry import ADMISSIONS
from tandem.policy.dispatch.contract import FirstToken, Transfer
from tandem.policy.dispatch.registry import DISPATCHES
from tandem.policy.eviction.registry import EVICTIONS
from tandem.policy.planning.registry import PLANNINGS
from tandem.policy.routing.registry import ROUTINGS


def _policies(kind: str, registry: Mapping[str, object]) -> Known:
    return Known(f"{kind} policy", tuple(registry))


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
BUNDLED = Path(__file__).parent.parent / "bundled" / "clusters"

Positive = Annotated[int, Meta(ge=1)]
# Beyond this somebody mistyped, and would wait for ever.
Workers = Annotated[int, Meta(ge=1, le=100_000)]
MOST_FAULTS_PER_HOUR = 100_000
MOST_PORT = 65535
Share = Annotated[float, Meta(ge=0, le=1)]
PriorityShift = Annotated[int, Meta(ge=0, le=LEAST_URGENT)]
MOST_NAME_BYTES = 128
# "auto" is bfloat16 to the simulator, and live what `tandem serve` would choose.
PRECISIONS = ("auto", "float32", "bfloat16", "float16", "fp8", "int8", "fp4", "int4")
Precision = Annotated[str, Known("precision", PRECISIONS)]
BlockSize = Annotated[int, Meta(ge=1, le=1024)]
Connector = Annotated[str, Known("connector", ("shm", "tcp", "nixl", "cuda-ipc"))]
WIRE_DTYPES = ("float32", "bfloat16", "float16", "int8", "float8_e4m3")
WireDtype = Annotated[str, Known("wire_dtype", WIRE_DTYPES)]
AllReduce = Annotated[str, Known("all_reduce", ("one-shot", "two-shot", "library", "auto"))]

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
TimeModel = Annotated[Choice, Known("time model", ("roofline", "tables", "profile"))]


@dataclass(frozen=True, slots=True)
class PoolConfig:
    """`count` workers alike. `device` names a datasheet; one worker spans `tensor_parallel` x
    `pipeline_parallel` devices. `price_usd_per_hour` is of one device, None as on the datasheet.
    The planner keeps the pool within `min_count` and `max_count`, None for as many as there are;
    a new worker is ready after `startup_s`.

    Only a live cluster heeds `serve` (options of `tandem serve` for these workers; they count
    before the same figures of the pool), `block_size` (None: the cluster's), `all_reduce` (how
    tensor-parallel ranks add up), `sequence_parallel`, and `resources`: what Ray sets aside for a
    worker (`num_cpus`, `num_gpus`, or of its own as {prefill_node: 1})."""

    name: str
    device: str
    role: Role = Role.BOTH
    count: Workers = 1
    min_count: Workers | None = None
    max_count: Workers | None = None
    tensor_parallel: Positive = 1
    pipeline_parallel: Positive = 1
    dtype: Precision = "auto"
    kv_dtype: Precision = "auto"
    max_num_seqs: Positive = 256
    max_num_batched_tokens: Positive = 8192
    memory_utilization: Annotated[float, Meta(gt=0, le=1)] = 0.9
    startup_s: float = 60.0
    price_usd_per_hour: float | None = None
    time_model: TimeModel = field(default=Choice("roofline"))
    serve: PoolServe = field(default_factory=dict)
    block_size: BlockSize | None = None
    all_reduce: AllReduce = "one-shot"
    sequence_parallel: bool = False
    resources: Mapping[str, float] = field(default_factory=dict)

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
    """Between workers. `fabric_bytes_per_s` is what one worker sends and, at the same time,
    receives; None as on the datasheets of its devices."""

    fabric_bytes_per_s: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Room for KV beyond the devices: one worker's own on host and disk, everybody's when remote.
    Bandwidth and latency are those of one worker's way there; None as on the datasheet."""

    capacity_bytes: float
    bandwidth_bytes_per_s: float | None = None
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class DiskTierConfig(TierConfig):
    """Live, the blocks lie in files in the folder `path` (None: one of the cluster's own), a file a
    worker, and are found again after a restart."""

    path: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteTierConfig(TierConfig):
    """Live, `nodes` processes share the capacity. What several ask for lies on up to `replicas` of
    them. What does not fit into their memory goes to their `disk` or, under the URL `redis`, to a
    Redis or Valkey server, at most `redis_capacity_bytes` of it, with the password that stands in
    a file, or in a variable of the environment, rather than in the URL."""

    nodes: Positive = 1
    replicas: Positive = 2
    disk: DiskTierConfig | None = None
    redis: str | None = None
    redis_password_file: str | None = None
    redis_password_env: str | None = None
    redis_capacity_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class TierConfigs:
    """A tier that is not named does not exist. What a session's request left in one is kept for
    `pin_sessions_s` after its answer: an agent's tool may take so long. A live cluster's clients
    may ask for up to `longest_pin_s` themselves, where neither their tenant nor their class says
    otherwise. All that is kept so is at most `pin_share` of a tier."""

    host: TierConfig | None = None
    disk: DiskTierConfig | None = None
    remote: RemoteTierConfig | None = None
    pin_sessions_s: float = 0.0
    longest_pin_s: float = 0.0
    pin_share: Annotated[float, Meta(ge=0, le=0.9)] = 0.5


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Who decides, by name, each with its parameters. `forecast` None: the planner's own;
    `transfer` None: the dispatch policy's own. Where prefill and decode are apart, a live cluster
    sends the first token along with the KV, or has the decode worker compute it again
    (`first_token` recomputed); both are the same token."""

    routing: Annotated[Choice, _policies("routing", ROUTINGS)] = field(default=Choice("cost"))
    dispatch: Annotated[Choice, _policies("dispatch", DISPATCHES)] = field(default=Choice("remote"))
    admission: Annotated[Choice, _policies("admission", ADMISSIONS)] = field(default=Choice("none"))
    eviction: Annotated[Choice, _policies("eviction", EVICTIONS)] = field(default=Choice("lru"))
    planning: Annotated[Choice, _policies("planning", PLANNINGS)] = field(default=Choice("static"))
    forecast: Annotated[Choice, Known("forecast", FORECASTS)] | None = None
    transfer: Transfer | None = None
    first_token: FirstToken = FirstToken.SENT


@dataclass(frozen=True, slots=True)
class HealthConfig:
    """How long silence is tolerated. A worker's load is told every `report_interval_s` (0: always
    known to the simulator, 100 ms live); a worker that says nothing for `heartbeat_timeout_s`
    counts as dead, and a transfer that takes longer than `transfer_timeout_s` as lost. Live, a
    worker gives up requests that no gateway has asked for during `lease_s`."""

    report_interval_s: float = 0.0
    heartbeat_timeout_s: float = 10.0
    transfer_timeout_s: float = 60.0
    lease_s: float = 30.0

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
    """How KV moves between live workers: by the first of `connectors` that reaches the other one
    (None: what suits the devices), as `wire_dtype` (None: as the source stores it), with a checksum
    for every piece unless `checksums` is false."""

    connectors: tuple[Connector, ...] | None = None
    wire_dtype: WireDtype | None = None
    checksums: bool = True

    def __post_init__(self) -> None:
        if self.connectors is not None and not self.connectors:
            raise InvalidConfiguration("connectors: name at least one, as [shm, tcp]")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The line before the workers. `max_requests` may be at workers at once, and `prefill_depth`
    prompts at each prefill worker; who comes later stands in line, where classes and tenants are
    told apart. 0 sets no bound. None: as many requests as there are slots if there are classes or
    tenants, else no bound; depth 1 for the dispatch policy `queue`, else no bound. Nobody waits
    longer than `max_wait_s` for fairness' sake."""

    max_requests: Annotated[int, Meta(ge=0)] | None = None
    prefill_depth: Annotated[int, Meta(ge=0)] | None = None
    max_wait_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ClassConfig:
    """A service class: smaller `priority` is more urgent, `reserved` is its share of the capacity,
    and requests with these `headers` belong to it, where their tenant may use it. One class may be
    the `default` of whoever belongs to none. The `priority` of a request may make it so much more
    or less urgent than its class (`client_may_raise`, `client_may_lower`), and its client may ask
    for its KV to be kept for up to `longest_pin_s`."""

    name: str
    priority: int = 0
    reserved: Share = 0.0
    slo: Slo = field(default_factory=Slo)
    deadline_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    default: bool = False
    client_may_raise: PriorityShift = 0
    client_may_lower: PriorityShift = LEAST_URGENT
    longest_pin_s: float | None = None

    def __post_init__(self) -> None:
        _refuse_zero(self.slo)


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """Who asks: the class of requests that name none, those that headers `may_use` beside it, the
    weight of a fair share, and the share of each slower tier that its KV may take, and that may be
    kept for it (`pin_share`). Its clients may ask for `longest_pin_s` at most (None: as their class
    says). A live cluster knows tenants by their `api_keys`, which may also stand in a file that is
    read again when it changes, or in a variable of the environment, one a line."""

    name: str
    service_class: str = ""
    weight: Annotated[float, Meta(gt=0)] = 1.0
    api_keys: tuple[str, ...] = ()
    api_keys_file: str | None = None
    api_keys_env: str | None = None
    kv_share: Share = 1.0
    may_use: tuple[str, ...] = ()
    longest_pin_s: float | None = None
    pin_share: Share = 1.0

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys or self.api_keys_file or self.api_keys_env)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A whole cluster file. `model` is a bundled shape's name, or the path of a config.json or
    checkpoint folder; a sequence has `max_model_len` tokens at most, 0 for what a worker's KV
    holds. `faults` are entries as written, for the simulator to read, which adds random ones
    at the rate of `faults_per_hour`.

    Only a live cluster heeds `name` (to tell it from others on this machine), `serve` (options of
    `tandem serve`), `gateways` (so many processes share one HTTP port), `listen` (the address, or
    address:port, where workers reach the first of them), `transport`, and `launcher` (whose
    machines the workers run on: this one, or those of `ray`). Its `model` may also be a name on the
    Hugging Face hub."""

    model: str
    pools: tuple[PoolConfig, ...]
    block_size: Annotated[int, Meta(ge=1, le=1024)] = 64
    max_model_len: int = 0
    network: NetworkConfig = field(default_factory=NetworkConfig)
    tiers: TierConfigs = field(default_factory=TierConfigs)
    policies: PolicyConfig = field(default_factory=PolicyConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    classes: tuple[ClassConfig, ...] = ()
    tenants: tuple[TenantConfig, ...] = ()
    slo: Slo = field(default_factory=Slo)
    faults: tuple[Mapping[str, object], ...] = ()
    faults_per_hour: Annotated[float, Meta(ge=0, le=MOST_FAULTS_PER_HOUR)] = 0.0
    seed: int = 0
    name: str = "default"
    serve: Serve = field(default_factory=dict)
    gateways: Annotated[int, Meta(ge=1, le=64)] = 1
    listen: str = "127.0.0.1"
    transport: TransportConfig = field(default_factory=TransportConfig)
    launcher: Launcher = "local"
    ray: RayConfig = field(default_factory=RayConfig)

    def __post_init__(self) -> None:
        _refuse_zero(self.slo)
        for refused in (_own_refusals(self), _pool_refusals(self), _caller_refusals(self)):
            for place, problem in refused:
                raise RefusedAt(place, problem)


def name_problem(name: str) -> str | None:
    """Why a cluster or pool cannot have this name: files are called after it."""
    if NAME.fullmatch(name):
        return None
    return f"name {name!r}: up to 64 letters, digits, - _ or ., the first no sign"


def _refuse_zero(slo: Slo) -> None:
    for key, bound_s in (
        ("ttft", slo.ttft_s),
        ("tpot", slo.tpot_s),
        ("e2e", slo.e2e_s),
    ):
        if bound_s == 0:
            problem = f"slo: nobody keeps a {key} of 0; leave it out for no bound"
            raise RefusedAt(f"slo.{key}", problem)


def _own_refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """What cannot be, each with its place in the file."""
    if problem := name_problem(cluster.name):
        yield "name", problem
    address, colon, port = cluster.listen.rpartition(":")
    if colon and not (address and port.isdecimal() and int(port) <= MOST_PORT):
        problem = f"listen: expected an address or address:port, got {cluster.listen!r}"
        yield "listen", problem
    elif colon and int(port) + cluster.gateways - 1 > MOST_PORT:
        yield "listen", f"listen: {cluster.gateways} gateways need as many ports from {port} on"
    for key, what, names in (
        ("pools", "pool", [pool.name for pool in cluster.pools]),
        ("classes", "class", [entry.name for entry in cluster.classes]),
        ("tenants", "tenant", [tenant.name for tenant in cluster.tenants]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f"{key}.{index}.name", f"two entries call themselves {what} {name}"


def _pool_refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    yield from _unlike_blocks(cluster.pools, cluster.block_size)
    roles = [pool.role for pool in cluster.pools]
    for phase, taken in (
        ("prefill", any(role.prefills for role in roles)),
        ("decode", any(role.decodes for role in roles)),
    ):
        if not taken:
            yield "pools", f"no pool takes {phase}; add one with role {phase} or both"
    planning = cluster.policies.planning.name
    if planning != "static" and not {Role.PREFILL, Role.DECODE} <= set(roles):
        yield (
            "policies.planning",
            f"policies.planning is {planning}, which decides between prefill and decode "
            "workers; give pools these roles, or choose static",
        )


def _unlike_blocks(pools: Sequence[PoolConfig], block_size: int) -> Iterator[tuple[str, str]]:
    """KV of one block size is read into another only where one divides the other."""
    sizes = {pool.block_size or block_size: pool for pool in pools}
    for small, large in pairwise(sorted(sizes)):
        if large % small:
            own = next(sizes[size] for size in (large, small) if sizes[size].block_size)
            yield (
                f"pools.{pools.index(own)}.block_size",
                f"block_size: {large} is no multiple of {small}, so workers of these pools could "
                "not read each other's KV",
            )


def _caller_refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    classes = [entry.name for entry in cluster.classes]
    heard: set[str] = set()
    for index, tenant in enumerate(cluster.tenants):
        if not 0 < len(tenant.name.encode()) <= MOST_NAME_BYTES:
            # Without a name it would be what callers without a tenant are.
            problem = f"a tenant's name has 1 to {MOST_NAME_BYTES} bytes"
            yield f"tenants.{index}.name", problem
        if tenant.service_class and tenant.service_class not in classes:
            yield (
                f"tenants.{index}.service_class",
                f"tenant {tenant.name}: unknown service_class {tenant.service_class}"
                f"{nearest(tenant.service_class, classes)}",
            )
        for name in tenant.may_use:
            if name not in classes:
                yield (
                    f"tenants.{index}.may_use",
                    f"tenant {tenant.name}: unknown class {name} in may_use"
                    f"{nearest(name, classes)}",
                )
        if heard & set(tenant.api_keys) or len(set(tenant.api_keys)) < len(tenant.api_keys):
            yield f"tenants.{index}.api_keys", "tenants: one of the api_keys stands there twice"
        heard |= set(tenant.api_keys)
    if sum(entry.default for entry in cluster.classes) > 1:
        yield "classes", "only one class can be the default"
    if sum(entry.reserved for entry in cluster.classes) > 1:
        yield "classes", "the classes' reserved shares must not exceed 1 in all"


def read_cluster(name: str, overrides: Sequence[str] = ()) -> Cluster:
    """The cluster of a bundled example or of a file, with `--set` assignments applied. Raises
    `InvalidConfiguration` with file, line and remedy."""
    return cluster_of(read_tree(name, overrides), find_cluster(name).parent)


def read_tree(name: str, overrides: Sequence[str] = ()) -> yaml.MappingNode:
    """What stands in a cluster file, unchecked, with `--set` assignments applied."""
    path = find_cluster(name)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"cannot read {path}: {error}") from error
    tree = parse(text, path.name if path.parent == BUNDLED else str(path))
    for assignment in overrides:
        override(tree, assignment)
    return tree


def cluster_of(tree: yaml.MappingNode, folder: Path) -> Cluster:
    """The cluster that the tree of a file in `folder` describes."""
    cluster = build(Cluster, tree)
    # A path is meant from where the file lies.
    beside = folder / cluster.model
    return replace(cluster, model=str(beside)) if beside.exists() else cluster


def find_cluster(name: str) -> Path:
    """The file that `mooncake-16` or `my/cluster.yaml` means."""
    bundled = BUNDLED / f"{name}.yaml"
    if "/" not in name and bundled.exists():
        return bundled
    if Path(name).exists():
        return Path(name)
    raise InvalidConfiguration(
        f"no cluster file {name}, nor a bundled one{nearest(name, bundled_clusters())}"
    )


def bundled_clusters() -> list[str]:
    """Names of the examples that come with Tandem."""
    return sorted(path.stem for path in BUNDLED.glob("*.yaml"))
