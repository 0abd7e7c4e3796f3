"""Quotas of tenants in a shared cache: whoever has more than its share gives up its own blocks
first."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Generic

from tandem.policy.eviction.pinned import Pin, Pinned
from tandem.policy.eviction.policies import Key


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
        """As `Pinned.pin`, for the key's tenant: where that has a quota, there must be a place
        within it too."""
        tenant = self._tenant_of(key)
        pin, own = replace(pin, owner=tenant), self._own.get(tenant)
        if own is not None and not own.pin(key, pin, now_ns):
            return False
        if self._common.pin(key, pin, now_ns):
            return True
        if own is not None:
            own.unpin(key, now_ns)
        return False

    def keys(self, tenant: str) -> int:
        """How many keys a tenant with a quota has."""
        return self._keys[tenant]
