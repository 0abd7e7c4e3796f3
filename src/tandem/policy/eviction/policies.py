"""Eviction policies by name, and their port: which block goes when a cache is full."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.keyed_heap import KeyedHeap

Key = TypeVar("Key", bound=Hashable)


class Eviction(Protocol[Key]):
    """The order of one cache's residents. The caller owns the content and the capacity; it says
    what was inserted, touched and removed, and asks for victims. `now_ns` ages pins and never runs
    back.
    """

    def insert(self, key: Key, now_ns: int, /) -> None:
        """A key that is not resident becomes so."""
        ...

    def touch(self, key: Key, now_ns: int, /) -> None:
        """A resident was hit."""
        ...

    def remove(self, key: Key, /) -> None:
        """A resident left: as the victim last named, or for another reason than eviction."""
        ...

    def victim(self, now_ns: int, /) -> Key | None:
        """The resident to give up next, still resident until `remove`; None when there is none or
        all are pinned."""
        ...


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


class Arc(Generic[Key]):
    """Adaptive replacement cache (Megiddo and Modha, FAST 2003, figure 4): recency and frequency,
    balanced by ghost lists.

    Residents used once (T1 of the paper) and more often (T2), and the ghosts of as many that
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


Price = Callable[[Any], float]

# From the cache's capacity in keys and the price of a key.
EVICTIONS: dict[str, Callable[[int, Price], Eviction[Any]]] = {
    "lru": lambda _capacity, _price: Lru(),
    "fifo": lambda _capacity, _price: Fifo(),
    "lfu": lambda _capacity, _price: Lfu(),
    "arc": lambda capacity, _price: Arc(capacity),
    "cost": lambda _capacity, price: CostAware(price),
}


def equal_price(_key: Hashable) -> float:
    """Every block is as dear to recompute as any other."""
    return 1.0


def make_eviction(name: str, capacity: int, price: Price = equal_price) -> Eviction[Any]:
    """A new order for one cache of `capacity` keys; `price` as in `CostAware`. Raises
    `InvalidConfiguration` for a name that `EVICTIONS` does not hold."""
    builder = EVICTIONS.get(name)
    if builder is None:
        raise InvalidConfiguration(f"eviction must be one of {', '.join(EVICTIONS)}, got {name!r}")
    return builder(capacity, price)
