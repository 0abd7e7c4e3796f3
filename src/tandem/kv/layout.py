"""How the bytes of a KV block are laid out: one block over all layers is one contiguous span."""

from dataclasses import dataclass
from typing import Literal

KvDtype = Literal["float64", "float32", "bfloat16", "float16"]

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
        return self.layers * 2 * self.kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    def pool_shape(self, blocks: int) -> tuple[int, int, int, int, int, int]:
        return (blocks, *self.block_shape)

    def describe(self) -> bytes:
        """The canonical text of this layout, for the root of the block hash: two workers may
        exchange blocks exactly when theirs are equal."""
        shape = ",".join(str(extent) for extent in self.block_shape)
        return f"kv/1 layer,2,kv_head,token,head_dim [{shape}] {self.dtype}".encode()
