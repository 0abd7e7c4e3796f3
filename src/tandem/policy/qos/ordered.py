"""A set ordered by keys with its smallest at hand, from which anything may be removed."""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
Key = TypeVar("Key", bound=tuple[object, ...])


class Ordered(Generic[Key, Item]):
    """Keys must be unique. All operations are O(log n), amortised: what left or got another key
    stays in the heap as a ghost until it comes to the top or ghosts outnumber the rest."""

    __slots__ = ("_heap", "_keys")

    def __init__(self) -> None:
        self._heap: list[tuple[Key, Item]] = []
        self._keys: dict[Item, Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: Item) -> bool:
        return item in self._keys

    def put(self, item: Item, key: Key) -> None:
        """Add the item, or move it to another key."""
        if self._keys.get(item) == key:
            return
        self._keys[item] = key
        heappush(self._heap, (key, item))
        if len(self._heap) > 2 * len(self._keys) + 16:
            self._heap = [(key, item) for item, key in self._keys.items()]
            heapify(self._heap)

    def remove(self, item: Item) -> None:
        del self._keys[item]

    def first(self) -> tuple[Key, Item] | None:
        """The smallest key with its item; None when empty."""
        while self._heap:
            key, item = self._heap[0]
            if self._keys.get(item) == key:
                return key, item
            heappop(self._heap)
        return None
