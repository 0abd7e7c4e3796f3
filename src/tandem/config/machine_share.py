"""What each process of a cluster gets of its machine, known before it starts and without torch: a
share of the cores, memory and GPUs of this one, if everything together fits, or resources on the
machines of a Ray cluster."""

import importlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import msgspec

from tandem.config.cluster.file import Cluster, worker_names
from tandem.config.cluster.live import on_cpu, pool_place, worker_options
from tandem.config.cluster.tiers import memory_bytes, pool_nodes
from tandem.config.cluster.workers import PoolConfig
from tandem.config.environment import MachineFacts, host_facts
from tandem.config.kv_format import layout_of, storage_of
from tandem.config.memory import (
    GATEWAY_PROCESS_BYTES,
    WORKER_PROCESS_BYTES,
    KvSizes,
    MemoryNeed,
    ModelFacts,
    adapter_bytes,
    cpu_pool_bytes,
    full_slots_bytes,
    gpu_pool_bytes,
    kv_sizes,
    model_facts,
    refused_memory,
    working_bytes,
)
from tandem.config.options import ServeOptions, parse_bytes
from tandem.facts.errors import InvalidConfiguration
from tandem.models.footprint import weight_bytes
from tandem.models.parallel import places

FEWER = ", or fewer workers on this machine"
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
        name: _worker_bundle(cluster, pool)
        for pool in cluster.pools
        for name in worker_names(pool)[: cluster.most_workers(pool)]
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


class MachineShare:
    """Of a cluster whose model lies in the folder `checkpoint`, and those of some pools in folders
    of their `own`. Where each process is `alone` on its machine, none shares its cores, memory or
    GPUs with another; one that `joins` finds the others running. Raises `InvalidConfiguration`
    where the cluster wants GPUs and there is none."""

    def __init__(
        self,
        cluster: Cluster,
        checkpoint: Path,
        own: Mapping[str, Path],
        *,
        alone: bool,
        joins: bool,
    ) -> None:
        self.cluster = cluster
        # Ray sets aside what each worker needs, wherever that is.
        self.alone = alone or on_ray(cluster)
        self.host = host_facts() if self.alone else _machine_of(cluster)
        self._checkpoint, self._own = checkpoint, own
        self._joins = joins

    @cached_property
    def models(self) -> Mapping[str, ModelFacts]:
        """By pool. Raises `InvalidConfiguration`."""
        return {
            pool.name: model_facts(self._folder(pool), worker_options(self.cluster, pool))
            for pool in self.cluster.pools
        }

    def worker_options(self, pool: PoolConfig) -> ServeOptions:
        """The options of a worker of the pool, with its part of what all of them share: threads and
        memory for KV. Raises `InvalidConfiguration`."""
        options = worker_options(self.cluster, pool)
        if self.alone:
            return placed_options(pool, options)
        changed: dict[str, object] = {}
        if not options.threads:
            ranks = self._ranks(self.cluster.pools)
            changed["threads"] = max(1, self.host.cores // max(1, ranks))
        if options.kv_cache_memory == "auto":
            pool_bytes = self._pool_bytes(options, pool)
            if pool_bytes is not None:
                changed["kv_cache_memory"] = str(pool_bytes)
        return msgspec.structs.replace(options, **changed)

    def visible_gpus(self, pool: PoolConfig, index: int) -> tuple[int, ...] | None:
        """Of the worker that is number `index` on this machine: where there are several GPUs it
        sees its own alone. None where it may see all there are."""
        count = len(self.host.gpus)
        if on_cpu(pool) or count < 2:
            return None
        first = index * pool.devices
        return tuple(sorted({(first + rank) % count for rank in range(pool.devices)}))

    def checked_memory(self) -> tuple[str, ...]:
        """The sizes that are less than was asked for, a line each for a person. Raises
        `InvalidConfiguration` when everything together does not fit into this machine."""
        if self.alone:
            return ()
        cuts: list[str] = []
        kv: dict[str, int] = {}
        for pool in self.cluster.pools:
            options = self.worker_options(pool)
            if options.kv_cache_memory != "auto":
                sizes, kv_bytes = worker_kv(self.models[pool.name], pool, options)
                cuts += [f"each worker of pool {pool.name}: {cut}" for cut in sizes.cuts]
                kv[pool.name] = kv_bytes if on_cpu(pool) else 0
        self._refuse_together(kv)
        return tuple(cuts)

    def check_more(self, workers: Mapping[str, int]) -> None:
        """Raises `InvalidConfiguration` when so many more workers of each pool do not fit into
        what those that run leave of this machine's memory."""
        if self.alone:
            return
        need, host = MemoryNeed(), self.cluster.tiers.host
        for pool in self.cluster.pools:
            if not (count := workers.get(pool.name, 0)):
                continue
            options = self.worker_options(pool)
            each = need_beside_kv(self.models[pool.name], pool, options)
            each += MemoryNeed(other=int(host.capacity_bytes) if host else 0)
            if on_cpu(pool) and options.kv_cache_memory != "auto":
                each += MemoryNeed(kv=worker_kv(self.models[pool.name], pool, options)[1])
            need += each.times(count)
        what = f"{sum(workers.values())} workers more"
        free_bytes = self.host.free_memory_bytes
        if problem := refused_memory(need, free_bytes, what=what, fewer=FEWER):
            raise InvalidConfiguration(problem)

    def _pool_bytes(self, options: ServeOptions, pool: PoolConfig) -> int | None:
        """None for a worker that has its GPUs for itself: it knows best what they hold."""
        alike = [each for each in self.cluster.pools if on_cpu(each) == on_cpu(pool)]
        if on_cpu(pool):
            model = self.models[pool.name]
            block_bytes = kv_block_bytes(model, pool, options)
            useful_bytes = full_slots_bytes(options, model.spec, block_bytes)
            pool_bytes = min(self._cpu_pool_bytes(options, pool, alike), useful_bytes)
        else:
            ranks = self._ranks(alike)
            sharing = -(-ranks // len(self.host.gpus))
            if sharing == 1:
                return None
            usable_bytes = int(options.gpu_memory_utilization * self.host.gpu_total_bytes)
            beside_bytes = self._gpu_rank_bytes(options, pool)
            pool_bytes = gpu_pool_bytes(usable_bytes, beside_bytes, sharing)
            pool_bytes *= pool.devices
        if not pool_bytes:
            raise InvalidConfiguration(
                f"pool {pool.name}: no memory is left for the KV cache beside the weights of all "
                "workers; start fewer, or set serve.kv-cache-memory"
            )
        return pool_bytes

    def _cpu_pool_bytes(
        self, options: ServeOptions, pool: PoolConfig, alike: list[PoolConfig]
    ) -> int:
        """Raises `InvalidConfiguration` when the model is too large."""
        free_bytes = self.host.free_memory_bytes
        workers = sum(self.cluster.most_workers(each) for each in alike)
        if self._joins:
            own = need_beside_kv(self.models[pool.name], pool, options).without_kv
            host = self.cluster.tiers.host
            own += int(host.capacity_bytes) if host else 0
            return cpu_pool_bytes(free_bytes, own, workers)
        self._refuse_together({})
        beside = need_beside_all_kv(self.cluster, self.models).without_kv
        for each in alike:
            memory = worker_options(self.cluster, each).kv_cache_memory
            if memory != "auto":
                count = self.cluster.most_workers(each)
                workers -= count
                beside += parse_bytes(memory, "kv-cache-memory") * count
        return cpu_pool_bytes(free_bytes, beside, workers)

    def _ranks(self, pools: Iterable[PoolConfig]) -> int:
        """Processes of all workers of these pools that may be up at once."""
        return sum(self.cluster.most_workers(each) * each.devices for each in pools)

    def _gpu_rank_bytes(self, options: ServeOptions, pool: PoolConfig) -> int:
        """Weights of a rank: its share of the model's, all of what drafts, all adapters."""
        model = self.models[pool.name]
        storage = storage_of(options, model.spec, is_cpu=False)
        ranks = places(pool.tensor_parallel, pool.pipeline_parallel)
        held = weight_bytes(model.spec, model.shapes, ranks, storage=storage, compute_bytes=2).held
        drafts = model.drafts.other_bytes(options, is_cpu=False)
        return held // len(ranks) + drafts + adapter_bytes(options, model.spec)

    def _refuse_together(self, kv: Mapping[str, int]) -> None:
        free_bytes = self.host.free_memory_bytes
        if problem := refused_together(self.cluster, self.models, kv, free_bytes):
            raise InvalidConfiguration(problem)

    def _folder(self, pool: PoolConfig) -> Path:
        return self._own.get(pool.name, self._checkpoint)


def need_beside_kv(model: ModelFacts, pool: PoolConfig, options: ServeOptions) -> MemoryNeed:
    """Of one worker of the pool, over all its ranks. What lies on a GPU is not counted. Raises
    `InvalidConfiguration`."""
    ranks = places(pool.tensor_parallel, pool.pipeline_parallel)
    processes = MemoryNeed(other=WORKER_PROCESS_BYTES * len(ranks))
    if not on_cpu(pool):
        return processes
    storage = storage_of(options, model.spec, is_cpu=True)
    context_tokens = options.max_model_len or model.spec.context_tokens
    return processes + MemoryNeed(
        weight_bytes(
            model.spec,
            model.shapes,
            ranks,
            storage=storage,
            compute_bytes=4,
            codes=model.kept_codes(options, is_cpu=True),
        ),
        working_bytes(options, model.spec, context_tokens) * len(ranks),
        other=model.drafts.other_bytes(options, is_cpu=True) * pool.tensor_parallel
        + adapter_bytes(options, model.spec),
    )


def need_beside_all_kv(cluster: Cluster, models: Mapping[str, ModelFacts]) -> MemoryNeed:
    """Of everything that the cluster has on one machine, with the `models` of its pools. Raises
    `InvalidConfiguration`."""
    others = cluster.gateways + len(pool_nodes(cluster))
    together = MemoryNeed(other=memory_bytes(cluster) + others * GATEWAY_PROCESS_BYTES)
    for pool in cluster.pools:
        each = need_beside_kv(models[pool.name], pool, worker_options(cluster, pool))
        together += each.times(cluster.most_workers(pool))
    return together


def kv_block_bytes(model: ModelFacts, pool: PoolConfig, options: ServeOptions) -> int:
    """Of a block of the model's KV, with that of its draft model."""
    is_cpu = on_cpu(pool)
    layout = layout_of(model.spec, options, is_cpu=is_cpu)
    return layout.block_bytes + model.drafts.block_bytes(options, is_cpu=is_cpu)


def worker_kv(model: ModelFacts, pool: PoolConfig, options: ServeOptions) -> tuple[KvSizes, int]:
    """The sizes of a worker whose options name its `kv_cache_memory`, and the bytes that the KV
    takes. Raises `InvalidConfiguration`."""
    block_bytes = kv_block_bytes(model, pool, options)
    pool_bytes = parse_bytes(options.kv_cache_memory, "kv-cache-memory")
    sizes = kv_sizes(options, model.spec, block_bytes, pool_bytes)
    return sizes, sizes.blocks * block_bytes


def refused_together(
    cluster: Cluster, models: Mapping[str, ModelFacts], kv: Mapping[str, int], free_bytes: int
) -> str | None:
    """Why the whole cluster does not fit into `free_bytes`; None if it does. `kv` are the bytes of
    one worker's KV, by pool."""
    need = need_beside_all_kv(cluster, models)
    kv_bytes = sum(kv.get(pool.name, 0) * cluster.most_workers(pool) for pool in cluster.pools)
    workers = sum(cluster.most_workers(pool) for pool in cluster.pools)
    parameters = " and ".join(
        dict.fromkeys(f"{models[pool.name].spec.parameters / 1e6:,.0f}M" for pool in cluster.pools)
    )
    what = f"{parameters} parameters, {workers} workers"
    return refused_memory(replace(need, kv=kv_bytes), free_bytes, what=what, fewer=FEWER)


def _machine_of(cluster: Cluster) -> MachineFacts:
    """This machine, with its GPUs where the cluster wants some."""
    wanting = [pool for pool in cluster.pools if not on_cpu(pool)]
    if not wanting:
        return host_facts()
    # Only a cluster that wants GPUs waits for torch to look for them.
    machine: MachineFacts = importlib.import_module("tandem.config.resolve").machine_facts()
    if not machine.gpus:
        raise InvalidConfiguration(
            f"pool {wanting[0].name}: device {wanting[0].device} is a GPU, and this machine has "
            "none; write device: cpu"
        )
    return machine
