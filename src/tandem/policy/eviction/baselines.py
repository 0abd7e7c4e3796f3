"""Baseline eviction orders: least recently used, first in first out, least frequently used."""

from collections import OrderedDict
from typing import Generic

from tandem.policy.eviction.contract import Key
from tandem.policy.keyed_heap import KeyedHeap


class Lru(Generic[Key]):
    """Least recently used first. Every operation is O(1)."""

    def __init__(self) -> None:
        # The front is the oldest. A plain dict would scan its dead front for every victim.
        self._order: OrderedDict[Key, None] = OrderedDict()

    def insert(self, key: Key, _now_ns: int, /) -> None:
        self._order[key] = None

    def touch(self, key: Key, _now_ns: int, /) -> None:
        self._order.move_to_end(key)

    def remove(self, key: Key, /) -> None:
        del self._order[key]

    def victim(self, _now_ns: int, /) -> Key | None:
        return next(iter(self._order), None)


class Fifo(Generic[Key]):
    """First in, first out. Every operation is O(1)."""

    def __init__(self) -> None:
        self._order: OrderedDict[Key, None] = OrderedDict()

    def insert(self, key: Key, _now_ns: int, /) -> None:
        self._order[key] = None

    def touch(self, key: Key, _now_ns: int, /) -> None:
        """A hit earns nothing."""

    def remove(self, key: Key, /) -> None:
        del self._order[key]

    def victim(self, _now_ns: int, /) -> Key | None:
        return next(iter(self._order), None)


class Lfu(Generic[Key]):
    """Least frequently used first, and of those the least recently used. O(log n).

    The insertion is the first use. Uses are forgotten when a block leaves: one that comes back
    starts at 1 (in-cache LFU, which the reference hit ratios are counted with).
    """

    def __init__(self) -> None:
        self._uses: KeyedHeap[float, Key] = KeyedHeap()

    def insert(self, key: Key, _now_ns: int, /) -> None:
        self._uses.place(key, 1)

    def touch(self, key: Key, _now_ns: int, /) -> None:
        self._uses.place(key, self._uses.rank(key) + 1)

    def remove(self, key: Key, /) -> None:
        self._uses.discard(key)

    def victim(self, _now_ns: int, /) -> Key | None:
        return self._uses.first()
