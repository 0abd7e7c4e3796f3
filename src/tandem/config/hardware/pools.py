"""From a pool of a cluster file to what its workers cost (in seconds, in blocks, in dollars), and
what a live worker of it can hold."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from tandem.cluster.router.fleet import Capacity
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import on_cpu
from tandem.config.cluster.workers import PoolConfig, TierConfig
from tandem.config.hardware.worker import (
    TimeModel,
    WorkerHardware,
    kv_blocks,
    load_device,
    worker_cost,
)
from tandem.config.options import parse_bytes
from tandem.cost.device import DeviceSpec
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.messages.cluster import Register

# Cluster files spell precisions as `tandem serve` does.
_PRECISIONS = {"auto": "bf16", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def worker_hardware(cluster: Cluster, pool: PoolConfig) -> WorkerHardware:
    """One worker of the pool. Raises `InvalidConfiguration`."""
    chosen = pool.time_model
    extra = sorted(set(chosen.parameters) - {"path"})
    if extra:
        raise InvalidConfiguration(f"pool {pool.name}: time_model knows no {extra[0]}, only path")
    source = str(chosen.parameters.get("path", ""))
    if chosen.name != "roofline" and not source:
        raise InvalidConfiguration(
            f"pool {pool.name}: time_model {chosen.name} needs a path, as "
            f"{{name: {chosen.name}, path: ...}}"
        )
    if chosen.name == "roofline" and source:
        raise InvalidConfiguration(f"pool {pool.name}: time_model roofline takes no path")
    return WorkerHardware(
        model=cluster.model_of(pool),
        device=pool.device,
        tensor_parallel=pool.tensor_parallel,
        pipeline_parallel=pool.pipeline_parallel,
        weight_precision=_PRECISIONS.get(pool.dtype, pool.dtype),
        kv_precision=_PRECISIONS.get(pool.kv_dtype, pool.kv_dtype),
        chunk_tokens=pool.max_num_batched_tokens,
        block_size=cluster.block_size,
        time_model=cast(TimeModel, chosen.name),
        tables=source if chosen.name == "tables" else "",
        profile=source if chosen.name == "profile" else "",
        memory_utilisation=pool.memory_utilization,
    )


def pool_cost(cluster: Cluster, pool: PoolConfig) -> WorkerCost:
    """Prices of one worker's work; it has the tiers that the file names, and the file's figures
    stand before those of the datasheet. Raises `InvalidConfiguration`."""
    cost = worker_cost(worker_hardware(cluster, pool))
    named = {
        Tier.HOST: cluster.tiers.host,
        Tier.DISK: cluster.tiers.disk,
        Tier.REMOTE: cluster.tiers.remote,
    }
    tiers = {
        tier: _link(cost.tiers[tier], config)
        for tier, config in named.items()
        # The shared pool keeps blocks of the cluster's model alone.
        if config is not None and not (tier is Tier.REMOTE and pool.model is not None)
    }
    network = _changed(cost.network, cluster.network.fabric_bytes_per_s, cluster.network.latency_s)
    return replace(cost, tiers=tiers, network=network)


def pool_blocks(cluster: Cluster, pool: PoolConfig) -> int:
    """KV blocks of one worker: as many as the `kv-cache-memory` that the file gives it holds, or
    else as fit on its devices. Raises `InvalidConfiguration` if the model does not fit."""
    memory = {**cluster.serve, **pool.serve}.get("kv-cache-memory", "auto")
    if memory == "auto":
        return kv_blocks(worker_hardware(cluster, pool))
    block_bytes = pool_cost(cluster, pool).kv_bytes(cluster.block_size)
    return max(1, int(parse_bytes(str(memory), "kv-cache-memory") / block_bytes))


def pool_device(pool: PoolConfig) -> DeviceSpec:
    """The pool's device, at the file's price where it names one."""
    device = load_device(pool.device)
    price = pool.price_usd_per_hour
    return device if price is None else replace(device, usd_per_hour=price)


def pool_models(cluster: Cluster) -> Mapping[str, str]:
    """The models that are not the cluster's, by pool."""
    return {pool.name: pool.model for pool in cluster.pools if pool.model is not None}


def capacity_of(cluster: Cluster) -> Callable[[Register], Capacity]:
    """What a worker can hold, as it says itself, at the prices of its pool and of the precision in
    which it stores KV. A worker of a pool that the file does not name has the first one's prices.
    Models must be shapes that are here. Raises `InvalidConfiguration` at once."""
    pools = {pool.name: priced(pool) for pool in cluster.pools}
    prices: dict[tuple[str, str], WorkerCost] = {}

    def cost(pool: str, kv_dtype: str) -> WorkerCost:
        if (pool, kv_dtype) not in prices:
            prices[pool, kv_dtype] = pool_cost(cluster, replace(pools[pool], kv_dtype=kv_dtype))
        return prices[pool, kv_dtype]

    for pool in cluster.pools:
        cost(pool.name, pool.kv_dtype)

    def capacity(register: Register) -> Capacity:
        pool = register.pool if register.pool in pools else cluster.pools[0].name
        geometry = register.export.geometry
        return Capacity(
            cost=cost(pool, geometry.dtype),
            block_size=geometry.block_size,
            block_count=register.export.block_count,
            max_sequences=register.max_sequences,
            pool=register.pool,
        )

    return capacity


def priced(pool: PoolConfig) -> PoolConfig:
    """Ranks without a device of their own share one computer, and together are as fast as one."""
    return replace(pool, tensor_parallel=1, pipeline_parallel=1) if on_cpu(pool) else pool


def _link(datasheet: LinkCost, config: TierConfig) -> LinkCost:
    return _changed(datasheet, config.bandwidth_bytes_per_s, config.latency_s)


def _changed(link: LinkCost, bytes_per_s: float | None, latency_s: float | None) -> LinkCost:
    return LinkCost(
        link.bytes_per_s if bytes_per_s is None else bytes_per_s,
        link.latency_s if latency_s is None else latency_s,
    )
