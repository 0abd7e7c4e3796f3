"""From a cluster file to a scenario of the twin: fresh policies, priced workers, read faults."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf

import msgspec

from tandem.config.cluster.drafts import PROPOSERS
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Choice
from tandem.config.cluster.tiers import tenant_pin_shares, tenant_shares
from tandem.config.cluster.workers import PoolConfig, TierConfig
from tandem.config.hardware.pools import pool_blocks, pool_cost, pool_device
from tandem.config.options import ServeOptions
from tandem.config.policies import (
    eviction_order,
    learning_of,
    limit_terms,
    planning_policy,
    router_policies,
)
from tandem.config.speculation import speculation_of
from tandem.cost.worker import WorkerCost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.planning.policies import remembered_s
from tandem.policy.speculation import Speculation
from tandem.twin.drafts import NO_DRAFT_COST, DraftQuality
from tandem.twin.faults.chance import random_faults
from tandem.twin.faults.entries import read_faults
from tandem.twin.faults.kinds import Fault, TierCorrupted, TierDown, TierFull, TierLost
from tandem.twin.network.paths import NodeLinks
from tandem.twin.scenario import Policies, Pool, Scenario, WorkerKind
from tandem.twin.shape_simulation import simulate_shapes


def scenario_of(cluster: Cluster, explains: bool = False) -> Scenario:
    """A scenario for one run. Raises `InvalidConfiguration`."""
    pools = tuple(_pool(cluster, pool) for pool in cluster.pools)
    remote = cluster.tiers.remote
    workers = [name for pool in pools for name in pool.workers()]
    policies = _policies(cluster, pools)
    asks = policies.planning is not None and remembered_s(policies.planning) > 0
    held_tokens = min(pool.kind.block_count for pool in pools) * cluster.block_size
    return Scenario(
        pools=pools,
        policies=policies,
        block_size=cluster.block_size,
        context_tokens=cluster.max_model_len or held_tokens,
        slo=cluster.slo,
        pin_sessions_s=cluster.tiers.pin_sessions_s,
        pin_share=cluster.tiers.pin_share,
        pin_shares=tenant_pin_shares(cluster),
        quotas=tenant_shares(cluster),
        longest_pause_s=cluster.tiers.longest_pause_s,
        learns_pauses=cluster.tiers.learn_pauses,
        remote_blocks=_blocks(cluster, remote, pools[0].kind.cost),
        pool_nodes=1 if remote is None else remote.nodes,
        pool_replicas=1 if remote is None else remote.replicas,
        pool_bytes_per_s=_remote_bytes_per_s(remote, pools),
        network_latency_s=pools[0].kind.cost.network.latency_s,
        faults=_faults(cluster, workers),
        health=cluster.health,
        window_s=cluster.planning.window_s,
        settings=settings_of(cluster),
        explains=explains,
        # When a token came counts against its tenant's limit.
        fast_forward=not limit_terms(cluster).count_tokens,
        spares=cluster.planning.spares,
        planner_patience_s=cluster.planning.patience_s,
        simulator=partial(simulate_shapes, fresh=partial(unplanned, cluster)) if asks else None,
    )


def unplanned(cluster: Cluster) -> Scenario:
    """A scenario of the cluster for one run in which nothing is planned and nothing fails: whoever
    simulates shapes says which workers there are. Raises `InvalidConfiguration`."""
    policies = replace(cluster.policies, planning=Choice("static"), forecast=None)
    planning = replace(cluster.planning, spares=0)
    return scenario_of(replace(cluster, policies=policies, planning=planning, faults=()))


def _faults(cluster: Cluster, workers: list[str]) -> tuple[Fault, ...]:
    faults = read_faults(cluster.faults, workers)
    for fault in faults:
        cause = fault.cause
        if (
            isinstance(cause, TierDown | TierFull | TierLost | TierCorrupted)
            and getattr(cluster.tiers, cause.tier) is None
        ):
            raise InvalidConfiguration(
                f"faults: the cluster has no {cause.tier} tier; name it under tiers"
            )
    return faults


def with_random_faults(scenario: Scenario, cluster: Cluster, duration_s: float) -> Scenario:
    """The scenario with random faults among its own, which the cluster's seed decides."""
    workers = [name for pool in scenario.pools for name in pool.workers()[: pool.count]]
    drawn = random_faults(cluster.seed, workers, duration_s, cluster.faults_per_hour / 3600)
    faults = sorted((*scenario.faults, *drawn), key=lambda fault: fault.begin_ns)
    return replace(scenario, faults=tuple(faults))


def with_blocks(scenario: Scenario, kv_blocks: Mapping[str, int]) -> Scenario:
    """The scenario whose workers have so many KV blocks, by pool, where that is said."""
    pools = tuple(
        replace(pool, kind=replace(pool.kind, block_count=kv_blocks[pool.name]))
        if pool.name in kv_blocks
        else pool
        for pool in scenario.pools
    )
    return replace(scenario, pools=pools)


def settings_of(cluster: Cluster) -> dict[str, str]:
    """Every choice that shaped a run, in words."""
    chosen = cluster.policies
    pools = [
        f"{pool.count} {pool.role} {pool.name} on {pool.devices} {pool.device}"
        for pool in cluster.pools
    ]
    limits = {tenant.name: tenant.limits for tenant in cluster.tenants} | {"": cluster.limits}
    limited = [f"{name or 'others'}: {each}" for name, each in limits.items() if not each.empty]
    return {
        "model": cluster.model,
        "pools": ", ".join(pools),
        "block_size": str(cluster.block_size),
        "routing": _choice_text(chosen.routing),
        "dispatch": _choice_text(chosen.dispatch),
        "admission": _choice_text(chosen.admission),
        "eviction": _choice_text(chosen.eviction),
        "planning": _choice_text(chosen.planning),
        "learning": _choice_text(chosen.learning),
        "transfer": str(chosen.transfer or "as dispatch has it"),
        "slo": str(cluster.slo),
        "faults": f"{len(cluster.faults)} set, {cluster.faults_per_hour:g} an hour at random",
        "seed": str(cluster.seed),
        **({"limits": "; ".join(limited)} if limited else {}),
    }


def _choice_text(choice: Choice) -> str:
    parameters = ", ".join(f"{name}={value}" for name, value in choice.parameters.items())
    return f"{choice.name} ({parameters})" if parameters else choice.name


def _pool(cluster: Cluster, pool: PoolConfig) -> Pool:
    cost = pool_cost(cluster, pool)
    speculation, drafts = _speculation(cluster, pool, cost)
    kind = WorkerKind(
        cost=cost,
        device=pool.device,
        devices=pool.devices,
        block_count=pool_blocks(cluster, pool),
        max_sequences=pool.max_num_seqs,
        batching=TokenBudgetBatching.on(pool.device, pool.max_num_batched_tokens),
        links=_links(pool, cost),
        host_blocks=_blocks(cluster, cluster.tiers.host, cost),
        disk_blocks=_blocks(cluster, cluster.tiers.disk, cost),
        startup_s=pool.startup_s,
        speculation=speculation,
        drafts=drafts,
    )
    most = pool.max_count or pool.count
    least, model = pool.min_count or 1, pool.model or ""
    return Pool(pool.name, pool.role, kind, pool.count, least, most, model)


def _speculation(
    cluster: Cluster, pool: PoolConfig, cost: WorkerCost
) -> tuple[Speculation | None, DraftQuality]:
    """Whether its workers speculate, as they would live, and what comes of their drafts."""
    options = _speculation_options(cluster, pool)
    speculation = speculation_of(options)
    if speculation is None:
        return None, NO_DRAFT_COST
    told, known = cluster.drafts, PROPOSERS[options.speculation]
    token_s = told.token_time_s
    if token_s is None:
        token_s = known.token_share * cost.step_time.decode_seconds(1, 1) * cost.step_time.stages
    offered = known.offered if told.offered is None else told.offered
    return speculation, DraftQuality(told.kept or known.kept, offered, token_s)


def _speculation_options(cluster: Cluster, pool: PoolConfig) -> ServeOptions:
    """Who drafts for the workers of a pool, and how far; all else is as by default."""
    given = {**cluster.serve, **pool.serve}
    own = {name: value for name, value in given.items() if name.startswith("speculation")}
    return msgspec.convert(own, ServeOptions)


def _links(pool: PoolConfig, cost: WorkerCost) -> NodeLinks:
    """Ports as wide as the links that the policies reckon with, so that a transfer alone takes as
    long as they expect."""

    def width(tier: Tier) -> float:
        return cost.tiers[tier].bytes_per_s if tier in cost.tiers else inf

    return NodeLinks(
        fabric_bytes_per_s=cost.network.bytes_per_s,
        peer_bytes_per_s=pool.devices * pool_device(pool).links.device_bytes_per_s,
        host_bytes_per_s=width(Tier.HOST),
        disk_read_bytes_per_s=width(Tier.DISK),
        disk_write_bytes_per_s=width(Tier.DISK),
        remote_bytes_per_s=width(Tier.REMOTE),
    )


def _blocks(cluster: Cluster, tier: TierConfig | None, cost: WorkerCost) -> int:
    if tier is None:
        return 0
    return int(tier.capacity_bytes // cost.kv_bytes(cluster.block_size))


def _remote_bytes_per_s(remote: TierConfig | None, pools: tuple[Pool, ...]) -> float:
    """Of the shared pool: as many workers as there are may each use their way there in full."""
    if remote is None:
        return inf
    most = sum(pool.max_count for pool in pools)
    return most * pools[0].kind.cost.tiers[Tier.REMOTE].bytes_per_s


def _policies(cluster: Cluster, pools: tuple[Pool, ...]) -> Policies:
    order = eviction_order(cluster)
    # One order serves a worker's tiers; only ARC asks how large its cache is.
    capacity = max(1, *(pool.kind.host_blocks for pool in pools))
    deciding = router_policies(cluster)
    return Policies(
        routing=deciding.routing,
        admission=deciding.admission,
        dispatching=deciding.dispatching,
        eviction=lambda: order(capacity),
        planning=planning_policy(cluster),
        classes=deciding.classes,
        queue=deciding.queue,
        limits=limit_terms(cluster),
        learning=learning_of(cluster),
    )
