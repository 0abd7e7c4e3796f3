"""A heap of keys by a rank that may change, the smallest at hand: what eviction orders and fair
queues stand on.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Rank = TypeVar("Rank")
Key = TypeVar("Key", bound=Hashable)

# Below this many entries it is not worth clearing out the outdated ones.
_ENTRIES_NEVER_CLEARED = 64


class KeyedHeap(Generic[Rank, Key]):
    """Ranks are numbers, or tuples of things that compare. Equal ranks go in the order in which
    they were placed. Amortised O(log n) an operation.

    A key placed again or discarded leaves an outdated entry behind, dropped when it surfaces; the
    heap is rebuilt when those are the majority, so memory stays proportional to the keys.
    `current` is what is there, to be read only: orders of blocks ask for each block, and a
    call more would take as long as all else that they do.
    """

    __slots__ = ("_entries", "_placed", "current")

    def __init__(self) -> None:
        self._entries: list[tuple[Rank, int, Key]] = []
        self.current: dict[Key, tuple[Rank, int]] = {}
        self._placed = 0

    def __len__(self) -> int:
        return len(self.current)

    def __contains__(self, key: Key) -> bool:
        return key in self.current

    def place(self, key: Key, rank: Rank) -> None:
        """A new key, or a new rank for a known one; either way the youngest of its rank."""
        self._placed += 1
        self.current[key] = (rank, self._placed)
        heappush(self._entries, (rank, self._placed, key))
        if len(self._entries) > 2 * len(self.current) + _ENTRIES_NEVER_CLEARED:
            self._entries = [(rank, placed, key) for key, (rank, placed) in self.current.items()]
            heapify(self._entries)

    def discard(self, key: Key) -> None:
        """Nothing happens for a key that is not there."""
        self.current.pop(key, None)

    def rank(self, key: Key) -> Rank:
        """Raises `KeyError` for a key that is not there."""
        return self.current[key][0]

    def first(self) -> Key | None:
        """The key of the smallest rank, which stays; None when empty."""
        entry = self.first_entry()
        return None if entry is None else entry[1]

    def first_entry(self) -> tuple[Rank, Key] | None:
        """As `first`, with its rank."""
        entries, current = self._entries, self.current
        while entries:
            rank, placed, key = entries[0]
            if current.get(key) == (rank, placed):
                return rank, key
            heappop(entries)
        return None
