"""Where things lie in the memory that a worker exports: `[header table][pool]`.

Axes of a block: [layer, 2, kv_head, block_size, head_dim]. A *run* is the contiguous last two of
them, what one KV head of one layer holds of keys or values; runs are numbered in memory order.
"""

from dataclasses import dataclass

from tandem.kv.layout import EncodedLayout, KvLayout

WORD_BYTES = 8
# Neighbouring headers never share a cache line: one may be read while the next is written.
HEADER_ALIGNMENT_BYTES = 64
# A page or several on any host: the reader may have pages of another size.
ALIGNMENT = 1 << 16


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
    def header_bytes(self) -> int:
        """Of one block: its generation and a checksum a run, in 64-bit words."""
        return _rounded_up(WORD_BYTES * (1 + self.runs_per_block), HEADER_ALIGNMENT_BYTES)

    @property
    def pool_offset(self) -> int:
        return _rounded_up(self.header_bytes * self.blocks, ALIGNMENT)

    @property
    def bytes(self) -> int:
        return self.pool_offset + self.blocks * self.layout.block_bytes

    def header_offset(self, block: int) -> int:
        return block * self.header_bytes

    def block_offset(self, block: int) -> int:
        return self.pool_offset + block * self.layout.block_bytes


def _rounded_up(bytes: int, multiple: int) -> int:
    return -(-bytes // multiple) * multiple
