"""Adaptive replacement cache (Megiddo and Modha, FAST 2003): balances recency and frequency by its
ghost lists.

Megiddo and Modha, "ARC: a self-tuning, low overhead replacement cache", FAST 2003, figure 4.
"""

from collections import OrderedDict
from typing import Generic

from tandem.policy.eviction.contract import Key


class Arc(Generic[Key]):
    """Residents used once (T1 of the paper) and more often (T2), and the ghosts of as many that
    were evicted from either (B1, B2). A key that comes back while its ghost is remembered says
    which side was too small, and moves the target size of T1 (p). Every operation is O(1).

    `capacity` is that of the caller's cache, in keys. The paper evicts before it inserts and our
    callers after; so the newest key is left out where the size of T1 decides. One access at a time
    gives the paper's decisions exactly.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._recent: OrderedDict[Key, None] = OrderedDict()
        self._frequent: OrderedDict[Key, None] = OrderedDict()
        self._recent_ghosts: OrderedDict[Key, None] = OrderedDict()
        self._frequent_ghosts: OrderedDict[Key, None] = OrderedDict()
        self._recent_target = 0.0
        self._newest: Key | None = None
        self._newest_was_frequent = False
        self._named: Key | None = None

    def insert(self, key: Key, _now_ns: int, /) -> None:
        self._newest = key
        self._newest_was_frequent = key in self._frequent_ghosts
        recent_ghosts, frequent_ghosts = len(self._recent_ghosts), len(self._frequent_ghosts)
        if key in self._recent_ghosts:
            step = max(1.0, frequent_ghosts / recent_ghosts)
            self._recent_target = min(float(self._capacity), self._recent_target + step)
            del self._recent_ghosts[key]
            self._frequent[key] = None
        elif self._newest_was_frequent:
            step = max(1.0, recent_ghosts / frequent_ghosts)
            self._recent_target = max(0.0, self._recent_target - step)
            del self._frequent_ghosts[key]
            self._frequent[key] = None
        else:
            self._recent[key] = None

    def touch(self, key: Key, _now_ns: int, /) -> None:
        if key in self._recent:
            del self._recent[key]
            self._frequent[key] = None
        else:
            self._frequent.move_to_end(key)

    def remove(self, key: Key, /) -> None:
        was_recent = key in self._recent
        del (self._recent if was_recent else self._frequent)[key]
        # Only an eviction is regretted.
        if key == self._named:
            (self._recent_ghosts if was_recent else self._frequent_ghosts)[key] = None
            self._forget_ghosts()
        self._named = None

    def victim(self, _now_ns: int, /) -> Key | None:
        recent = len(self._recent) - (self._newest in self._recent)
        over = recent > self._recent_target or (
            self._newest_was_frequent and recent == self._recent_target
        )
        order = self._recent if (recent and over) or not self._frequent else self._frequent
        self._named = next(iter(order), None)
        return self._named

    def _forget_ghosts(self) -> None:
        """T1 with its ghosts is at most one cache, all four lists are at most two."""
        recent = len(self._recent) + len(self._recent_ghosts)
        if recent > self._capacity and self._recent_ghosts:
            self._recent_ghosts.popitem(last=False)
            recent -= 1
        frequent = len(self._frequent) + len(self._frequent_ghosts)
        if recent + frequent > 2 * self._capacity and self._frequent_ghosts:
            self._frequent_ghosts.popitem(last=False)
