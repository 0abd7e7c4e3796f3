"""How the bytes of a KV block are laid out: one block over all layers is one contiguous span."""

from dataclasses import dataclass, replace
from typing import Literal

KvDtype = Literal["float64", "float32", "bfloat16", "float16"]
# Codes of one byte, and a scale a row: what one token has in one layer, keys or values, one head.
ScaledDtype = Literal["int8", "float8_e4m3"]
WireDtype = KvDtype | ScaledDtype

SCALE_BYTES = 4
DTYPE_BYTES: dict[KvDtype, int] = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


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
        return self.head_dim * DTYPE_BYTES[self.dtype]

    def pool_shape(self, blocks: int) -> tuple[int, int, int, int, int, int]:
        return (blocks, *self.block_shape)

    def share(self, layers: int, kv_heads: int) -> "KvLayout":
        """The layout of a rank that holds so many of this model's layers and KV heads."""
        return replace(self, layers=layers, kv_heads=kv_heads)

    def describe(self) -> bytes:
        """The canonical text of a whole model's layout, for the root of the block hash. A block's
        hash does not depend on how the model is split over ranks: describe the whole, never a
        rank's share."""
        shape = ",".join(str(extent) for extent in self.block_shape)
        return f"kv/1 layer,2,kv_head,token,head_dim [{shape}] {self.dtype}".encode()


def row_bytes(dtype: WireDtype, head_dim: int) -> int:
    if dtype == "int8" or dtype == "float8_e4m3":
        return SCALE_BYTES + head_dim
    return head_dim * DTYPE_BYTES[dtype]


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
