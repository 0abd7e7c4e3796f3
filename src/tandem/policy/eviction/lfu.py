"""Which block was used least often?"""

from typing import Generic

from tandem.policy.eviction.contract import Key
from tandem.policy.eviction.keyed_heap import KeyedHeap


class Lfu(Generic[Key]):
    """Least frequently used first, and of those the least recently used. O(log n).

    The insertion is the first use. Uses are forgotten when a block leaves: one that comes back
    starts at 1 (in-cache LFU, which the reference hit ratios are counted with).
    """

    def __init__(self) -> None:
        self._uses: KeyedHeap[Key] = KeyedHeap()

    def insert(self, key: Key, _now_ns: int, /) -> None:
        self._uses.place(key, 1)

    def touch(self, key: Key, _now_ns: int, /) -> None:
        self._uses.place(key, self._uses.rank(key) + 1)

    def remove(self, key: Key, /) -> None:
        self._uses.discard(key)

    def victim(self, _now_ns: int, /) -> Key | None:
        return self._uses.first()
