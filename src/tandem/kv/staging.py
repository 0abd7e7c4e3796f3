"""Copies of published blocks in a narrower precision, kept for readers behind a slow link.

They lie behind the pool of the exported region, laid out as blocks of their own: headers, then
slots. A block has one slot it may lie in, which it shares with others: the last one published
stays. A slot's header tells which block of which generation it holds; whoever finds another reads
the block itself.
"""

from collections.abc import Sequence
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv_export import EncodedCopies, KvExport, KvShard
from tandem.kernels.transfer.contract import Transfer
from tandem.kv.codec import convert, is_wire_dtype
from tandem.kv.headers import Headers
from tandem.kv.layout import EncodedLayout, WireDtype
from tandem.kv.region_layout import ALIGNMENT, RegionLayout
from tandem.kv.shards import shard_layout

# Published blocks are read soon: a few of the pool at any time.
POOL_SHARE: Final = 8
FEWEST_SLOTS: Final = 64


def encoded_copies(dtype: str, block_count: int, wire: str | None) -> EncodedCopies | None:
    """What a worker whose KV is stored as `dtype` should keep for readers that want it as `wire`:
    nothing when that is the same, or None."""
    if wire is None or wire == dtype:
        return None
    return EncodedCopies(wire, min(block_count, max(FEWEST_SLOTS, block_count // POOL_SHARE)))


def exported_bytes(export: KvExport, shard: KvShard) -> int:
    """How large the region of that rank is: headers, pool, and encoded copies if there are any."""
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
    blocks: NDArray[np.int64], generations: NDArray[np.uint64], block_count: int
) -> NDArray[np.uint64]:
    """What stands in a slot's header for a generation: different for every block and generation
    (modulo 2^64), and never 0."""
    return generations * np.uint64(block_count) + blocks.astype(np.uint64) + np.uint64(1)


class EncodedBlocks:
    """Writes the copies of one rank. `memory` are all bytes of its region."""

    def __init__(
        self, memory: NDArray[np.uint8], export: KvExport, shard: KvShard, transfer: Transfer
    ) -> None:
        layouts = copies_layout(export, shard)
        assert layouts is not None
        begin, self._layout = layouts
        self._pool = pool_layout(export, shard)
        self._memory = memory
        self._begin = begin
        self._headers = Headers(memory[begin:], self._layout, transfer)

    def publish(
        self, blocks: Sequence[int], generations: Sequence[int], *, checksums: bool
    ) -> None:
        """Of two blocks that share a slot the later one stays."""
        numbers = np.array(blocks, dtype=np.int64)
        tags = tags_of(numbers, np.array(generations, dtype=np.uint64), self._pool.blocks)
        slots = slots_of(numbers, self._layout.blocks)
        latest = dict(zip(slots.tolist(), range(len(slots)), strict=True))
        self._headers.withdraw(list(latest))
        for slot, index in latest.items():
            self._encode(int(numbers[index]), slot)
        kept = [int(tags[index]) for index in latest.values()]
        self._headers.publish(list(latest), kept, checksums=checksums)

    def _encode(self, block: int, slot: int) -> None:
        stored, encoded = self._pool.layout, self._layout.layout
        start = self._pool.block_offset(block)
        rows = self._memory[start : start + stored.block_bytes].reshape(-1, stored.row_bytes)
        start = self._begin + self._layout.block_offset(slot)
        room = self._memory[start : start + encoded.block_bytes].reshape(-1, encoded.row_bytes)
        convert(rows, stored.dtype, encoded.dtype, out=room)
