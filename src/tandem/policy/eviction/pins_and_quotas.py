"""Pins and quotas around an eviction order: pinned blocks stay for a while, and a tenant that has
more than its share of a cache gives up its own blocks first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic

from tandem.facts.fair_shares import FairShares
from tandem.policy.eviction.policies import Eviction, Key
from tandem.policy.keyed_heap import KeyedHeap


@dataclass(frozen=True, slots=True)
class Pin:
    """A promise to keep a block while `now_ns < until_ns`, made to `owner`. Smaller `priority` is
    more urgent."""

    until_ns: int
    priority: int = 0
    owner: str = ""


@dataclass(frozen=True, slots=True)
class PinBounds:
    """At most `together` keys are pinned, and of each owner named in `each` at most so many."""

    together: int
    each: Mapping[str, int] = field(default_factory=dict)


class Pinned(Generic[Key]):
    """Another eviction order, with pins on top: a pinned key is no victim while its pin is valid.

    At most so many keys are pinned as the bounds say, so that a cache always has something to give
    up. Where all places are taken, a more urgent pin pushes out the least urgent, oldest one; of
    equally urgent ones the owner that has most gives up its oldest, down to equal shares: nobody
    keeps the others out, however often it renews its pins. A pin ends by running out, by being
    pushed out, by `unpin` or by the key's removal; but for the last, the key then falls back into
    the wrapped order as if it were inserted now. O(log n) on top of the wrapped order, and linear
    in the owners where places are short.
    """

    def __init__(self, inner: Eviction[Key], bounds: PinBounds | int) -> None:
        self._inner = inner
        self._bounds = bounds if isinstance(bounds, PinBounds) else PinBounds(bounds)
        self._holders: FairShares[Key] = FairShares()
        self._ends: KeyedHeap[float, Key] = KeyedHeap()
        self._urgency: KeyedHeap[float, Key] = KeyedHeap()

    def pin(self, key: Key, pin: Pin, now_ns: int) -> bool:
        """Pin a resident, or change its pin. False when it has run out already, or when no place is
        left for its owner and nobody has to give way to it."""
        self._end_pins(now_ns)
        if pin.until_ns <= now_ns:
            return False
        if key not in self._ends.current:
            most = self._bounds.each.get(pin.owner)
            if most is not None and self._holders.held_by(pin.owner) >= most:
                return False
            if len(self._ends) >= self._bounds.together:
                loser = self._gives_way(pin)
                if loser is None:
                    return False
                self.unpin(loser, now_ns)
            self._inner.remove(key)
        self._ends.place(key, pin.until_ns)
        self._urgency.place(key, -pin.priority)
        self._holders.add(key, pin.owner)
        return True

    def unpin(self, key: Key, now_ns: int) -> None:
        """End a pin; nothing happens to a key without one."""
        if key in self._ends.current:
            self._forget(key)
            self._inner.insert(key, now_ns)

    def insert(self, key: Key, now_ns: int, /) -> None:
        if self._ends.current:
            self._end_pins(now_ns)
        self._inner.insert(key, now_ns)

    def touch(self, key: Key, now_ns: int, /) -> None:
        if self._ends.current:
            self._end_pins(now_ns)
        if key not in self._ends.current:
            self._inner.touch(key, now_ns)

    def remove(self, key: Key, /) -> None:
        if key in self._ends.current:
            self._forget(key)
        else:
            self._inner.remove(key)

    def victim(self, now_ns: int, /) -> Key | None:
        if self._ends.current:
            self._end_pins(now_ns)
        return self._inner.victim(now_ns)

    def _gives_way(self, pin: Pin) -> Key | None:
        """The key whose pin ends for this one."""
        least = self._urgency.first()
        if least is None:
            return None
        if self._urgency.rank(least) < -pin.priority:
            return least
        owner = self._holders.gives_way(pin.owner)
        if owner is None:
            return None
        oldest = self._holders.oldest(owner)
        return oldest if self._urgency.rank(oldest) <= -pin.priority else None

    def _forget(self, key: Key) -> None:
        self._holders.discard(key)
        self._ends.discard(key)
        self._urgency.discard(key)

    def _end_pins(self, now_ns: int) -> None:
        while (key := self._ends.first()) is not None and self._ends.rank(key) <= now_ns:
            self.unpin(key, now_ns)


class Quota(Generic[Key]):
    """The order of one cache of `capacity` keys, in which a tenant with a quota has at most
    `quotas[tenant]` of them; pins count too. `order_of` makes an order for so many keys, and one
    for each such tenant beside the common one; `tenant_of` never changes its answer for a resident.
    """

    def __init__(
        self,
        capacity: int,
        order_of: Callable[[int], Pinned[Key]],
        tenant_of: Callable[[Key], str],
        quotas: Mapping[str, int],
    ) -> None:
        self._quotas = dict(quotas)
        self._tenant_of = tenant_of
        self._common = order_of(capacity)
        self._own = {tenant: order_of(max(1, keys)) for tenant, keys in quotas.items()}
        self._keys = dict.fromkeys(quotas, 0)
        # Only a tenant whose keys grew can be beyond its quota.
        self._over: dict[str, None] = {}

    @property
    def tenant_keys(self) -> Mapping[str, int]:
        """How many keys each tenant with a quota has."""
        return self._keys

    def insert(self, key: Key, now_ns: int, /) -> None:
        self._common.insert(key, now_ns)
        tenant = self._tenant_of(key)
        if tenant in self._own:
            self._own[tenant].insert(key, now_ns)
            self._keys[tenant] += 1
            if self._keys[tenant] > self._quotas[tenant]:
                self._over[tenant] = None

    def touch(self, key: Key, now_ns: int, /) -> None:
        self._common.touch(key, now_ns)
        own = self._own.get(self._tenant_of(key))
        if own is not None:
            own.touch(key, now_ns)

    def remove(self, key: Key, /) -> None:
        self._common.remove(key)
        tenant = self._tenant_of(key)
        if tenant in self._own:
            self._own[tenant].remove(key)
            self._keys[tenant] -= 1
            if self._keys[tenant] <= self._quotas[tenant]:
                self._over.pop(tenant, None)

    def victim(self, now_ns: int, /) -> Key | None:
        return self._common.victim(now_ns)

    def excess(self, now_ns: int) -> Key | None:
        """A resident that must go though there may be room; None when every tenant keeps to its
        quota, but for what it has pinned."""
        for tenant in self._over:
            key = self._own[tenant].victim(now_ns)
            if key is not None:
                return key
        return None

    def pin(self, key: Key, pin: Pin, now_ns: int) -> bool:
        """As `Pinned.pin`; its owner is the key's tenant. Where that has a quota, there must be a
        place within it too."""
        own = self._own.get(pin.owner)
        if own is not None and not own.pin(key, pin, now_ns):
            return False
        if self._common.pin(key, pin, now_ns):
            return True
        if own is not None:
            own.unpin(key, now_ns)
        return False
