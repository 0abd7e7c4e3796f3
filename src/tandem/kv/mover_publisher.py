"""Blocks that wait for their headers, so that others may read them."""

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.kv.headers import Headers
from tandem.kv.mover_config import MoverConfig, MoverMemory
from tandem.kv.staging import EncodedBlocks


class Publisher:
    """Works through publications in order, a few blocks a `step`.

    A block is published once under a generation. It may be asked for again, for another request
    that shares it; by the time that comes to its turn both may be gone, and the block handed to a
    third: new bytes must not go out under the old number.
    """

    def __init__(self, memory: MoverMemory, config: MoverConfig) -> None:
        layout = memory.layout
        view, transfer = memory.view, memory.transfer
        self._headers = Headers(view, layout, transfer)
        self._copies: EncodedBlocks | None = None
        if memory.export.encoded:
            self._copies = EncodedBlocks(view, memory.export, memory.shard, transfer)
        self._checksums = config.checksums
        self._blocks_a_step = max(1, config.publish_bytes // layout.layout.block_bytes)
        self._latest_B = np.zeros(layout.blocks, dtype=np.uint64)
        self._waiting: deque[tuple[int, Sequence[int], Sequence[int]]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._waiting)

    def add(self, publication_id: int, blocks: Sequence[int], generations: Sequence[int]) -> None:
        assert len(blocks) == len(generations)
        self._waiting.append((publication_id, blocks, generations))

    def step(self) -> int | None:
        """Write some headers. Gives the publication that this completed, if any."""
        publication_id, blocks, generations = self._waiting.popleft()
        step = self._blocks_a_step
        some, theirs = blocks[:step], generations[:step]
        self._publish(np.array(some, dtype=np.int64), np.array(theirs, dtype=np.uint64))
        if len(blocks) <= step:
            return publication_id
        self._waiting.appendleft((publication_id, blocks[step:], generations[step:]))
        return None

    def _publish(self, blocks: NDArray[np.int64], generations: NDArray[np.uint64]) -> None:
        new = generations > self._latest_B[blocks]
        if not new.any():
            return
        some, theirs = blocks[new].tolist(), generations[new].tolist()
        self._latest_B[some] = theirs
        if self._copies:
            self._copies.publish(some, theirs, checksums=self._checksums)
        self._headers.publish(some, theirs, checksums=self._checksums)
