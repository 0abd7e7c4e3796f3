"""A cluster file: a model on pools of workers, with network, tiers and policies.

The same file drives `tandem simulate` and a live cluster (`tandem up`). Here are its top-level
keys, what its sections must be to each other, and how it is found and read.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import yaml
from msgspec import Meta

from tandem.config.cluster.drafts import DraftsConfig
from tandem.config.cluster.keys import Change, build, key, section
from tandem.config.cluster.requests import (
    ClassConfig,
    JournalConfig,
    PlanningOptions,
    PolicyConfig,
    QueueConfig,
    TenantConfig,
    refuse_zero,
)
from tandem.config.cluster.tree import RefusedAt, override, parse
from tandem.config.cluster.workers import (
    BlockSize,
    Launcher,
    NetworkConfig,
    PoolConfig,
    RayConfig,
    Serve,
    TierConfigs,
    TransportConfig,
)
from tandem.config.environment import BUNDLED
from tandem.facts.errors import InvalidConfiguration, nearest
from tandem.facts.fleet import Role
from tandem.facts.health import Health
from tandem.facts.rate_limits import RateLimits
from tandem.facts.slo import Slo

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
BUNDLED_CLUSTERS = BUNDLED / "clusters"
MOST_FAULTS_PER_HOUR = 100_000
MOST_PORT = 65535
MOST_NAME_BYTES = 128
PHASES: Mapping[str, Callable[[Role], bool]] = {
    "prefill": lambda role: role.prefills,
    "decode": lambda role: role.decodes,
}


@section
class Cluster:
    """A whole cluster file: one cluster, live or simulated."""

    model: str = key(
        "A bundled shape, the path of a config.json, of a checkpoint's folder or of a GGUF file; "
        "live also a name on the Hugging Face hub."
    )
    pools: tuple[PoolConfig, ...] = key("The workers.")
    block_size: BlockSize = key("Tokens of a KV block.", default=64)
    max_model_len: int = key(
        "Tokens of a sequence at most; 0: what a worker's KV holds.", default=0
    )
    network: NetworkConfig = key("Between workers.", factory=NetworkConfig)
    tiers: TierConfigs = key("KV beyond the devices.", factory=TierConfigs)
    policies: PolicyConfig = key("Who decides.", factory=PolicyConfig, live=Change.AT_ONCE)
    planning: PlanningOptions = key(
        "How the planner's decisions are carried out.",
        factory=PlanningOptions,
        live=Change.AT_ONCE,
    )
    health: Health = key("How long silence is tolerated.", factory=Health)
    queue: QueueConfig = key(
        "The queue before the workers.", factory=QueueConfig, live=Change.AT_ONCE
    )
    classes: tuple[ClassConfig, ...] = key("Service classes.", default=(), live=Change.NEW_REQUESTS)
    tenants: tuple[TenantConfig, ...] = key("Who asks.", default=(), live=Change.NEW_REQUESTS)
    limits: RateLimits = key(
        "Rate limits of each API key that belongs to no tenant; callers without a key are one.",
        factory=RateLimits,
        live=Change.AT_ONCE,
    )
    slo: Slo = key("What a good answer keeps.", factory=Slo, live=Change.NEW_REQUESTS)
    faults: tuple[Mapping[str, object], ...] = key(
        "What fails, and when.", default=(), only="simulator"
    )
    faults_per_hour: Annotated[float, Meta(ge=0, le=MOST_FAULTS_PER_HOUR)] = key(
        "Random faults beside them.", default=0.0, only="simulator"
    )
    drafts: DraftsConfig = key("What comes of speculation.", factory=DraftsConfig, only="simulator")
    seed: int = key(
        "Of all chance of the simulator and of the policies.", default=0, live=Change.AT_ONCE
    )
    name: str = key("Tells the cluster from others of this user.", default="default", only="live")
    serve: Serve = key(
        "Options of `tandem serve`, for all processes; `kv-cache-memory` and `speculation` count "
        "in the simulator, too.",
        factory=dict,
        only="live",
    )
    gateways: Annotated[int, Meta(ge=1, le=64)] = key(
        "Processes that share one HTTP port.", default=1, only="live"
    )
    listen: str = key(
        "Where workers and operators reach the first gateway: an address, or address:port; "
        "gateway i takes port + i.",
        default="127.0.0.1",
        only="live",
    )
    transport: TransportConfig = key(
        "How KV moves between workers.", factory=TransportConfig, only="live"
    )
    journal: JournalConfig | None = key(
        "Write down what the gateways decide by (left out: nothing).", default=None, only="live"
    )
    explain_memory_bytes: float = key(
        "Memory of a gateway for what `tandem explain` shows, of an hour at most; 0: nothing.",
        default=float(32 << 20),
        only="live",
        live=Change.AT_ONCE,
    )
    launcher: Launcher = key("Whose machines the workers run on.", default="local", only="live")
    ray: RayConfig = key("For `launcher: ray`.", factory=RayConfig, only="live")

    def __post_init__(self) -> None:
        refuse_zero(self.slo)
        for refused in (_own_refusals(self), _pool_refusals(self), _caller_refusals(self)):
            for place, problem in refused:
                raise RefusedAt(place, problem)

    def pool(self, name: str) -> PoolConfig:
        """The pool of that name, which must be there."""
        return next(pool for pool in self.pools if pool.name == name)

    @property
    def plans(self) -> bool:
        """Whether a planner changes how many workers there are, or what they do."""
        planning = self.policies.planning
        return planning.name != "static" or bool(planning.parameters)

    def model_of(self, pool: PoolConfig) -> str:
        """What its workers serve, as it stands in the file."""
        return pool.model or self.model

    def most_workers(self, pool: PoolConfig) -> int:
        """How many workers of this pool may be up at once."""
        return pool.max_count or pool.count if self.plans else pool.count


def worker_names(pool: PoolConfig) -> list[str]:
    """Every name of the pool that may ever be up."""
    return [f"{pool.name}-{index}" for index in range(pool.max_count or pool.count)]


def name_problem(name: str) -> str | None:
    """Why a cluster or pool cannot have this name: files are called after it."""
    if NAME.fullmatch(name):
        return None
    return f"name {name!r}: up to 64 letters, digits, - _ or ., the first no sign"


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
    if cluster.gateways > 1 and cluster.serve.get("batch-directory"):
        problem = f"batch-directory: {cluster.gateways} gateways cannot share it; have one gateway"
        yield "serve.batch-directory", problem
    for list_key, what, names in (
        ("pools", "pool", [pool.name for pool in cluster.pools]),
        ("classes", "class", [entry.name for entry in cluster.classes]),
        ("tenants", "tenant", [tenant.name for tenant in cluster.tenants]),
    ):
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f"{list_key}.{index}.name", f"two entries call themselves {what} {name}"


def _pool_refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    yield from _unlike_blocks(cluster.pools, cluster.block_size)
    roles = [pool.role for pool in cluster.pools]
    for phase, takes in PHASES.items():
        if not any(map(takes, roles)):
            yield "pools", f"no pool takes {phase}; add one with role {phase} or both"
    planning = cluster.policies.planning.name
    if planning != "static" and not {Role.PREFILL, Role.DECODE} <= set(roles):
        yield (
            "policies.planning",
            f"policies.planning is {planning}, which decides between prefill and decode "
            "workers; give pools these roles, or choose static",
        )
    yield from _spare_refusals(cluster)


def _spare_refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    wanted = cluster.planning.spares
    if wanted and not cluster.plans:
        yield (
            "planning.spares",
            f"planning.spares is {wanted}, and nobody would have them take requests; choose a "
            "planner under policies.planning, or drop spares",
        )
        return
    scaled = [pool for pool in cluster.pools if pool.role is not Role.BOTH]
    room = sum((pool.max_count or pool.count) - pool.count for pool in scaled)
    if wanted > room:
        yield (
            "planning.spares",
            f"planning.spares is {wanted}, but the pools may have only {room} workers more than "
            "they begin with; raise a max_count",
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
    seen: set[str] = set()
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
        if seen & set(tenant.api_keys) or len(set(tenant.api_keys)) < len(tenant.api_keys):
            yield f"tenants.{index}.api_keys", "tenants: one of the api_keys stands there twice"
        seen |= set(tenant.api_keys)
    yield from _dedicated_refusals(cluster)
    if sum(entry.default for entry in cluster.classes) > 1:
        yield "classes", "only one class can be the default"
    if sum(entry.reserved for entry in cluster.classes) > 1:
        yield "classes", "the classes' reserved shares must not exceed 1 in all"


def _dedicated_refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Pools that classes have to themselves: each class and everybody else can be served."""
    pools = {pool.name: pool for pool in cluster.pools}
    named = {name for entry in cluster.classes for name in entry.pools}
    for index, entry in enumerate(cluster.classes):
        place, own = f"classes.{index}.pools", [name for name in entry.pools if name in pools]
        for name in entry.pools:
            if name not in pools:
                yield place, f"class {entry.name}: there is no pool {name}{nearest(name, pools)}"
            elif cluster.plans and pools[name].role is not Role.BOTH:
                yield (
                    place,
                    f"class {entry.name}: pool {name} cannot be both a class's own and planned; "
                    "give it the role both, which planners leave alone, or planning static",
                )
        for phase, takes in PHASES.items():
            if own and not any(takes(pools[name].role) for name in own):
                yield place, f"class {entry.name}: none of its pools takes {phase}; name one more"
    yield from _model_refusals(cluster)
    for phase, takes in PHASES.items():
        if named and not any(takes(pool.role) for pool in cluster.pools if pool.name not in named):
            yield "classes", f"every pool that takes {phase} is some class's own; leave one to all"


def _model_refusals(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Who is answered by another model than the cluster's, and when."""
    own_models = {pool.name: pool.model for pool in cluster.pools}
    named = {name for entry in cluster.classes for name in entry.pools}
    for index, pool in enumerate(cluster.pools):
        if pool.model is not None and pool.name not in named:
            yield (
                f"pools.{index}.model",
                f"pool {pool.name} has a model of its own, and no class names the pool; name it "
                "under a class's pools, or leave model out",
            )
    classes = [entry.name for entry in cluster.classes]
    for index, entry in enumerate(cluster.classes):
        if len({own_models.get(name) for name in entry.pools}) > 1:
            yield (
                f"classes.{index}.pools",
                f"class {entry.name}: its pools serve different models, and a request is answered "
                "by one; name pools of one model",
            )
        other = entry.degrade.service_class
        place = f"classes.{index}.degrade.service_class"
        if other and other not in classes:
            problem = f"there is no class {other}{nearest(other, classes)}"
            yield place, f"class {entry.name}: degrade: {problem}"
        elif other == entry.name:
            yield place, f"class {entry.name}: degrade: name another class than its own"


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
    tree = parse(text, path.name if path.parent == BUNDLED_CLUSTERS else str(path))
    for assignment in overrides:
        override(tree, assignment)
    return tree


def cluster_of(tree: yaml.MappingNode, folder: Path) -> Cluster:
    """The cluster that the tree of a file in `folder` describes."""
    cluster = build(Cluster, tree)
    pools = tuple(
        pool if pool.model is None else replace(pool, model=_found(pool.model, folder))
        for pool in cluster.pools
    )
    return replace(cluster, model=_found(cluster.model, folder), pools=pools)


def _found(model: str, folder: Path) -> str:
    """A path is meant from where the file lies."""
    beside = folder / model
    return str(beside) if beside.exists() else model


def find_cluster(name: str) -> Path:
    """The file that `mooncake-16` or `my/cluster.yaml` means."""
    bundled = BUNDLED_CLUSTERS / f"{name}.yaml"
    if "/" not in name and bundled.exists():
        return bundled
    if Path(name).exists():
        return Path(name)
    raise InvalidConfiguration(
        f"no cluster file {name}, nor a bundled one{nearest(name, bundled_clusters())}"
    )


def bundled_clusters() -> list[str]:
    """Names of the examples that come with Tandem."""
    return sorted(path.stem for path in BUNDLED_CLUSTERS.glob("*.yaml"))
