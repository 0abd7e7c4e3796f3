"""Contents of one shared pool process, over several tiers looked at as one: which offered blocks it
takes, where it finds asked ones, its block events, and hot-block replication."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, groupby, takewhile

from tandem.cluster.audit import invariant
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.tiers.hierarchy import TierHierarchy
from tandem.cluster.tiers.tier_caches import CacheEffect, TierChanged
from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName, placement
from tandem.messages.node import BlocksFetched, BlocksKept, CopyBlocks, ForgetBlocks
from tandem.messages.pool_node import AnswerOffer, BlocksOffered, FetchHeld


class Replicas:
    """In how many tiers each block lies, and the reports of what that amounts to."""

    def __init__(self) -> None:
        self.counts: dict[bytes, int] = {}
        self._reports = 0

    def __contains__(self, digest: bytes) -> bool:
        return digest in self.counts

    def listing(self) -> tuple[tuple[bytes, ...], int]:
        """What the reports so far amount to, and the number of the next one."""
        return tuple(self.counts), self._reports

    def changed(self, changes: BlockChanges) -> BlockChanges | None:
        """What a change of one tier means for the whole; None when nothing."""
        removed = self._removed(changes.removed)
        pairs = zip(changes.stored, changes.stored_parents, strict=True)
        new = [(digest, parent) for digest, parent in pairs if self._is_new(digest)]
        if not removed and not new:
            return None
        self._reports += 1
        stored, parents = tuple(digest for digest, _ in new), tuple(parent for _, parent in new)
        return BlockChanges(self._reports - 1, removed, stored, parents)

    def _removed(self, digests: Iterable[bytes]) -> tuple[bytes, ...]:
        removed: list[bytes] = []
        for digest in digests:
            self.counts[digest] -= 1
            if not self.counts[digest]:
                del self.counts[digest]
                removed.append(digest)
        return tuple(removed)

    def _is_new(self, digest: bytes) -> bool:
        self.counts[digest] = self.counts.get(digest, 0) + 1
        return self.counts[digest] == 1


StoreEffect = CopyBlocks | ForgetBlocks
# Effects on the stores, and the changes to be reported to gateways, in order.
Outcome = tuple[list[StoreEffect], list[BlockChanges]]


class PoolContents:
    """`replicas` is what is reported to gateways; `accepting` is false while nothing new is
    wanted."""

    def __init__(self, config: TiersConfig) -> None:
        self.hierarchy = TierHierarchy(config, count())
        self.accepting = True
        local = self.hierarchy.caches.fastest
        assert local is not None
        self._local: Tier = local
        self.replicas = Replicas()
        self._fetches: dict[int, FetchHeld] = {}

    def begin(self, now_ns: int) -> Outcome:
        """Take over what the disk holds."""
        return self._split(self.hierarchy.begin(now_ns))

    def offered(self, offer: BlocksOffered) -> AnswerOffer:
        """Blocks of several chains, each in its order."""
        held = tuple(name.digest for name in offer.names if name.digest in self.replicas)
        new = [name for name in offer.names if name.digest not in self.replicas]
        wanted = self.hierarchy.wanted(self._local, new) if self.accepting else ()
        return AnswerOffer(offer.offer_id, tuple(name.digest for name in wanted), held)

    def received(self, names: Sequence[BlockName], kept: Iterable[bytes], now_ns: int) -> Outcome:
        """Of what was wanted, the store has `kept` now, and the others will not come."""
        arrived = set(kept)
        effects: list[CacheEffect] = []
        # Eviction goes by chains: each is stored by itself, in its order.
        for _, chain in groupby(names, key=lambda name: name.first):
            blocks = tuple(chain)
            mine = [name.digest for name in blocks if name.digest in arrived]
            effects += self.hierarchy.kept(self._local, blocks, mine, now_ns)
        return self._split(effects)

    def asked(self, fetch_id: int, names: Sequence[BlockName], now_ns: int) -> FetchHeld:
        """Where the leading ones of these lie that are here; they count as read."""
        found = (self.hierarchy.caches.tier_of(name.digest) for name in names)
        tiers = tuple(tier for tier in takewhile(lambda tier: tier is not None, found) if tier)
        fetch = FetchHeld(fetch_id, tiers, tuple(names[: len(tiers)]))
        self._fetches[fetch_id] = fetch
        for tier in dict.fromkeys(tiers):
            # Blocks of one tier are touched together, as one chain.
            digests = [d.digest for d, t in zip(fetch.names, tiers, strict=True) if t is tier]
            self.hierarchy.caches.read(tier, digests, now_ns)
        if len(tiers) < len(names):
            self._count(self._local, missed=1)
        return fetch

    def find(self, names: Sequence[BlockName]) -> tuple[tuple[Tier, ...], tuple[BlockName, ...]]:
        """Those of these that are here, and in which tiers."""
        found = [(self.hierarchy.caches.tier_of(name.digest), name) for name in names]
        here = [(tier, name) for tier, name in found if tier is not None]
        return tuple(tier for tier, _ in here), tuple(name for _, name in here)

    def fetched(self, event: BlocksFetched) -> Outcome:
        """A read is over. What was not to be had where it should be is not there."""
        fetch = self._fetches.pop(event.fetch_id)
        tier_of = {n.digest: t for n, t in zip(fetch.names, fetch.tiers, strict=True)}
        for tier in dict.fromkeys(fetch.tiers):
            self._count(tier, fetched=fetch.tiers[: event.blocks].count(tier))
        effects: list[CacheEffect] = []
        for digest in (*event.corrupt, *event.missing):
            if digest in tier_of:
                tier = tier_of[digest]
                self._count(tier, corrupt=digest in event.corrupt, missed=digest in event.missing)
                effects += self.hierarchy.caches.drop(tier, (digest,))
        return self._split(effects)

    def promoted(self, names: Sequence[BlockName]) -> Outcome:
        """These are in demand: bring what is not in the fastest tier there."""
        by_tier: dict[Tier, list[BlockName]] = {}
        for name in names:
            tier = self.hierarchy.caches.tier_of(name.digest)
            if tier is not None and tier is not self._local:
                by_tier.setdefault(tier, []).append(name)
        effects: list[CacheEffect] = []
        for tier, slow in by_tier.items():
            effects += self.hierarchy.promote(tier, slow)
        return self._split(effects)

    def copied(self, event: BlocksKept, now_ns: int) -> Outcome:
        """A copy between tiers is over."""
        return self._split(self.hierarchy.copied(event, now_ns))

    def reset(self) -> Outcome:
        """Hold nothing any more."""
        return self._split(self.hierarchy.caches.reset())

    def audit(self) -> None:
        """Assert that what was reported amounts exactly to what the tiers hold."""
        self.hierarchy.audit()
        caches = self.hierarchy.caches.by_tier.values()
        counts = Counter(digest for cache in caches for digest in cache.listing()[0])
        invariant(counts == self.replicas.counts, "what was reported is what the tiers hold")

    def _count(self, tier: Tier, *, fetched: int = 0, missed: int = 0, corrupt: int = 0) -> None:
        counts = self.hierarchy.caches.by_tier[tier].counts
        counts.fetched += fetched
        counts.missed += missed
        counts.corrupt += corrupt

    def _split(self, effects: Iterable[CacheEffect]) -> Outcome:
        on_stores: list[StoreEffect] = []
        changes: list[BlockChanges] = []
        for effect in effects:
            if not isinstance(effect, TierChanged):
                on_stores.append(effect)
            elif (change := self.replicas.changed(effect.changes)) is not None:
                changes.append(change)
        return on_stores, changes


# Blocks whose reads are counted; beyond that the oldest are forgotten.
COUNTED_BLOCKS = 1 << 16


@dataclass(frozen=True, slots=True)
class HotBlocksConfig:
    """What was read `hot_reads` times within `window_ns` is copied, to so many processes that
    `replicas` have it."""

    replicas: int = 2
    hot_reads: int = 2
    window_ns: int = 60_000_000_000


@dataclass(slots=True)
class _Reads:
    since_ns: int
    count: int = 0
    sent_to: set[str] = field(default_factory=set)


class HotBlocks:
    """By digest. One copy at a time is under way to each process."""

    def __init__(self, node: str, config: HotBlocksConfig) -> None:
        self._node = node
        self._config = config
        self._reads: dict[bytes, _Reads] = {}
        self._busy: set[str] = set()

    def read(self, names: Sequence[BlockName], now_ns: int) -> list[BlockName]:
        """These were read. Gives those in demand."""
        hot = []
        for name in names:
            reads = self._reads.get(name.digest)
            if reads is None or now_ns - reads.since_ns > self._config.window_ns:
                reads = self._reads[name.digest] = _Reads(now_ns)
            reads.count += 1
            if reads.count >= self._config.hot_reads:
                hot.append(name)
        while len(self._reads) > COUNTED_BLOCKS:
            del self._reads[next(iter(self._reads))]
        return hot

    def copies(
        self, hot: Sequence[BlockName], siblings: Sequence[str]
    ) -> list[tuple[str, list[BlockName]]]:
        """To which of the other processes which of these should go now. Each gets a block once, and
        is busy until `ended`."""
        orders: dict[bytes, list[str]] = {}
        found: dict[str, list[BlockName]] = {}
        for name in hot:
            order = orders.get(name.first)
            if order is None:
                order = placement(name.first, (self._node, *siblings))[: self._config.replicas]
                orders[name.first] = order
            reads = self._reads.get(name.digest)
            for node in order:
                if reads is None or node == self._node or node in self._busy:
                    continue
                if node not in reads.sent_to:
                    reads.sent_to.add(node)
                    found.setdefault(node, []).append(name)
        self._busy.update(found)
        return list(found.items())

    def ended(self, node: str) -> None:
        """A copy to this process is over."""
        self._busy.discard(node)

    def forget(self, node: str) -> None:
        """The process is gone, with what it held."""
        for reads in self._reads.values():
            reads.sent_to.discard(node)
