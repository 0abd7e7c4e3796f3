"""In which form a cluster keeps KV, as far as the cluster file and the model's configuration say
it: the blocks' size, and what the shared pool goes by.

What the weights hold and what computes with them, only workers know: it stands in the names of
their blocks. Launchers and gateways read this, so nothing in here may import torch.
"""

from dataclasses import dataclass
from pathlib import Path

from tandem.config.cluster import Cluster
from tandem.config.cluster_live import on_cpu, worker_options
from tandem.config.hardware import BUNDLED_MODEL
from tandem.config.options import ServeOptions
from tandem.facts.blocks import NO_SALT, CacheRoot
from tandem.facts.kv_tiers import BlockFormat
from tandem.facts.model import ModelSpec
from tandem.kv.layout import KvDtype, KvLayout
from tandem.models.configuration import read_model_spec


@dataclass(frozen=True, slots=True)
class KvForm:
    """Blocks of this layout, in the pool of this `root`: the cluster's name for what it serves,
    under which no worker names a block."""

    root: CacheRoot
    layout: KvLayout

    @property
    def block_format(self) -> BlockFormat:
        return block_format(self.root, self.layout)


def block_format(root: CacheRoot, layout: KvLayout) -> BlockFormat:
    """What tells the bytes of these blocks from all others."""
    return BlockFormat(root.hash(NO_SALT), layout.block_bytes)


def kv_form(cluster: Cluster, model: str | None, directory: Path) -> KvForm:
    """As the workers that compute prompts store KV. A worker that stores it otherwise serves all
    the same, without the shared pool where its blocks have another size. `model` is as `tandem
    serve` takes it, and lies in `directory`. Raises `InvalidConfiguration`."""
    pool = next(pool for pool in cluster.pools if pool.role.prefills)
    options = worker_options(cluster, pool)
    layout = layout_of(read_model_spec(directory), options, is_cpu=on_cpu(pool))
    name = model or BUNDLED_MODEL.name
    return KvForm(CacheRoot(name, options.revision, layout.describe()), layout)


def kv_precisions(cluster: Cluster) -> tuple[str, ...]:
    """All that workers of the cluster store KV in. Raises `InvalidConfiguration`."""
    found = {_kv_dtype(worker_options(cluster, p), is_cpu=on_cpu(p)) for p in cluster.pools}
    return tuple(sorted(found))


def layout_of(spec: ModelSpec, options: ServeOptions, *, is_cpu: bool) -> KvLayout:
    """Of the blocks of a worker with these options."""
    return KvLayout(
        layers=spec.layers,
        kv_heads=spec.attention.kv_heads,
        block_size=options.block_size,
        head_dim=spec.attention.head_dim,
        dtype=_kv_dtype(options, is_cpu=is_cpu),
    )


def _kv_dtype(options: ServeOptions, *, is_cpu: bool) -> KvDtype:
    # As a worker itself resolves `auto`.
    if options.kv_cache_dtype != "auto":
        return options.kv_cache_dtype
    if is_cpu:
        return "float32"
    return "bfloat16" if options.dtype == "auto" else options.dtype
