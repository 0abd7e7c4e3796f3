"""What a reader needs to know that a block is the one it was told of, and came whole.

The source alone writes headers, in its own memory and before it announces the blocks.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.transfer.contract import Transfer
from tandem.kv.region_layout import WORD_BYTES, RegionLayout

# In place of a checksum: the source computes none.
NOT_COMPUTED = 0


class Headers:
    """The header table at the begin of a region. `memory` are all bytes of the region."""

    def __init__(self, memory: NDArray[np.uint8], layout: RegionLayout, transfer: Transfer) -> None:
        assert len(memory) >= layout.bytes
        self._memory = memory
        self._layout = layout
        self._transfer = transfer
        table = memory[: layout.header_bytes * layout.blocks]
        self._words_BW = table.view("<u8").reshape(layout.blocks, -1)

    def publish(
        self,
        blocks: Sequence[int],
        generations: Sequence[int],
        *,
        checksums: bool = True,
        threads: int = 1,
    ) -> None:
        """Write the headers of blocks whose bytes are final, computing their checksums unless
        told otherwise. `generations[i]` is how often the pool has handed out `blocks[i]`."""
        assert len(blocks) == len(generations)
        rows = np.asarray(blocks, dtype=np.int64)
        assert len(rows) == 0 or (rows.min() >= 0 and rows.max() < self._layout.blocks)
        runs = self._layout.runs_per_block
        # Until its checksums are all there, a header names no generation.
        self._words_BW[rows, 0] = 0
        if checksums:
            self._words_BW[rows, 1 : 1 + runs] = self.computed(rows, threads=threads)
        else:
            self._words_BW[rows, 1 : 1 + runs] = NOT_COMPUTED
        self._words_BW[rows, 0] = np.asarray(generations, dtype=np.uint64)

    def withdraw(self, blocks: Sequence[int]) -> None:
        """Until they are published, nobody takes what these blocks hold for anything."""
        self._words_BW[np.asarray(blocks, dtype=np.int64), 0] = 0

    def computed(self, blocks: NDArray[np.int64], *, threads: int = 1) -> NDArray[np.uint64]:
        """checksums[block, run] of what the blocks hold now."""
        layout = self._layout
        starts = layout.pool_offset + blocks * layout.layout.block_bytes
        within = np.arange(layout.runs_per_block, dtype=np.int64) * layout.run_bytes
        offsets = (starts[:, None] + within).reshape(-1)
        found = self._transfer.checksum_runs(
            self._memory.ctypes.data, offsets, layout.run_bytes, threads=threads
        )
        return found.reshape(len(blocks), layout.runs_per_block)


def generation_words(memory: NDArray[np.uint8], layout: RegionLayout) -> NDArray[np.uint64]:
    """generations[block] in all bytes of a region: a view, to be read and written."""
    table = memory[: layout.header_bytes * layout.blocks]
    words_B: NDArray[np.uint64] = table.view("<u8").reshape(layout.blocks, -1)[:, 0]
    return words_B


def parse(
    raw: bytes | NDArray[np.uint8], layout: RegionLayout
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Whole headers of that layout, one after the other -> generations[n], checksums[n, run].
    Views of `raw`, which is `n * layout.header_bytes` long."""
    words_NW = np.frombuffer(raw, dtype="<u8").reshape(-1, layout.header_bytes // WORD_BYTES)
    return words_NW[:, 0], words_NW[:, 1 : 1 + layout.runs_per_block]
