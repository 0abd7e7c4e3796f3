"""How the workers of a cluster share this machine: cores, memory and GPUs, and whether everything
together fits, known before a process starts and without torch."""

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import gateway_options, on_cpu, worker_options
from tandem.config.cluster.placement import on_ray, placed_options
from tandem.config.cluster.tiers import memory_bytes, pool_nodes
from tandem.config.cluster.workers import PoolConfig
from tandem.config.environment import HostFacts, host_facts
from tandem.config.kv_format import layout_of, storage_of
from tandem.config.memory import (
    GATEWAY_PROCESS_BYTES,
    WORKER_PROCESS_BYTES,
    KvSizes,
    MemoryNeed,
    cpu_pool_bytes,
    gpu_pool_bytes,
    kv_sizes,
    refused_memory,
    working_bytes,
)
from tandem.config.options import ServeOptions, parse_bytes
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.models.configuration import read_model_spec
from tandem.models.footprint import header_shapes, weight_bytes
from tandem.models.parallel import places

FEWER = ", or fewer workers on this machine"


@dataclass(frozen=True, slots=True)
class Gpus:
    """Those of this machine: `total_bytes` is of one."""

    count: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the files of a model say of its sizes; `shapes` are those of its tensors, by name."""

    spec: ModelSpec
    shapes: Mapping[str, tuple[int, ...]]


class MachineShare:
    """Of a cluster whose model lies in the folder `checkpoint`. Where each process is `alone` on
    its machine, none shares its cores, memory or GPUs with another; one that `joins` finds the
    others running. Raises `InvalidConfiguration` where the cluster wants GPUs and there is none."""

    def __init__(self, cluster: Cluster, checkpoint: Path, *, alone: bool, joins: bool) -> None:
        self.cluster = cluster
        self.host: HostFacts = host_facts()
        # Ray sets aside what each worker needs, wherever that is.
        self.alone = alone or on_ray(cluster)
        self._checkpoint = checkpoint
        self._joins = joins
        self._gpus = Gpus() if self.alone else _gpus(cluster)

    @cached_property
    def model_files(self) -> ModelFiles:
        """Raises `InvalidConfiguration`."""
        return read_model_files(self.cluster, self._checkpoint)

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
        if on_cpu(pool) or self._gpus.count < 2:
            return None
        first = index * pool.devices
        return tuple(sorted({(first + rank) % self._gpus.count for rank in range(pool.devices)}))

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
                sizes, kv_bytes = worker_kv(self.model_files, pool, options)
                cuts += [f"each worker of pool {pool.name}: {cut}" for cut in sizes.cuts]
                kv[pool.name] = kv_bytes if on_cpu(pool) else 0
        self._refuse_together(kv)
        return tuple(cuts)

    def _pool_bytes(self, options: ServeOptions, pool: PoolConfig) -> int | None:
        """None for a worker that has its GPUs for itself: it knows best what they hold."""
        alike = [each for each in self.cluster.pools if on_cpu(each) == on_cpu(pool)]
        if on_cpu(pool):
            pool_bytes = self._cpu_pool_bytes(options, pool, alike)
        else:
            ranks = self._ranks(alike)
            sharing = -(-ranks // self._gpus.count)
            if sharing == 1:
                return None
            usable_bytes = int(options.gpu_memory_utilization * self._gpus.total_bytes)
            weights = self._gpu_weight_bytes(options, pool)
            pool_bytes = gpu_pool_bytes(usable_bytes, weights // pool.devices, sharing)
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
            own = need_beside_kv(self.model_files, pool, options).without_kv
            host = self.cluster.tiers.host
            own += int(host.capacity_bytes) if host else 0
            return cpu_pool_bytes(free_bytes, own, workers)
        self._refuse_together({})
        beside = need_beside_all_kv(self.cluster, self.model_files).without_kv
        for each in alike:
            said = worker_options(self.cluster, each).kv_cache_memory
            if said != "auto":
                count = self.cluster.most_workers(each)
                workers -= count
                beside += parse_bytes(said, "kv-cache-memory") * count
        return cpu_pool_bytes(free_bytes, beside, workers)

    def _ranks(self, pools: Iterable[PoolConfig]) -> int:
        """Processes of all workers of these pools that may be up at once."""
        return sum(self.cluster.most_workers(each) * each.devices for each in pools)

    def _gpu_weight_bytes(self, options: ServeOptions, pool: PoolConfig) -> int:
        storage = storage_of(options, self.model_files.spec, is_cpu=False)
        ranks = places(pool.tensor_parallel, pool.pipeline_parallel)
        spec, shapes = self.model_files.spec, self.model_files.shapes
        return weight_bytes(spec, shapes, ranks, storage=storage, compute_bytes=2).held

    def _refuse_together(self, kv: Mapping[str, int]) -> None:
        free_bytes = self.host.free_memory_bytes
        if problem := refused_together(self.cluster, self.model_files, kv, free_bytes):
            raise InvalidConfiguration(problem)


def read_model_files(cluster: Cluster, checkpoint: Path) -> ModelFiles:
    """Raises `InvalidConfiguration`."""
    dummy = gateway_options(cluster, ()).load_format == "dummy"
    return ModelFiles(read_model_spec(checkpoint), {} if dummy else header_shapes(checkpoint))


def need_beside_kv(model: ModelFiles, pool: PoolConfig, options: ServeOptions) -> MemoryNeed:
    """Of one worker of the pool, over all its ranks. What lies on a GPU is not counted. Raises
    `InvalidConfiguration`."""
    ranks = places(pool.tensor_parallel, pool.pipeline_parallel)
    processes = MemoryNeed(other=WORKER_PROCESS_BYTES * len(ranks))
    if not on_cpu(pool):
        return processes
    storage = storage_of(options, model.spec, is_cpu=True)
    context_tokens = options.max_model_len or model.spec.context_tokens
    return processes + MemoryNeed(
        weight_bytes(model.spec, model.shapes, ranks, storage=storage, compute_bytes=4),
        working_bytes(options, model.spec, context_tokens) * len(ranks),
    )


def need_beside_all_kv(cluster: Cluster, model: ModelFiles) -> MemoryNeed:
    """Of everything that the cluster has on one machine. Raises `InvalidConfiguration`."""
    others = cluster.gateways + len(pool_nodes(cluster))
    together = MemoryNeed(other=memory_bytes(cluster) + others * GATEWAY_PROCESS_BYTES)
    for pool in cluster.pools:
        each = need_beside_kv(model, pool, worker_options(cluster, pool))
        together += each.times(cluster.most_workers(pool))
    return together


def worker_kv(model: ModelFiles, pool: PoolConfig, options: ServeOptions) -> tuple[KvSizes, int]:
    """The sizes of a worker whose options name its `kv_cache_memory`, and the bytes that the KV
    takes. Raises `InvalidConfiguration`."""
    layout = layout_of(model.spec, options, is_cpu=on_cpu(pool))
    pool_bytes = parse_bytes(options.kv_cache_memory, "kv-cache-memory")
    sizes = kv_sizes(options, model.spec, layout.block_bytes, pool_bytes)
    return sizes, sizes.blocks * layout.block_bytes


def refused_together(
    cluster: Cluster, model: ModelFiles, kv: Mapping[str, int], free_bytes: int
) -> str | None:
    """Why the whole cluster does not fit into `free_bytes`; None if it does. `kv` are the bytes of
    one worker's KV, by pool."""
    need = need_beside_all_kv(cluster, model)
    kv_bytes = sum(kv.get(pool.name, 0) * cluster.most_workers(pool) for pool in cluster.pools)
    workers = sum(cluster.most_workers(pool) for pool in cluster.pools)
    what = f"{model.spec.parameters / 1e6:,.0f}M parameters, {workers} workers"
    return refused_memory(replace(need, kv=kv_bytes), free_bytes, what=what, fewer=FEWER)


def _gpus(cluster: Cluster) -> Gpus:
    wanting = [pool for pool in cluster.pools if not on_cpu(pool)]
    if not wanting:
        return Gpus()
    # Only a cluster that wants GPUs waits for torch to look for them.
    machine = importlib.import_module("tandem.config.machine").machine_facts()
    if not machine.gpus:
        raise InvalidConfiguration(
            f"pool {wanting[0].name}: device {wanting[0].device} is a GPU, and this machine has "
            "none; write device: cpu"
        )
    return Gpus(len(machine.gpus), machine.gpu_total_bytes)
