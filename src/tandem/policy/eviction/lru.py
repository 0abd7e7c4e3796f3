"""Which block was not used for the longest time?"""

from collections import OrderedDict
from typing import Generic

from tandem.policy.eviction.contract import Key


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
