"""Blocks that wait for their headers, so that others may read them."""

from collections import deque
from collections.abc import Sequence

from tandem.kv.headers import Headers
from tandem.kv.mover_config import MoverConfig, MoverMemory
from tandem.kv.staging import EncodedBlocks


class Publisher:
    """Works through publications in order, a few blocks a `step`."""

    def __init__(self, memory: MoverMemory, config: MoverConfig) -> None:
        layout = memory.layout
        view, transfer = memory.view, memory.transfer
        self._headers = Headers(view, layout, transfer)
        self._copies: EncodedBlocks | None = None
        if memory.export.encoded:
            self._copies = EncodedBlocks(view, memory.export, memory.shard, transfer)
        self._checksums = config.checksums
        self._blocks_a_step = max(1, config.publish_bytes // layout.layout.block_bytes)
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
        if self._copies and some:
            self._copies.publish(some, theirs, checksums=self._checksums)
        self._headers.publish(some, theirs, checksums=self._checksums)
        if len(blocks) <= step:
            return publication_id
        self._waiting.appendleft((publication_id, blocks[step:], generations[step:]))
        return None
