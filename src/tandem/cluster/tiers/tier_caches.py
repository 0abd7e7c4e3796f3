"""The tiers of one process: contents and eviction order of each, and the block events for
gateways."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct, structs

from tandem.cluster.audit import invariant
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.tiers.store import TierStore
from tandem.facts.blocks import BlockChanges
from tandem.facts.fair_shares import FairShares
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName, TierFigures
from tandem.messages.node import CopyBlocks, ForgetBlocks
from tandem.policy.eviction.pins_and_quotas import Pin, PinBounds, Pinned, Quota

# Pins of blocks that are still on their way: so many; the oldest of the tenant that has most is
# forgotten first.
PENDING_PINS = 4096


@dataclass(slots=True)
class Counts:
    """Since the start, in blocks but for `failures`."""

    stored: int = 0
    fetched: int = 0
    missed: int = 0
    corrupt: int = 0
    failures: int = 0


class TierCache:
    """`leaving` blocks have no place here any more; their bytes lie in the store, and are found
    there, until they have arrived further down."""

    def __init__(self, tier: Tier, config: TiersConfig, tenant_of: Callable[[bytes], str]) -> None:
        capacity = config.capacities[tier]

        def order_of(blocks: int) -> Pinned[bytes]:
            each = {name: int(share * blocks) for name, share in config.pin_shares.items()}
            bounds = PinBounds(int(blocks * config.pin_share), each)
            return Pinned(config.eviction(blocks), bounds)

        quotas = {name: int(share * capacity) for name, share in config.quotas.items()}
        self.tier = tier
        self._order: Pinned[bytes] | Quota[bytes]
        if quotas:
            self._order = Quota(capacity, order_of, tenant_of, quotas)
            self.store = TierStore(capacity, self._order, self._order.excess)
        else:
            self._order = order_of(capacity)
            self.store = TierStore(capacity, self._order)
        self.leaving: dict[bytes, None] = {}
        # What was on its way here, or away, when all was forgotten: it does not stay, and is not
        # found.
        self.unwanted: set[bytes] = set()
        self.counts = Counts()
        self._next_number = 0
        self._tenant_of = tenant_of
        self._pending_pins: dict[bytes, Pin] = {}
        self._pending_of: FairShares[bytes] = FairShares()

    def has(self, digest: bytes) -> bool:
        """Whether the store has, or is about to have, this block."""
        return digest in self.leaving or self.store.has_or_expects(digest)

    def finds(self, digest: bytes) -> bool:
        """Whether this block can be read here."""
        leaving = digest in self.leaving and digest not in self.unwanted
        return leaving or self.store.resident(digest)

    def found_leaving(self) -> tuple[bytes, ...]:
        """What is leaving and can still be read here, the one evicted first in front."""
        return tuple([digest for digest in self.leaving if digest not in self.unwanted])

    def digests(self) -> set[bytes]:
        """All that is here, on its way here, or leaving."""
        return {*self.store.listing(), *self.store.coming(), *self.leaving}

    def pin(self, digests: Sequence[bytes], pin: Pin, now_ns: int) -> None:
        """Keep these of one chain, in its order: the start first, since without it what follows is
        worth nothing. Those on their way are pinned when they come."""
        for digest in digests:
            if self.store.resident(digest):
                self._pin_resident(digest, pin, now_ns)
            else:
                tenant = self._tenant_of(digest)
                self._pending_pins[digest] = pin
                self._pending_of.add(digest, tenant)
                if len(self._pending_pins) > PENDING_PINS:
                    most = self._pending_of.gives_way(tenant) or tenant
                    self._take_pending(self._pending_of.oldest(most))

    def pin_arrived(self, digests: Iterable[bytes], now_ns: int) -> None:
        """Pin those of these that `pin` was called for while they were on their way."""
        if not self._pending_pins:
            return
        for digest in digests:
            pin = self._take_pending(digest)
            if pin is not None and self.store.resident(digest):
                self._pin_resident(digest, pin, now_ns)

    def _pin_resident(self, digest: bytes, pin: Pin, now_ns: int) -> None:
        self._order.pin(digest, replace(pin, owner=self._tenant_of(digest)), now_ns)

    def _take_pending(self, digest: bytes) -> Pin | None:
        self._pending_of.discard(digest)
        return self._pending_pins.pop(digest, None)

    def report(
        self, removed: tuple[bytes, ...], added: tuple[bytes, ...], parents: tuple[bytes, ...]
    ) -> BlockChanges:
        """The next report of this tier."""
        changes = BlockChanges(self._next_number, removed, added, parents)
        self._next_number += 1
        return changes

    def listing(self) -> tuple[tuple[bytes, ...], int]:
        """What the reports so far amount to, and the number of the next one."""
        return (*self.found_leaving(), *self.store.listing()), self._next_number

    def figures(self) -> TierFigures:
        """The figures without those of fetching, which the fetcher adds."""
        store, order = self.store, self._order
        figures = tier_figures(
            self.tier, self.counts, blocks=store.blocks, capacity_blocks=store.capacity_blocks
        )
        if isinstance(order, Quota):
            figures = structs.replace(figures, tenant_blocks=tuple(order.tenant_keys.items()))
        return figures


def tier_figures(
    tier: Tier,
    counts: Counts,
    *,
    blocks: int = 0,
    capacity_blocks: int = 0,
    on: bool = True,
    reason: str = "",
) -> TierFigures:
    """The counts of a tier, and what it holds where that is known."""
    return TierFigures(
        tier=tier,
        on=on,
        blocks=blocks,
        capacity_blocks=capacity_blocks,
        stored_blocks=counts.stored,
        fetched_blocks=counts.fetched,
        missed_blocks=counts.missed,
        corrupt_blocks=counts.corrupt,
        failures=counts.failures,
        reason=reason,
    )


class TierChanged(Struct, frozen=True):
    """Tell whoever looks for blocks: a tier began or ceased to hold some."""

    tier: Tier
    changes: BlockChanges


CacheEffect = CopyBlocks | ForgetBlocks | TierChanged
Effects = list[CacheEffect]


class TierCaches:
    """`by_tier` are the tiers that exist, fastest first. A block has a name while any of them has
    it, or expects it."""

    def __init__(self, config: TiersConfig) -> None:
        self._names: dict[bytes, BlockName] = {}
        self.by_tier = {
            tier: TierCache(tier, config, self._tenant_of)
            for tier in (Tier.HOST, Tier.DISK)
            if tier in config.capacities
        }

    @property
    def fastest(self) -> Tier | None:
        """Where new blocks go first."""
        return next(iter(self.by_tier), None)

    def tier_of(self, digest: bytes) -> Tier | None:
        """The fastest tier in which this block can be read."""
        for tier, cache in self.by_tier.items():
            if cache.finds(digest):
                return tier
        return None

    def expect(self, tier: Tier, names: Sequence[BlockName]) -> tuple[BlockName, ...]:
        """Those that should be written into `tier`: neither there nor on their way there or away.
        From now on they are on their way."""
        cache = self.by_tier[tier]
        by_digest = {name.digest: name for name in names if name.digest not in cache.leaving}
        wanted = cache.store.expect(by_digest)
        for digest in wanted:
            self._names.setdefault(digest, by_digest[digest])
        return tuple([by_digest[digest] for digest in wanted])

    def arrive(
        self, tier: Tier, names: Sequence[BlockName], digests: Iterable[bytes], now_ns: int
    ) -> tuple[Effects, tuple[BlockName, ...]]:
        """What was on its way into `tier` has ended: the store has `digests` of it now. Gives
        beside the effects what is demoted: evicted from host memory, and found there until it has
        arrived on the disk, or will not."""
        cache, arrived = self.by_tier[tier], set(digests)
        lost = [name.digest for name in names if name.digest not in arrived]
        present = [name.digest for name in names if name.digest in arrived]
        unwanted: list[bytes] = []
        if cache.unwanted:
            unwanted = [digest for digest in present if digest in cache.unwanted]
            present = [digest for digest in present if digest not in cache.unwanted]
            cache.unwanted.difference_update([name.digest for name in names])
        cache.store.give_up([*lost, *unwanted])
        stored = cache.store.store(present, now_ns)
        cache.counts.stored += len(stored.added)
        cache.pin_arrived(stored.added, now_ns)
        demoted: tuple[bytes, ...] = ()
        if tier is Tier.HOST and Tier.DISK in self.by_tier:
            # Evicted from the tail of a chain to its start: turned round they are a chain again.
            demoted = self.by_tier[Tier.DISK].store.expect(stored.evicted[::-1])
        cache.leaving.update(dict.fromkeys(demoted))
        removed = tuple([digest for digest in stored.evicted if digest not in cache.leaving])
        effects = self._changed(cache, removed, stored.added)
        out = stored.stayed_out
        # As they came: the end of the chain was turned away first.
        turned_away = [digest for digest in present if digest in out] if out else []
        gone = [
            digest for digest in (*stored.evicted, *turned_away, *unwanted) if not cache.has(digest)
        ]
        effects += _forget(cache, gone)
        self._forget_names([*lost, *gone])
        return effects, tuple(self._names[digest] for digest in demoted)

    def let_go(self, tier: Tier, digests: Sequence[bytes]) -> Effects:
        """What was leaving has arrived further down, or will not."""
        cache = self.by_tier[tier]
        found = tuple([digest for digest in digests if cache.finds(digest)])
        for digest in digests:
            del cache.leaving[digest]
        cache.unwanted.difference_update(digests)
        effects = self._changed(cache, found, ())
        effects += _forget(cache, digests)
        self._forget_names(digests)
        return effects

    def drop(self, tier: Tier, digests: Iterable[bytes]) -> Effects:
        """Blocks turned out corrupt or missing: `tier` holds them no more."""
        cache = self.by_tier[tier]
        gone = tuple(d for d in dict.fromkeys(digests) if cache.store.resident(d))
        cache.store.drop(gone)
        effects = self._changed(cache, gone, ())
        effects += _forget(cache, gone)
        self._forget_names(gone)
        return effects

    def reset(self) -> Effects:
        """Hold nothing any more; what is on its way somewhere is forgotten when it comes."""
        effects: Effects = []
        for tier, cache in self.by_tier.items():
            leaving = cache.found_leaving()
            effects += self._changed(cache, leaving, ())
            cache.unwanted.update(cache.store.coming(), leaving)
            effects += self.drop(tier, cache.store.listing())
        return effects

    def read(self, tier: Tier, digests: Sequence[bytes], now_ns: int) -> None:
        """These of one chain, in its order, are read from `tier`: they stay the longer."""
        store = self.by_tier[tier].store
        store.touch([digest for digest in digests if store.resident(digest)], now_ns)

    def pin(self, digests: Sequence[bytes], pin: Pin, now_ns: int) -> None:
        """Keep what the tiers have of this chain, or are about to have, until the pin ends."""
        for cache in self.by_tier.values():
            cache.pin([digest for digest in digests if digest in self._names], pin, now_ns)

    def figures(self) -> tuple[TierFigures, ...]:
        """What the tiers know of themselves."""
        return tuple(cache.figures() for cache in self.by_tier.values())

    def audit(self) -> None:
        """Assert that every block somewhere has a name, and that nothing else has."""
        somewhere = {digest for cache in self.by_tier.values() for digest in cache.digests()}
        invariant(somewhere == self._names.keys(), "blocks that lie somewhere have names")
        for cache in self.by_tier.values():
            fits = cache.store.blocks <= cache.store.capacity_blocks
            invariant(fits, "a tier holds no more than its capacity")
            gone = not any(cache.store.has_or_expects(digest) for digest in cache.leaving)
            invariant(gone, "what leaves a tier is not counted there any more")

    def _tenant_of(self, digest: bytes) -> str:
        return self._names[digest].tenant

    def _changed(
        self, cache: TierCache, removed: tuple[bytes, ...], added: tuple[bytes, ...]
    ) -> Effects:
        if not removed and not added:
            return []
        parents = tuple([self._names[digest].parent for digest in added])
        return [TierChanged(cache.tier, cache.report(removed, added, parents))]

    def _forget_names(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            for cache in self.by_tier.values():
                if cache.has(digest):
                    break
            else:
                self._names.pop(digest, None)


def _forget(cache: TierCache, digests: Sequence[bytes]) -> Effects:
    return [ForgetBlocks(cache.tier, tuple(digests))] if digests else []
