"""Which blocks of a worker have become full, for whoever copies them elsewhere."""

from tandem.facts.kv_tiers import BlockName
from tandem.messages.worker import BlocksCommitted


class CommittedBlocks:
    """To be added to only where somebody `wanted` that."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._rows: list[tuple[int, int, BlockName]] = []

    def add(self, block: int, generation: int, name: BlockName) -> None:
        """The block is full and keeps what it holds under this generation."""
        self._rows.append((block, generation, name))

    def take(self) -> BlocksCommitted | None:
        """What was added since the last call; None when nothing."""
        if not self._rows:
            return None
        blocks, generations, names = zip(*self._rows, strict=True)
        self._rows = []
        return BlocksCommitted(blocks, generations, names)
