"""The configurations of the machines of a simulated cluster, from its scenario."""

from collections.abc import Callable
from dataclasses import replace

from tandem.cluster.gateway.configuration import GatewayConfig
from tandem.cluster.gateway.pauses import PauseConfig
from tandem.cluster.gateway.plan_actions import ScaledPool
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.prefix_cache.index import PromptHashes
from tandem.cluster.shared_pool.contents import HotBlocksConfig
from tandem.cluster.shared_pool.machine import PoolNodeConfig
from tandem.cluster.tiers.config import TierLimits, TiersConfig
from tandem.cluster.worker.machine import WorkerConfig
from tandem.facts.blocks import NO_SALT, CacheRoot
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import BlockFormat, KvExport, KvGeometry
from tandem.messages.cluster import PROTOCOL, Register, Registered, RegisterPoolNode
from tandem.policy.planning.policies import remembered_s
from tandem.twin.message_bus import GATEWAY
from tandem.twin.scenario import Pool, Scenario
from tandem.twin.tier_stores import SimulatedStore
from tandem.twin.workload import VOCABULARY_TOKENS

MODEL = "simulated"
CACHE_ROOT = CacheRoot("twin", "", b"")
# How often a worker that drains reports, where loads are always known otherwise.
DRAIN_REPORT_NS = 100_000_000


def gateway_config(
    name: str,
    scenario: Scenario,
    hashes: PromptHashes,
    capacity_of: Callable[[Register], Capacity],
) -> GatewayConfig:
    """What a gateway starts with. The first one plans."""
    policies = scenario.policies
    silence_ns = round(scenario.health.heartbeat_timeout_s * 1e9)
    return GatewayConfig(
        gateway=name,
        router=RouterConfig(
            block_size=scenario.block_size,
            root=CACHE_ROOT,
            capacities={},
            routing=policies.routing,
            admission=policies.admission,
            dispatching=policies.dispatching,
            classes=policies.classes,
            queue=policies.queue,
            explains=scenario.explains,
            hashes=hashes,
        ),
        capacity_of=capacity_of,
        terms=Registered(
            gateway=name,
            report_interval_ns=round(scenario.health.report_interval_s * 1e9) or DRAIN_REPORT_NS,
            silence_ns=silence_ns,
            lease_ns=round(scenario.health.lease_s * 1e9),
        ),
        model=MODEL,
        revision="",
        block_format=_block_format(scenario) if scenario.remote_blocks else None,
        planning=_planning(scenario) if name == GATEWAY else None,
        limits=replace(policies.limits, gateways=scenario.gateways),
        learning=policies.learning,
        pauses=PauseConfig(scenario.learns_pauses) if scenario.longest_pause_s else None,
        pool_models={pool.name: pool.model for pool in scenario.pools if pool.model},
    )


def _planning(scenario: Scenario) -> PlanningConfig | None:
    planning = scenario.policies.planning
    pools = [pool for pool in scenario.pools if pool.role is not Role.BOTH]
    if planning is None or not pools:
        return None
    return PlanningConfig(
        name=type(planning).__name__,
        planning=planning,
        pools=tuple(
            ScaledPool(
                role=pool.role,
                workers=tuple(pool.workers()),
                count=pool.count,
                min_count=pool.min_count,
                cost=pool.kind.cost,
                startup_s=pool.kind.startup_s,
                name=pool.name,
            )
            for pool in pools
        ),
        slo=scenario.slo,
        window_s=scenario.window_s,
        spares=scenario.spares,
        patience_s=scenario.planner_patience_s,
        remembers_s=remembered_s(planning),
    )


def worker_config(pool: Pool, scenario: Scenario, *, reports_full_blocks: bool) -> WorkerConfig:
    """The scheduler of a worker of this pool."""
    kind = pool.kind
    block_size = kind.block_size or scenario.block_size
    return WorkerConfig(
        block_size=block_size,
        block_count=kind.block_count,
        context_tokens=min(scenario.context_tokens, kind.block_count * block_size),
        vocabulary_tokens=VOCABULARY_TOKENS,
        max_sequences=kind.max_sequences,
        batching=kind.batching,
        root=replace(CACHE_ROOT, model=pool.model) if pool.model else CACHE_ROOT,
        steps_in_flight=kind.steps_in_flight,
        pipeline_stages=kind.cost.step_time.stages,
        max_waiting=1 << 30,
        reports_committed=reports_full_blocks,
        speculation=kind.speculation,
    )


def tiers_config(pool: Pool, scenario: Scenario, disk: SimulatedStore) -> TiersConfig | None:
    """The tiers below its device, with what its `disk` holds already; None where it has none. The
    shared pool keeps blocks of the cluster's model alone."""
    kind = pool.kind
    sizes = {Tier.HOST: kind.host_blocks, Tier.DISK: kind.disk_blocks}
    capacities = {tier: blocks for tier, blocks in sizes.items() if blocks}
    remote = scenario.remote_blocks > 0 and not pool.model
    if not capacities and not remote:
        return None
    eviction = scenario.policies.eviction
    return TiersConfig(
        capacities,
        lambda _blocks: eviction(),
        found=tuple(disk.blocks.values()) if kind.disk_blocks else (),
        remote=remote,
        pin_share=scenario.pin_share,
        quotas=scenario.quotas,
        pin_shares=scenario.pin_shares,
        limits=scenario.tier_limits or TierLimits.within(capacities.values()),
    )


def registration(
    pool: Pool, name: str, role: Role, incarnation: str, config: WorkerConfig
) -> Register:
    """What a worker registers with."""
    geometry = KvGeometry(1, 1, 1, config.block_size, "simulated")
    model, identity = pool.model or MODEL, config.root.identity
    export = KvExport(model, "", geometry, config.block_count, (), identity=identity)
    return Register(
        protocol=PROTOCOL,
        version="",
        worker=name,
        incarnation=incarnation,
        pool=pool.name,
        role=role,
        accepting=True,
        root=config.root,
        export=export,
        max_sequences=config.max_sequences,
        context_tokens=config.context_tokens,
    )


def pool_node_config(name: str, incarnation: str, scenario: Scenario) -> PoolNodeConfig:
    """What a process of the shared pool starts with: an even share of all that the pool keeps."""
    capacity = max(1, scenario.remote_blocks // len(pool_names(scenario)))
    register = RegisterPoolNode(
        protocol=PROTOCOL,
        version="",
        worker=name,
        incarnation=incarnation,
        address=name,
        format=_block_format(scenario),
        capacity_blocks=capacity,
    )
    tiers = TiersConfig(
        {Tier.HOST: capacity},
        lambda _blocks: scenario.policies.eviction(),
        pin_share=scenario.pin_share,
        quotas=scenario.quotas,
        pin_shares=scenario.pin_shares,
        limits=TierLimits.within((capacity,)),
    )
    heat = HotBlocksConfig(replicas=scenario.pool_replicas)
    return PoolNodeConfig(register, tiers, heat, reports_when_asked=scenario.asks_for_reports)


def pool_names(scenario: Scenario) -> tuple[str, ...]:
    """Of the processes of the shared pool; no worker has the name of one."""
    if not scenario.remote_blocks:
        return ()
    taken = {name for pool in scenario.pools for name in pool.workers()}
    prefix = "pool" if not any(name.startswith("pool-") for name in taken) else "shared-pool"
    return tuple(f"{prefix}-{index}" for index in range(scenario.pool_nodes))


def _block_format(scenario: Scenario) -> BlockFormat:
    block_bytes = scenario.pools[0].kind.cost.kv_bytes(scenario.block_size)
    return BlockFormat(CACHE_ROOT.hash(NO_SALT), round(block_bytes))
