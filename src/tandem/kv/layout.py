"""KV layout: how the bytes of a block, of a worker's pool, and of the memory that it exports lie.

One block over all layers is one contiguous span, `[layer, 2, kv_head, block_size, head_dim]`; the
last axis of `int8` is a scale and so many codes. A *run* is the contiguous last two axes, what one
KV head of one layer holds of keys or values; runs are numbered in memory order. The memory that a
worker exports is `[metadata table][pool]`, and behind it encoded copies of some blocks, laid out
likewise, where it keeps any.
"""

from dataclasses import dataclass, replace
from typing import Final, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv import EncodedCopies, KvExport, KvGeometry, KvShard

KvDtype = Literal["float64", "float32", "bfloat16", "float16", "int8"]
# Codes of one byte, and a scale a row: what one token has in one layer, keys or values, one head.
ScaledDtype = Literal["int8", "float8_e4m3"]
WireDtype = KvDtype | ScaledDtype

SCALE_BYTES = 4
SCALED: Final[frozenset[str]] = frozenset(get_args(ScaledDtype))
FLOAT_BYTES: dict[str, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
STORED: Final[tuple[KvDtype, ...]] = get_args(KvDtype)

WORD_BYTES = 8
# Neighbouring metadata never share a cache line: one may be read while the next is written.
METADATA_ALIGNMENT_BYTES = 64
# A page or several on any host: the reader may have pages of another size.
ALIGNMENT = 1 << 16
# Encoded copies are kept of a few of the pool's blocks: exported blocks are read soon.
POOL_SHARE: Final = 8
FEWEST_SLOTS: Final = 64


@dataclass(frozen=True, slots=True)
class KvLayout:
    """A block is `[layer, 2, kv_head, block_size, head_dim]`, row-major, keys (0) before
    values (1); `block_size` counts tokens."""

    layers: int
    kv_heads: int
    block_size: int
    head_dim: int
    dtype: KvDtype

    @property
    def block_shape(self) -> tuple[int, int, int, int, int]:
        return (self.layers, 2, self.kv_heads, self.block_size, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.token_bytes

    @property
    def token_bytes(self) -> int:
        return self.layers * 2 * self.kv_heads * self.row_bytes

    @property
    def row_bytes(self) -> int:
        """Of one token in one layer, keys or values, and one head: the last axis."""
        return row_bytes(self.dtype, self.head_dim)

    def pool_shape(self, blocks: int) -> tuple[int, int, int, int, int, int]:
        """Of the pool as elements; those of codes are bytes, with the four of their scale."""
        row_elements = self.row_bytes // FLOAT_BYTES.get(self.dtype, 1)
        return (blocks, *self.block_shape[:-1], row_elements)

    def share(self, layers: int, kv_heads: int) -> "KvLayout":
        """The layout of a rank that holds so many of this model's layers and KV heads."""
        return replace(self, layers=layers, kv_heads=kv_heads)

    def describe(self) -> bytes:
        """The canonical text of a whole model's layout, for the root of the block hash. A block's
        hash does not depend on how the model is split over ranks: describe the whole, never a
        rank's share."""
        shape = ",".join(str(extent) for extent in self.block_shape)
        return f"kv/1 layer,2,kv_head,token,head_dim [{shape}] {self.dtype}".encode()


def is_wire_dtype(name: str) -> bool:
    return name in SCALED or name in FLOAT_BYTES


def row_bytes(dtype: WireDtype, head_dim: int) -> int:
    if dtype in SCALED:
        return SCALE_BYTES + head_dim
    return head_dim * FLOAT_BYTES[dtype]


@dataclass(frozen=True, slots=True)
class EncodedLayout:
    """Blocks of `stored` in another precision, the axes as they are."""

    stored: KvLayout
    dtype: WireDtype

    @property
    def layers(self) -> int:
        return self.stored.layers

    @property
    def kv_heads(self) -> int:
        return self.stored.kv_heads

    @property
    def block_size(self) -> int:
        return self.stored.block_size

    @property
    def row_bytes(self) -> int:
        return row_bytes(self.dtype, self.stored.head_dim)

    @property
    def block_bytes(self) -> int:
        return self.block_size * self.layers * 2 * self.kv_heads * self.row_bytes


@dataclass(frozen=True, slots=True)
class RegionLayout:
    """`layout` is that of the blocks this region holds: of one rank's layers and heads. Offsets
    count bytes from the region's begin; the pool begins on a page, whatever the host."""

    layout: KvLayout | EncodedLayout
    blocks: int

    @property
    def runs_per_block(self) -> int:
        return self.layout.layers * 2 * self.layout.kv_heads

    @property
    def run_bytes(self) -> int:
        return self.layout.block_size * self.layout.row_bytes

    @property
    def metadata_bytes(self) -> int:
        """Of one block: its version and a checksum a run, in 64-bit words."""
        return _rounded_up(WORD_BYTES * (1 + self.runs_per_block), METADATA_ALIGNMENT_BYTES)

    @property
    def pool_offset(self) -> int:
        return _rounded_up(self.metadata_bytes * self.blocks, ALIGNMENT)

    @property
    def bytes(self) -> int:
        return self.pool_offset + self.blocks * self.layout.block_bytes

    def block_offset(self, block: int) -> int:
        return self.pool_offset + block * self.layout.block_bytes


def _rounded_up(bytes: int, multiple: int) -> int:
    return -(-bytes // multiple) * multiple


def shard_layout(geometry: KvGeometry, shard: KvShard) -> KvLayout:
    """How the blocks of one rank are laid out. The geometry's dtype must be a known one."""
    dtype = next(known for known in STORED if known == geometry.dtype)
    return KvLayout(shard.layers, shard.heads, geometry.block_size, geometry.head_dim, dtype)


def encoded_copies(dtype: str, block_count: int, wire: str | None) -> EncodedCopies | None:
    """What a worker whose KV is stored as `dtype` should keep for readers that want it as `wire`:
    nothing when that is the same, or None."""
    if wire is None or wire == dtype:
        return None
    return EncodedCopies(wire, min(block_count, max(FEWEST_SLOTS, block_count // POOL_SHARE)))


def exported_bytes(export: KvExport, shard: KvShard) -> int:
    """How large the region of that rank is: metadata, pool, and encoded copies if there are any."""
    copies = copies_layout(export, shard)
    return pool_layout(export, shard).bytes if copies is None else copies[0] + copies[1].bytes


def pool_layout(export: KvExport, shard: KvShard) -> RegionLayout:
    return RegionLayout(shard_layout(export.geometry, shard), export.block_count)


def copies_layout(export: KvExport, shard: KvShard) -> tuple[int, RegionLayout] | None:
    """Where the encoded copies of a rank begin, and how they lie from there; None without any."""
    copies = export.encoded
    if copies is None:
        return None
    assert is_wire_dtype(copies.dtype)
    encoded = EncodedLayout(shard_layout(export.geometry, shard), cast(WireDtype, copies.dtype))
    begin = -(-pool_layout(export, shard).bytes // ALIGNMENT) * ALIGNMENT
    return begin, RegionLayout(encoded, copies.slots)


def slots_of(blocks: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    return blocks % slots


def tags_of(
    blocks: NDArray[np.int64], versions: NDArray[np.uint64], block_count: int
) -> NDArray[np.uint64]:
    """What stands in a slot's metadata for a version: different for every block and version
    (modulo 2^64), and never 0."""
    return versions * np.uint64(block_count) + blocks.astype(np.uint64) + np.uint64(1)
