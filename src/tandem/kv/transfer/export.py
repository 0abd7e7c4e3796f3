"""Block export: what a worker writes beside its KV blocks before it announces them, so that a
reader knows that a block is the one that was announced, and came whole.

The metadata of a block are its version (how often the pool has handed it out) and a checksum for
each run; the source alone writes them, in its own memory. Behind the pool of the exported region
may lie encoded copies: the blocks exported last in a narrower precision, kept for readers behind a
slow link. They are laid out as blocks of their own, metadata, then slots. A block has one slot it
may lie in, which it shares with others: the last one exported stays. A slot's metadata name the
block and version it holds; whoever finds another reads the block itself.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv import KvExport, KvShard
from tandem.kernels.transfer import Transfer
from tandem.kv.codec import convert
from tandem.kv.layout import WORD_BYTES, RegionLayout, copies_layout, pool_layout, slots_of, tags_of
from tandem.kv.transfer.config import TransferConfig, TransferMemory

# In place of a checksum: the source computes none.
NOT_COMPUTED = 0


class BlockMetadata:
    """The metadata table at the begin of a region. `memory` are all bytes of the region."""

    def __init__(self, memory: NDArray[np.uint8], layout: RegionLayout, transfer: Transfer) -> None:
        assert len(memory) >= layout.bytes
        self._memory = memory
        self._layout = layout
        self._transfer = transfer
        table = memory[: layout.metadata_bytes * layout.blocks]
        self._words_BW = table.view("<u8").reshape(layout.blocks, -1)

    def write_metadata(
        self, blocks: Sequence[int], versions: Sequence[int], *, checksums: bool = True
    ) -> None:
        """Write the metadata of blocks whose bytes are final, computing their checksums where they
        are wanted. `versions[i]` is how often the pool has handed out `blocks[i]`."""
        assert len(blocks) == len(versions)
        rows = np.asarray(blocks, dtype=np.int64)
        assert len(rows) == 0 or (rows.min() >= 0 and rows.max() < self._layout.blocks)
        runs = self._layout.runs_per_block
        # Until its checksums are all there, the metadata name no version.
        self._words_BW[rows, 0] = 0
        if checksums:
            self._words_BW[rows, 1 : 1 + runs] = self.computed(rows)
        else:
            self._words_BW[rows, 1 : 1 + runs] = NOT_COMPUTED
        self._words_BW[rows, 0] = np.asarray(versions, dtype=np.uint64)

    def invalidate_blocks(self, blocks: Sequence[int]) -> None:
        """Until they are exported again, nobody takes what these blocks hold for anything."""
        self._words_BW[np.asarray(blocks, dtype=np.int64), 0] = 0

    def computed(self, blocks: NDArray[np.int64]) -> NDArray[np.uint64]:
        """checksums[block, run] of what the blocks hold now."""
        layout = self._layout
        starts = layout.pool_offset + blocks * layout.layout.block_bytes
        within = np.arange(layout.runs_per_block, dtype=np.int64) * layout.run_bytes
        offsets = (starts[:, None] + within).reshape(-1)
        found = self._transfer.checksum_runs(self._memory.ctypes.data, offsets, layout.run_bytes)
        return found.reshape(len(blocks), layout.runs_per_block)


def version_words(memory: NDArray[np.uint8], layout: RegionLayout) -> NDArray[np.uint64]:
    """versions[block] in all bytes of a region: a view, to be read and written."""
    table = memory[: layout.metadata_bytes * layout.blocks]
    words_B: NDArray[np.uint64] = table.view("<u8").reshape(layout.blocks, -1)[:, 0]
    return words_B


def parse_metadata(
    raw: bytes | NDArray[np.uint8], layout: RegionLayout
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The metadata of n blocks of that layout, one after the other -> versions[n],
    checksums[n, run]. Views of `raw`, which is `n * layout.metadata_bytes` long."""
    words_NW = np.frombuffer(raw, dtype="<u8").reshape(-1, layout.metadata_bytes // WORD_BYTES)
    return words_NW[:, 0], words_NW[:, 1 : 1 + layout.runs_per_block]


class EncodedCopyWriter:
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
        self._metadata = BlockMetadata(memory[begin:], self._layout, transfer)

    def write_copies(
        self, blocks: Sequence[int], versions: Sequence[int], *, checksums: bool
    ) -> None:
        """Of two blocks that share a slot the later one stays."""
        numbers = np.array(blocks, dtype=np.int64)
        tags = tags_of(numbers, np.array(versions, dtype=np.uint64), self._pool.blocks)
        slots = slots_of(numbers, self._layout.blocks)
        latest = dict(zip(slots.tolist(), range(len(slots)), strict=True))
        self._metadata.invalidate_blocks(list(latest))
        for slot, index in latest.items():
            self._encode(int(numbers[index]), slot)
        kept = [int(tags[index]) for index in latest.values()]
        self._metadata.write_metadata(list(latest), kept, checksums=checksums)

    def _encode(self, block: int, slot: int) -> None:
        stored, encoded = self._pool.layout, self._layout.layout
        start = self._pool.block_offset(block)
        rows = self._memory[start : start + stored.block_bytes].reshape(-1, stored.row_bytes)
        start = self._begin + self._layout.block_offset(slot)
        room = self._memory[start : start + encoded.block_bytes].reshape(-1, encoded.row_bytes)
        convert(rows, stored.dtype, encoded.dtype, out=room)


class BlockExport:
    """Exports blocks of one rank, and encoded copies of them where there are any.

    A block is exported once under a version. It may be asked for again, for another request that
    shares it; by the time that comes to its turn both may be gone, and the block handed to a third:
    new bytes must not go out under the old number.
    """

    def __init__(self, memory: TransferMemory, config: TransferConfig) -> None:
        layout = memory.layout
        view, transfer = memory.view, memory.transfer
        self._metadata = BlockMetadata(view, layout, transfer)
        self._copies: EncodedCopyWriter | None = None
        if memory.export.encoded:
            self._copies = EncodedCopyWriter(view, memory.export, memory.shard, transfer)
        self._checksums = config.checksums
        # After so many blocks the caller may look at what else is to be done.
        self.blocks_a_step = max(1, config.export_bytes // layout.layout.block_bytes)
        self._latest_B = np.zeros(layout.blocks, dtype=np.uint64)

    def write_metadata(self, blocks: Sequence[int], versions: Sequence[int]) -> None:
        """From now on these may be read: their bytes are final."""
        numbers = np.array(blocks, dtype=np.int64)
        theirs = np.array(versions, dtype=np.uint64)
        new = theirs > self._latest_B[numbers]
        if not new.any():
            return
        some, latest = numbers[new].tolist(), theirs[new].tolist()
        self._latest_B[some] = latest
        if self._copies:
            self._copies.write_copies(some, latest, checksums=self._checksums)
        self._metadata.write_metadata(some, latest, checksums=self._checksums)
