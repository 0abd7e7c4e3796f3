"""Storage formats: the precision of a model's weights, and layout and precision of its KV, as far
as options, cluster file and the model's configuration name them.

What the weights hold and what computes with them, only workers know: it is part of the names of
their blocks. Launchers and gateways read this, so nothing in here may import torch.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from tandem.config.cluster.file import Cluster
from tandem.config.cluster.live import on_cpu, worker_options
from tandem.config.environment import BUNDLED_MODEL
from tandem.config.options import ServeOptions
from tandem.facts.blocks import NO_SALT, CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.facts.model import ModelSpec
from tandem.kv.layout import KvDtype, KvLayout
from tandem.models.configuration import read_model_spec
from tandem.models.footprint import STORAGE_BYTES
from tandem.models.formats.contract import Quantization

# What `--quantization` makes of any weights.
QUANTISING = ("int8", "int4")


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Blocks of this layout, in the shared pool of this `root`: the cluster's name for what it
    serves, under which no worker names a block."""

    root: CacheRoot
    layout: KvLayout

    @property
    def block_format(self) -> BlockFormat:
        return block_format(self.root, self.layout)


def block_format(root: CacheRoot, layout: KvLayout) -> BlockFormat:
    """What tells the bytes of these blocks from all others."""
    return BlockFormat(root.hash(NO_SALT), layout.block_bytes)


def kv_format(cluster: Cluster, model: str | None, directory: Path) -> KvFormat:
    """As the workers of the cluster's model that compute prompts store KV. A worker that stores it
    otherwise serves all the same, without the shared pool where its blocks have another size.
    `model` is as `tandem serve` takes it, and lies in `directory`. Raises
    `InvalidConfiguration`."""
    pool = next(pool for pool in cluster.pools if pool.role.prefills and pool.model is None)
    options = worker_options(cluster, pool)
    layout = layout_of(read_model_spec(directory), options, is_cpu=on_cpu(pool))
    name = model or BUNDLED_MODEL.name
    return KvFormat(CacheRoot(name, options.revision, layout.describe()), layout)


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
    if options.kv_cache_dtype != "auto":
        return options.kv_cache_dtype
    if is_cpu:
        return "float32"
    return "bfloat16" if options.dtype == "auto" else options.dtype


def keeps_codes(options: ServeOptions, *, is_cpu: bool) -> bool:
    """Whether weights that a checkpoint holds as codes stay so. A GPU has no kernels for them."""
    return is_cpu and options.quantization not in (*QUANTISING, "none")


def check_method(options: ServeOptions, quantization: Quantization | None) -> None:
    """Raises `InvalidConfiguration` where the options name another method than the checkpoint
    has."""
    wanted, found = options.quantization, "none" if quantization is None else quantization.method
    if wanted not in (*QUANTISING, "auto", "none", found):
        raise InvalidConfiguration(
            f"--quantization {wanted} is not how this checkpoint is quantised, which is {found}; "
            "leave it out to take the weights as they are stored"
        )


def beside(options: ServeOptions) -> ServeOptions:
    """The same for a model that helps the served one, whose method it need not have."""
    named = options.quantization not in (*QUANTISING, "auto", "none")
    return msgspec.structs.replace(options, quantization="auto") if named else options


def storage_of(options: ServeOptions, spec: ModelSpec, *, is_cpu: bool) -> str:
    """One of `kernels.packed.Storage`, that of all weights which do not stay the codes that the
    checkpoint holds. Raises `InvalidConfiguration`."""
    if spec.weight_dtype not in STORAGE_BYTES:
        raise InvalidConfiguration(f"checkpoints in {spec.weight_dtype} are not supported")
    if options.quantization in QUANTISING:
        wanted = options.quantization
        if options.dtype != "auto":
            raise InvalidConfiguration(
                f"--quantization {wanted} and --dtype {options.dtype} exclude each other; leave "
                "one out"
            )
        if not is_cpu:
            raise InvalidConfiguration(
                f"quantization: {wanted} runs on a CPU only; use --device cpu"
            )
        return wanted
    if options.dtype != "auto":
        return options.dtype
    if not is_cpu:
        return "bfloat16"
    # The checkpoint's own precision: nothing is lost, and a 16-bit one streams half the bytes.
    return spec.weight_dtype if spec.weight_dtype in ("bfloat16", "float16") else "float32"
