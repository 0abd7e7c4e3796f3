"""Which block came first, however often it was used since?"""

from collections import OrderedDict
from typing import Generic

from tandem.policy.eviction.contract import Key


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
