"""Block export: which KV of which request other workers may read, reported only after the blocks'
metadata is written."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tandem.messages.node import PublishBlocks
from tandem.messages.worker import KvComputed


@dataclass(frozen=True, slots=True)
class Announcement:
    """What will be said of one request once publication `publication_id` is done."""

    publication_id: int
    tokens: int
    blocks: tuple[int, ...]
    held: bool
    generations: tuple[int, ...]


@dataclass(slots=True)
class Announced:
    """One request: `tokens` have been announced or wait in `coming` to be."""

    tokens: int = 0
    coming: deque[Announcement] = field(default_factory=deque)


class Publications:
    """Owns the publications under way. Announcements of one request keep their order."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._requests: dict[str, Announced] = {}
        # Whose announcements wait for a publication under way, and which blocks it covers.
        self._under_way: dict[int, tuple[list[str], dict[int, int]]] = {}
        # Under which generation a block's header was last written; whole blocks never change.
        self._written: dict[int, int] = {}
        self._count = 0

    @property
    def request_ids(self) -> set[str]:
        return set(self._requests)

    def add(self, computed: KvComputed) -> PublishBlocks | None:
        """KV of these has been computed further. Gives what is to be published for it."""
        publication_id = self._count
        to_write: dict[int, int] = {}
        waiting: list[str] = []
        for index, request_id in enumerate(computed.request_ids):
            row = self._row(computed, index)
            entry = self._requests.setdefault(request_id, Announced())
            if row.tokens <= entry.tokens and not row.held:
                continue
            known = entry.tokens // self.block_size
            new = zip(row.blocks[known:], row.generations[known:], strict=True)
            to_write |= {block: g for block, g in new if self._written.get(block) != g}
            entry.tokens = row.tokens
            entry.coming.append(row)
            waiting.append(request_id)
        if not waiting:
            return None
        self._count += 1
        self._under_way[publication_id] = waiting, to_write
        return PublishBlocks(publication_id, tuple(to_write), tuple(to_write.values()))

    def published(self, publication_id: int) -> list[tuple[str, Announcement]]:
        """A publication is done. Gives what may be said now, with the request's id, in order."""
        waiting, written = self._under_way.pop(publication_id)
        self._written |= written
        found = []
        for request_id in waiting:
            entry = self._requests.get(request_id)
            while entry and entry.coming and entry.coming[0].publication_id not in self._under_way:
                found.append((request_id, entry.coming.popleft()))
        return found

    def drop(self, request_id: str) -> None:
        """Nothing is to be said of this one any more."""
        self._requests.pop(request_id, None)

    def _row(self, computed: KvComputed, index: int) -> Announcement:
        tokens, held = computed.tokens[index], computed.held[index]
        if not held:
            tokens -= tokens % self.block_size
        block_count = -(-tokens // self.block_size)
        return Announcement(
            publication_id=self._count,
            tokens=tokens,
            blocks=computed.blocks[index][:block_count],
            held=held,
            generations=computed.generations[index][:block_count],
        )


def reported(announcements: Iterable[tuple[str, Announcement]]) -> KvComputed:
    """These announcements in one message."""
    rows = list(announcements)
    return KvComputed(
        request_ids=tuple(request_id for request_id, _ in rows),
        tokens=tuple(row.tokens for _, row in rows),
        blocks=tuple(row.blocks for _, row in rows),
        held=tuple(row.held for _, row in rows),
        generations=tuple(row.generations for _, row in rows),
    )
