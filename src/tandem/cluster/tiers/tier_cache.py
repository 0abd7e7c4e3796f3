"""One tier of a process: contents, eviction order, and block events for gateways."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.tiers.store import TierStore
from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Tier
from tandem.facts.kv_tiers import TierFigures
from tandem.policy.eviction.pinned import Pin, PinBounds, Pinned
from tandem.policy.eviction.quota import Quota
from tandem.policy.qos.holders import Holders

# Pins of blocks that are still on their way: so many; the oldest of the tenant that has most is
# forgotten first.
PROMISED_PINS = 4096


@dataclass(slots=True)
class Counts:
    """Since the start, in blocks but for `failures`."""

    stored: int = 0
    fetched: int = 0
    missed: int = 0
    spoilt: int = 0
    failures: int = 0


class TierCache:
    """`leaving` blocks are not found here any more, though their bytes lie in the store until they
    have arrived further down."""

    def __init__(self, tier: Tier, config: TiersConfig, tenant_of: Callable[[bytes], str]) -> None:
        capacity = config.capacities[tier]

        def order_of(blocks: int) -> Pinned[bytes]:
            each = {name: int(share * blocks) for name, share in config.pin_shares.items()}
            bounds = PinBounds(int(blocks * config.pin_share), each)
            return Pinned(config.eviction(blocks), bounds)

        quotas = {name: int(share * capacity) for name, share in config.quotas.items()}
        self.tier = tier
        self._order = Quota(capacity, order_of, tenant_of, quotas)
        self.store = TierStore(capacity, self._order, self._order.excess)
        self.leaving: dict[bytes, None] = {}
        self.counts = Counts()
        self._next_number = 0
        self._tenant_of = tenant_of
        self._promised: dict[bytes, Pin] = {}
        self._promised_to: Holders[bytes] = Holders()

    def has(self, digest: bytes) -> bool:
        """Whether the store has, or is about to have, this block."""
        return self.store.has_or_expects(digest) or digest in self.leaving

    def digests(self) -> set[bytes]:
        """All that is here, on its way here, or leaving."""
        return {*self.store.listing(), *self.store.coming(), *self.leaving}

    def pin(self, digests: Sequence[bytes], pin: Pin, now_ns: int) -> None:
        """Keep these of one chain, in its order: the start first, since without it what follows is
        worth nothing. Those on their way are pinned when they come."""
        for digest in digests:
            if self.store.resident(digest):
                self._order.pin(digest, pin, now_ns)
            else:
                tenant = self._tenant_of(digest)
                self._promised[digest] = pin
                self._promised_to.add(digest, tenant)
                if len(self._promised) > PROMISED_PINS:
                    most = self._promised_to.gives_way(tenant) or tenant
                    self._take_promise(self._promised_to.oldest(most))

    def keep_promises(self, digests: Iterable[bytes], now_ns: int) -> None:
        """These have come."""
        if not self._promised:
            return
        for digest in digests:
            pin = self._take_promise(digest)
            if pin is not None and self.store.resident(digest):
                self._order.pin(digest, pin, now_ns)

    def _take_promise(self, digest: bytes) -> Pin | None:
        self._promised_to.discard(digest)
        return self._promised.pop(digest, None)

    def report(
        self, removed: tuple[bytes, ...], added: tuple[bytes, ...], parents: tuple[bytes, ...]
    ) -> BlockChanges:
        """The next report of this tier."""
        changes = BlockChanges(self._next_number, removed, added, parents)
        self._next_number += 1
        return changes

    def listing(self) -> tuple[tuple[bytes, ...], int]:
        """What the reports so far amount to, and the number of the next one."""
        return self.store.listing(), self._next_number

    def figures(self) -> TierFigures:
        """What this tier knows of itself; whoever fetches knows the rest."""
        store = self.store
        figures = tier_figures(self.tier, self.counts, on=store.up)
        return replace(figures, blocks=store.blocks, capacity_blocks=store.capacity_blocks)


def tier_figures(tier: Tier, counts: Counts, *, on: bool, reason: str = "") -> TierFigures:
    """The counts of a tier, without what it holds."""
    return TierFigures(
        tier=tier,
        on=on,
        blocks=0,
        capacity_blocks=0,
        stored_blocks=counts.stored,
        fetched_blocks=counts.fetched,
        missed_blocks=counts.missed,
        spoilt_blocks=counts.spoilt,
        failures=counts.failures,
        reason=reason,
    )
