"""Which blocks were promised to stay for a while, and which of the others goes?"""

from dataclasses import dataclass
from typing import Generic

from tandem.policy.eviction.contract import Eviction, Key
from tandem.policy.eviction.keyed_heap import KeyedHeap


@dataclass(frozen=True, slots=True)
class Pin:
    """A promise to keep a block while `now_ns < until_ns`. Smaller `priority` is more urgent."""

    until_ns: int
    priority: int = 0


class Pinned(Generic[Key]):
    """Another eviction order, with pins on top: a pinned key is no victim while its pin is valid.

    At most `max_pinned` keys are pinned, so that a cache always has something to give up; a more
    urgent pin pushes out the least urgent, oldest one. A pin ends by running out, by being pushed
    out, by `unpin` or by the key's removal; but for the last, the key then falls back into the
    wrapped order as if it were inserted now. O(log n) on top of the wrapped order.
    """

    def __init__(self, inner: Eviction[Key], max_pinned: int) -> None:
        self._inner = inner
        self._max_pinned = max_pinned
        self._ends: KeyedHeap[Key] = KeyedHeap()
        self._urgency: KeyedHeap[Key] = KeyedHeap()

    def pin(self, key: Key, pin: Pin, now_ns: int) -> bool:
        """Pin a resident, or change its pin. False when it has run out already, or when no place is
        left and every pin is at least as urgent."""
        self._end_pins(now_ns)
        if pin.until_ns <= now_ns:
            return False
        if key not in self._ends:
            if len(self._ends) >= self._max_pinned:
                least = self._urgency.first()
                if least is None or self._urgency.rank(least) >= -pin.priority:
                    return False
                self.unpin(least, now_ns)
            self._inner.remove(key)
        self._ends.place(key, pin.until_ns)
        self._urgency.place(key, -pin.priority)
        return True

    def unpin(self, key: Key, now_ns: int) -> None:
        """End a pin; nothing happens to a key without one."""
        if key in self._ends:
            self._forget(key)
            self._inner.insert(key, now_ns)

    def insert(self, key: Key, now_ns: int, /) -> None:
        self._end_pins(now_ns)
        self._inner.insert(key, now_ns)

    def touch(self, key: Key, now_ns: int, /) -> None:
        self._end_pins(now_ns)
        if key not in self._ends:
            self._inner.touch(key, now_ns)

    def remove(self, key: Key, /) -> None:
        if key in self._ends:
            self._forget(key)
        else:
            self._inner.remove(key)

    def victim(self, now_ns: int, /) -> Key | None:
        self._end_pins(now_ns)
        return self._inner.victim(now_ns)

    def _forget(self, key: Key) -> None:
        self._ends.discard(key)
        self._urgency.discard(key)

    def _end_pins(self, now_ns: int) -> None:
        while (key := self._ends.first()) is not None and self._ends.rank(key) <= now_ns:
            self.unpin(key, now_ns)
