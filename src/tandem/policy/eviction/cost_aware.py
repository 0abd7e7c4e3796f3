"""Cost-aware eviction: the block goes whose recomputation is cheapest."""

from collections.abc import Callable
from typing import Generic

from tandem.policy.eviction.contract import Key
from tandem.policy.keyed_heap import KeyedHeap


class CostAware(Generic[Key]):
    """Greedy-dual with frequency (GDSF; Cherkasova, HPL-98-69R1): a block is worth its uses times
    its price, on top of a floor that rises to the worth of every victim and so ages the others.

    `price` gives the seconds to recompute a block for each byte that it holds; only ratios matter.
    With equal prices this is LFU with dynamic aging. In a prefix cache a block is of no use without
    its parent: let no parent be cheaper than its children. O(log n).
    """

    def __init__(self, price: Callable[[Key], float]) -> None:
        self._price = price
        self._worth: KeyedHeap[float, Key] = KeyedHeap()
        self._uses: dict[Key, int] = {}
        self._floor = 0.0

    def insert(self, key: Key, now_ns: int, /) -> None:
        self._uses[key] = 0
        self.touch(key, now_ns)

    def touch(self, key: Key, _now_ns: int, /) -> None:
        self._uses[key] += 1
        self._worth.place(key, self._floor + self._uses[key] * self._price(key))

    def remove(self, key: Key, /) -> None:
        del self._uses[key]
        self._worth.discard(key)

    def victim(self, _now_ns: int, /) -> Key | None:
        key = self._worth.first()
        if key is not None:
            self._floor = self._worth.rank(key)
        return key
