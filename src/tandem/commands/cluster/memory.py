"""Do all processes that a cluster has on this machine fit into its memory together? Known before
one of them starts, and without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tandem.commands.cluster.kv_form import layout_of
from tandem.config.cluster import Cluster, PoolConfig
from tandem.config.cluster_live import gateway_options, on_cpu, worker_options
from tandem.config.cluster_tiers import memory_bytes, pool_nodes
from tandem.config.kv_sizes import KvSizes, kv_sizes
from tandem.config.memory import (
    GATEWAY_PROCESS_BYTES,
    WORKER_PROCESS_BYTES,
    MemoryNeed,
    refused_memory,
    working_bytes,
)
from tandem.config.options import ServeOptions, parse_bytes
from tandem.config.storage import storage_of
from tandem.facts.model import ModelSpec
from tandem.models.configuration import read_model_spec
from tandem.models.footprint import header_shapes, weight_bytes
from tandem.models.parallel import places

FEWER = ", or fewer workers on this machine"


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """What the files of a model say of its sizes; `shapes` are those of its tensors, by name."""

    spec: ModelSpec
    shapes: Mapping[str, tuple[int, ...]]


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
        together += each.times(pool.count)
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
    kv_bytes = sum(kv.get(pool.name, 0) * pool.count for pool in cluster.pools)
    workers = sum(pool.count for pool in cluster.pools)
    what = f"{model.spec.parameters / 1e6:,.0f}M parameters, {workers} workers"
    return refused_memory(replace(need, kv=kv_bytes), free_bytes, what=what, fewer=FEWER)
