"""Keys by a rank that may change, the smallest at hand: what several eviction orders stand on."""

from heapq import heapify, heappop, heappush
from typing import Generic

from tandem.policy.eviction.contract import Key

# Below this many entries it is not worth clearing out the outdated ones.
_ENTRIES_NEVER_CLEARED = 64


class KeyedHeap(Generic[Key]):
    """Equal ranks go in the order in which they were placed. Amortised O(log n) an operation.

    A key placed again leaves an outdated entry behind, dropped when it surfaces; the heap is
    rebuilt when those are the majority, so memory stays proportional to the keys.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, Key]] = []
        self._current: dict[Key, tuple[float, int]] = {}
        self._placed = 0

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, key: Key) -> bool:
        return key in self._current

    def place(self, key: Key, rank: float) -> None:
        """A new key, or a new rank for a known one; either way the youngest of its rank."""
        self._placed += 1
        self._current[key] = (rank, self._placed)
        heappush(self._entries, (rank, self._placed, key))
        if len(self._entries) > 2 * len(self._current) + _ENTRIES_NEVER_CLEARED:
            self._entries = [(rank, placed, key) for key, (rank, placed) in self._current.items()]
            heapify(self._entries)

    def discard(self, key: Key) -> None:
        self._current.pop(key, None)

    def rank(self, key: Key) -> float:
        """Raises `KeyError` for a key that is not there."""
        return self._current[key][0]

    def first(self) -> Key | None:
        """The key of the smallest rank, which stays; None when empty."""
        entries, current = self._entries, self._current
        while entries:
            rank, placed, key = entries[0]
            if current.get(key) == (rank, placed):
                return key
            heappop(entries)
        return None
