"""Replicas: several tiers looked at as one; a block is there while any of them holds it."""

from collections.abc import Iterable

from tandem.facts.blocks import BlockChanges


class Replicas:
    """In how many tiers each block lies, and the reports of what that amounts to."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self._reports = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self.counts

    def listing(self) -> tuple[tuple[bytes, ...], int]:
        """What the reports so far amount to, and the number of the next one."""
        return tuple(self.counts), self._reports

    def changed(self, changes: BlockChanges) -> BlockChanges | None:
        """What a change of one tier means for the whole; None when nothing."""
        removed = self._removed(changes.removed)
        pairs = zip(changes.stored, changes.stored_parents, strict=True)
        new = [(digest, parent) for digest, parent in pairs if self._is_new(digest)]
        if not removed and not new:
            return None
        self._reports += 1
        stored, parents = tuple(digest for digest, _ in new), tuple(parent for _, parent in new)
        return BlockChanges(self._reports - 1, removed, stored, parents)

    def _removed(self, digests: Iterable[bytes]) -> tuple[bytes, ...]:
        removed: list[bytes] = []
        for digest in digests:
            self.counts[digest] -= 1
            if not self.counts[digest]:
                del self.counts[digest]
                removed.append(digest)
        return tuple(removed)

    def _is_new(self, digest: bytes) -> bool:
        self.counts[digest] = self.counts.get(digest, 0) + 1
        return self.counts[digest] == 1
