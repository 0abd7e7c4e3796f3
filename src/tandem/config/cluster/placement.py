"""Resources that each process of a cluster needs on a Ray cluster, and what a cluster file must
name so that a worker can be placed on a machine nobody has seen yet."""

from collections.abc import Iterator, Mapping

import msgspec

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import on_cpu, pool_place, worker_options
from tandem.config.cluster.tiers import pool_nodes
from tandem.config.cluster.workers import PoolConfig
from tandem.config.options import ServeOptions

# One process of the shared pool: it waits for sockets and disks.
POOL_NODE_CPUS = 1.0
# Names as in Ray's own options; every other name is a resource that somebody gave to machines.
RAY_NAMES = {"num_cpus": "CPU", "num_gpus": "GPU"}


def on_ray(cluster: Cluster) -> bool:
    """Whether its workers run on the machines of a Ray cluster."""
    return cluster.launcher == "ray"


def refused_placement(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """What cannot be, each with its place in the file."""
    for pool in cluster.pools:
        if not on_ray(cluster):
            if pool.resources:
                problem = "resources choose among the machines of Ray; write launcher: ray"
                yield pool_place(cluster, pool, "resources"), f"pool {pool.name}: {problem}"
            continue
        options = worker_options(cluster, pool)
        if not on_cpu(pool):
            continue
        if not options.threads and "num_cpus" not in pool.resources:
            yield (
                pool_place(cluster, pool, "name"),
                f"pool {pool.name}: how many cores does a worker get on the machine that Ray finds "
                "for it? Write resources: {num_cpus: 8}, or serve: {threads: 8}",
            )
        if options.kv_cache_memory == "auto" and cluster.ray.placement != "strict_spread":
            yield (
                pool_place(cluster, pool, "name"),
                f"pool {pool.name}: workers that may share a machine must say how much of it they "
                "take: set serve.kv-cache-memory, or ray.placement to strict_spread",
            )


def bundles(cluster: Cluster) -> dict[str, dict[str, float]]:
    """The resources, in Ray's names, of every process that Ray is to place."""
    placed = {
        f"{pool.name}-{index}": _worker_bundle(cluster, pool)
        for pool in cluster.pools
        for index in range(cluster.most_workers(pool))
    }
    return placed | {name: {"CPU": POOL_NODE_CPUS} for name in pool_nodes(cluster)}


def placed_options(pool: PoolConfig, options: ServeOptions) -> ServeOptions:
    """A worker's options, with as many threads a rank as it gets cores. Memory that the file does
    not name the worker finds out where it runs."""
    cores = pool.resources.get("num_cpus", 0.0)
    if options.threads or not cores or not on_cpu(pool):
        return options
    return msgspec.structs.replace(options, threads=max(1, int(cores / pool.devices)))


def _worker_bundle(cluster: Cluster, pool: PoolConfig) -> dict[str, float]:
    if on_cpu(pool):
        threads = worker_options(cluster, pool).threads
        usual = {"num_cpus": float(threads * pool.devices)}
    else:
        usual = {"num_cpus": 1.0, "num_gpus": float(pool.devices)}
    return bundle({**usual, **pool.resources})


def bundle(resources: Mapping[str, float]) -> dict[str, float]:
    """As Ray calls them; what is 0 is left out."""
    return {RAY_NAMES.get(name, name): amount for name, amount in resources.items() if amount}
