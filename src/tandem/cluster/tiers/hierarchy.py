"""The tier hierarchy of one process, memory above disk: what each holds, and the copies between
them.

It deals in names, never bytes, and not in where blocks come from: the caller asks what is `wanted`,
writes that into the store and reports what was `kept`.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from tandem.cluster.audit import invariant
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.tiers.tier_caches import Effects, TierCaches
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.messages.node import BlocksKept, CopyBlocks


class TierHierarchy:
    """`caches` are the contents. Copies that it orders (`CopyBlocks`) have ids from `copy_ids`, and
    their `BlocksKept` is for `copied`."""

    def __init__(self, config: TiersConfig, copy_ids: Iterator[int]) -> None:
        self.limits = config.limits
        self.caches = TierCaches(config)
        self._found = config.found
        self._copy_ids = copy_ids
        self._copies: dict[int, CopyBlocks] = {}
        # What leaves the host memory and waits for its copy, the one evicted first in front.
        self._going_down: deque[BlockName] = deque()
        # What is being brought into the fastest tier, by digest.
        self.rising: dict[bytes, None] = {}

    def begin(self, now_ns: int) -> Effects:
        """At the start: take over what the disk holds."""
        chains: dict[bytes, dict[BlockName, None]] = {}
        for name in self._found:
            # The chain that was written to last is the youngest.
            chain = chains.pop(name.first, {})
            chain[name] = None
            chains[name.first] = chain
        effects: Effects = []
        for chain in chains.values():
            wanted = self.caches.expect(Tier.DISK, tuple(chain))
            effects += self.kept(Tier.DISK, wanted, [name.digest for name in wanted], now_ns)
        self._found = ()
        return effects

    def wanted(self, tier: Tier, names: Sequence[BlockName]) -> tuple[BlockName, ...]:
        """Those that are to be written into `tier`: neither there nor on their way. From now on
        they are on their way, until `kept`."""
        return self.caches.expect(tier, names)

    def kept(
        self, tier: Tier, names: Sequence[BlockName], digests: Iterable[bytes], now_ns: int
    ) -> Effects:
        """What was `wanted` in `tier` as `names` is not on its way any more: the store has
        `digests` of it now. With no digests it is given up."""
        effects, leaving = self.caches.arrive(tier, names, digests, now_ns)
        self._going_down.extend(leaving)
        return effects + self._go_down(now_ns)

    @property
    def rising_room(self) -> int:
        """So many blocks more may be on their way into the fastest tier: never most of it."""
        target = self.caches.fastest
        capacity = 0 if target is None else self.caches.by_tier[target].store.capacity_blocks
        most = min(self.limits.copies * self.limits.copy_blocks, -(-capacity // 4))
        return max(0, most - len(self.rising))

    def promote(self, tier: Tier, names: Sequence[BlockName]) -> Effects:
        """Bring blocks from `tier` into the fastest one, as many as may be on their way at once;
        those that are there, or coming, are left out."""
        target = self.caches.fastest
        assert target is not None
        wanted = self.caches.expect(target, names[: self.rising_room])
        self.rising.update(dict.fromkeys(name.digest for name in wanted))
        return [
            self._copy(tier, target, wanted[start : start + self.limits.copy_blocks])
            for start in range(0, len(wanted), self.limits.copy_blocks)
        ]

    def owns_copy(self, copy_id: int) -> bool:
        """Whether this hierarchy ordered the copy and waits for its end."""
        return copy_id in self._copies

    def slower_tier(self, copy_id: int) -> Tier:
        """Where a copy ordered here goes to or, when it comes up, comes from: memory is not what
        fails."""
        copy = self._copies[copy_id]
        return copy.target if _goes_down(copy) else copy.source

    def copied(self, event: BlocksKept, now_ns: int) -> Effects:
        """A copy that the hierarchy ordered is over."""
        cache = self.caches.by_tier.get(self.slower_tier(event.copy_id))
        if event.problem and cache is not None:
            cache.counts.failures += 1
        copy = self._copies.pop(event.copy_id)
        digests = [name.digest for name in copy.names]
        for digest in digests:
            self.rising.pop(digest, None)
        effects = self.kept(copy.target, copy.names, event.kept, now_ns)
        if _goes_down(copy):
            effects += self.caches.let_go(copy.source, digests)
        return effects + self._go_down(now_ns)

    def audit(self) -> None:
        """Assert that whatever leaves or rises has a copy that it waits for."""
        self.caches.audit()
        under_way = [copy for copy in self._copies.values() if _goes_down(copy)]
        leaving = {name.digest for name in self._going_down}
        leaving |= {name.digest for copy in under_way for name in copy.names}
        host = self.caches.by_tier.get(Tier.HOST)
        expected = host.leaving.keys() if host is not None else set()
        invariant(leaving == expected, "what leaves the memory is being copied to the disk")
        rising = [copy for copy in self._copies.values() if not _goes_down(copy)]
        copied = {name.digest for copy in rising for name in copy.names}
        invariant(self.rising.keys() == copied, "what rises is being copied into memory")

    def _copy(self, source: Tier, target: Tier, names: tuple[BlockName, ...]) -> CopyBlocks:
        copy = CopyBlocks(next(self._copy_ids), source, target, names)
        self._copies[copy.copy_id] = copy
        return copy

    def _go_down(self, now_ns: int) -> Effects:
        """Start what may be under way at once; of what waits, keep as much again."""
        limits, effects = self.limits, Effects()
        under_way = sum(_goes_down(copy) for copy in self._copies.values())
        while self._going_down and under_way < limits.copies:
            names = self._next_down(limits.copy_blocks)
            effects.append(self._copy(Tier.HOST, Tier.DISK, names))
            under_way += 1
        excess = len(self._going_down) - limits.copies * limits.copy_blocks
        if excess > 0:
            # The ends of chains: without its begin, what is left of one would be worth nothing.
            names = tuple(self._going_down.pop() for _ in range(excess))
            given_up, _ = self.caches.arrive(Tier.DISK, names, (), now_ns)
            effects += given_up
            effects += self.caches.let_go(Tier.HOST, [name.digest for name in names])
        return effects

    def _next_down(self, blocks: int) -> tuple[BlockName, ...]:
        waiting = self._going_down
        return tuple(waiting.popleft() for _ in range(min(blocks, len(waiting))))


def _goes_down(copy: CopyBlocks) -> bool:
    return copy.source is Tier.HOST
