"""What a live gateway decides with: its policies, and what the work of each worker costs.

A gateway process loads no model, so nothing in here may import torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.commands.cluster.policies import router_policies
from tandem.config.cluster import Cluster, PoolConfig
from tandem.config.cluster_hardware import pool_cost
from tandem.config.cluster_live import as_served, on_cpu
from tandem.cost.worker import WorkerCost
from tandem.facts.blocks import CacheRoot
from tandem.messages.cluster import Register


def router_config(
    cluster: Cluster, root: CacheRoot, block_size: int, capacities: Mapping[str, Capacity]
) -> RouterConfig:
    """Of a gateway that knows prompts by blocks of `block_size`, under `root` until workers come
    that have one; `capacities` may grow while workers join. Raises `InvalidConfiguration`."""
    policies = router_policies(as_served(cluster))
    return RouterConfig(
        block_size=block_size,
        root=root,
        capacities=capacities,
        routing=policies.routing,
        admission=policies.admission,
        dispatching=policies.dispatching,
        classes=policies.classes,
        queue=policies.queue,
        first_token=cluster.policies.first_token,
    )


def capacity_of(cluster: Cluster) -> Callable[[Register], Capacity]:
    """What a worker can hold, as it says itself, at the prices of its pool and of the precision in
    which it stores KV. A worker of a pool that the file does not name has the first one's prices.
    `cluster.model` must be a shape that is here. Raises `InvalidConfiguration` at once."""
    cluster = as_served(cluster)
    pools = {pool.name: _priced(pool) for pool in cluster.pools}
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
        )

    return capacity


def _priced(pool: PoolConfig) -> PoolConfig:
    """Ranks without a device of their own share one computer, and together are as fast as one."""
    return replace(pool, tensor_parallel=1, pipeline_parallel=1) if on_cpu(pool) else pool
