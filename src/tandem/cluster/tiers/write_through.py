"""Write-through: a worker's full blocks are staged beside the device, checked once more by version,
then written to its tiers and to the shared pool (of which it remembers what it wrote and read).

A pool that is slow holds up no tier: its copies take at most half of the places, and wait in a
line of their own. A block may be overwritten while it is staged. Its version shows it: what it held
under the old one is kept, or nothing.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from tandem.cluster.audit import invariant
from tandem.cluster.tiers.benefit_gate import BenefitGate
from tandem.cluster.tiers.hierarchy import TierHierarchy
from tandem.cluster.tiers.tier_caches import CacheEffect
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.messages.node import (
    BlocksKept,
    BlocksStaged,
    DropStaged,
    KeepStaged,
    StageBlocks,
)
from tandem.messages.worker import BlocksCommitted

# So many blocks are remembered, the oldest forgotten first.
REMEMBERED_BLOCKS = 65_536
# Where blocks are written, in this order.
TIERS = (Tier.HOST, Tier.DISK, Tier.REMOTE)


class SharedContent:
    """The processes of the pool report what they hold, and take nothing twice; this only spares
    copies. Nothing is offered while the pool is not `there`."""

    def __init__(self) -> None:
        self.there = False
        self._known: dict[bytes, None] = {}
        self._expected: dict[bytes, None] = {}
        # Fetched from some tier, and not committed yet.
        self._came: dict[bytes, None] = {}

    def wanted(self, names: Sequence[BlockName]) -> tuple[BlockName, ...]:
        """Those just committed that are to be offered. From now on they are on their way, until
        `kept`."""
        if not self.there and not self._came:
            return ()
        found = []
        for name in names:
            digest = name.digest
            came = self._came.pop(digest, 0) is None
            # What had to be computed again though it was written there is probably lost.
            if not self.there or digest in self._expected or (came and digest in self._known):
                continue
            self._expected[digest] = None
            found.append(name)
        return tuple(found)

    def kept(self, names: Iterable[BlockName], digests: Iterable[bytes]) -> None:
        """These are not on their way any more; the pool has `digests` of them."""
        for name in names:
            self._expected.pop(name.digest, None)
        _remember(self._known, digests)

    def came(self, digests: Iterable[bytes], *, shared: bool) -> None:
        """These were fetched, from the pool if `shared`."""
        digests = tuple(digests)
        _remember(self._came, digests)
        if shared:
            _remember(self._known, digests)

    def lost(self, digests: Iterable[bytes]) -> None:
        """The pool does not have these."""
        for digest in digests:
            self._known.pop(digest, None)

    def lose_all(self) -> None:
        """A process of the pool is gone, with an unknown part of it."""
        self._known.clear()


def _remember(known: dict[bytes, None], digests: Iterable[bytes]) -> None:
    for digest in digests:
        known.pop(digest, None)
        known[digest] = None
    while len(known) > REMEMBERED_BLOCKS:
        del known[next(iter(known))]


Effects = list[StageBlocks | KeepStaged | DropStaged | CacheEffect]


class CommittedBlock(Struct, frozen=True):
    """The `number`th block to be copied, into `targets`, as long as it has this version."""

    number: int
    block: int
    version: int
    name: BlockName
    targets: tuple[Tier, ...]

    @property
    def for_pool(self) -> bool:
        return Tier.REMOTE in self.targets

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Of the worker's own."""
        return tuple([tier for tier in self.targets if tier is not Tier.REMOTE])


@dataclass(slots=True)
class Staging:
    """One staged copy: its rows, in the order of their numbers, and what is being written of it, by
    tier. Once it is `off_device` the blocks may be overwritten."""

    rows: tuple[CommittedBlock, ...]
    off_device: bool
    writing: dict[Tier, tuple[BlockName, ...]]

    @property
    def for_pool(self) -> bool:
        """Whether it waits for the pool, or will."""
        if self.off_device:
            return Tier.REMOTE in self.writing
        return any(row.for_pool for row in self.rows)


def _pop_first(line: deque[CommittedBlock], at_most: int) -> list[CommittedBlock]:
    return [line.popleft() for _ in range(min(at_most, len(line)))]


class WriteThrough:
    """`versions` are those of the worker's blocks as they are now. `dropped_blocks` were committed
    faster than they could be copied, or overwritten before."""

    def __init__(
        self,
        hierarchy: TierHierarchy,
        shared: SharedContent,
        versions: Sequence[int],
        copy_ids: Iterator[int],
    ) -> None:
        self.dropped_blocks = 0
        self._hierarchy = hierarchy
        self._shared = shared
        self._versions = versions
        self._copy_ids = copy_ids
        self._waiting: deque[CommittedBlock] = deque()
        self._waiting_for_pool: deque[CommittedBlock] = deque()
        self._stagings: dict[int, Staging] = {}
        # How many blocks were ever to be copied, and how many of the first are to be no more.
        self.committed_blocks = 0
        self._unwanted_blocks = 0

    def blocks_committed(
        self, event: BlocksCommitted, benefit: BenefitGate, now_ns: int
    ) -> Effects:
        """These are full from now on. What is written nowhere is not copied at all."""
        tiers: dict[bytes, tuple[Tier, ...]] = {}
        local = self._hierarchy.caches.fastest
        if local is not None and benefit.is_on(local, now_ns):
            wanted = self._hierarchy.wanted(local, event.names)
            tiers = dict.fromkeys([name.digest for name in wanted], (local,))
        for name in self._shared.wanted(event.names):
            tiers[name.digest] = (*tiers.get(name.digest, ()), Tier.REMOTE)
        for block, version, name in zip(event.blocks, event.versions, event.names, strict=True):
            targets = tiers.get(name.digest)
            if targets:
                row = CommittedBlock(self.committed_blocks, block, version, name, targets)
                self._waiting.append(row)
                self.committed_blocks += 1
        excess = self._queued_blocks - self._hierarchy.limits.queued_blocks
        lost = [(self._waiting_for_pool or self._waiting).popleft() for _ in range(excess)]
        return self._give_up(lost, now_ns) + self._stage(now_ns)

    @property
    def copied_blocks(self) -> int:
        """All of the first so many of them have left the device, wait for the pool alone, or were
        given up."""
        pool_alone = self._hierarchy.caches.fastest is None
        numbers = [
            staging.rows[0].number
            for staging in self._stagings.values()
            if not staging.off_device and (pool_alone or any(row.tiers for row in staging.rows))
        ]
        if self._waiting:
            numbers.append(self._waiting[0].number)
        return min(numbers, default=self.committed_blocks)

    def reset(self) -> None:
        """What was committed so far is not written any more, as if it had been overwritten; what
        is being written may arrive."""
        self._unwanted_blocks = self.committed_blocks

    def owns_copy(self, copy_id: int) -> bool:
        """Whether this is a staged copy."""
        return copy_id in self._stagings

    def staged(self, event: BlocksStaged, now_ns: int) -> Effects:
        """The bytes lie beside the device, of as many blocks as were not overwritten meanwhile."""
        staging = self._stagings[event.copy_id]
        staging.off_device = True
        if not event.staged:
            del self._stagings[event.copy_id]
            return self._give_up(staging.rows, now_ns) + self._stage(now_ns)
        whole: dict[Tier, list[tuple[int, BlockName]]] = {}
        overwritten: list[CommittedBlock] = []
        for index, row in enumerate(staging.rows):
            if not self._is_whole(row):
                overwritten.append(row)
                continue
            for tier in row.targets:
                whole.setdefault(tier, []).append((index, row.name))
        effects = self._give_up(overwritten, now_ns)
        for tier in sorted(whole, key=TIERS.index):
            indices, names = zip(*whole[tier], strict=True)
            staging.writing[tier] = names
            effects.append(KeepStaged(event.copy_id, tier, indices, names))
        return effects + self._end_if_written(event.copy_id, now_ns)

    def kept(self, event: BlocksKept, now_ns: int) -> Effects:
        """A staged copy has been written into one tier."""
        names = self._stagings[event.copy_id].writing.pop(event.tier)
        effects = self._ended(event.tier, names, event.kept, now_ns)
        return effects + self._end_if_written(event.copy_id, now_ns)

    def audit(self) -> None:
        """Assert that no more is under way than may be."""
        limits, staged = self._hierarchy.limits, len(self._stagings)
        invariant(staged <= limits.stagings, "no more copies are staged than may be")
        invariant(self._queued_blocks <= limits.queued_blocks, "no more blocks wait than may")
        full = staged == limits.stagings
        invariant(not self._waiting or full, "blocks wait only while all places are taken")
        full = full or not self._pool_places
        invariant(not self._waiting_for_pool or full, "blocks wait for a place of the pool's")

    @property
    def _queued_blocks(self) -> int:
        return len(self._waiting) + len(self._waiting_for_pool)

    @property
    def _pool_places(self) -> int:
        """So many more copies may be staged for the pool: half of all, where there is a tier."""
        places = self._hierarchy.limits.stagings
        if self._hierarchy.caches.fastest is not None:
            places = max(1, places // 2)
        return places - sum(each.for_pool for each in self._stagings.values())

    def _stage(self, now_ns: int) -> Effects:
        limits, effects = self._hierarchy.limits, Effects()
        while len(self._stagings) < limits.stagings:
            next_rows = self._next_rows()
            if not next_rows:
                break
            rows = tuple([row for row in next_rows if self._is_whole(row)])
            if len(rows) < len(next_rows):
                overwritten = [row for row in next_rows if not self._is_whole(row)]
                effects += self._give_up(overwritten, now_ns)
            if rows:
                copy_id = next(self._copy_ids)
                self._stagings[copy_id] = Staging(rows, False, {})
                effects.append(StageBlocks(copy_id, tuple([row.block for row in rows])))
        return effects

    def _next_rows(self) -> list[CommittedBlock]:
        """What is staged next. While the pool has no place, its part of it waits in its line, in
        the order in which it was committed."""
        copy_blocks = self._hierarchy.limits.copy_blocks
        if not self._pool_places:
            while self._waiting:
                rows = _pop_first(self._waiting, copy_blocks)
                self._waiting_for_pool.extend(
                    [replace(row, targets=(Tier.REMOTE,)) for row in rows if row.for_pool]
                )
                rows = [replace(row, targets=row.tiers) for row in rows if row.tiers]
                if rows:
                    return rows
            return []
        return _pop_first(self._waiting_for_pool or self._waiting, copy_blocks)

    def _is_whole(self, row: CommittedBlock) -> bool:
        """Whether the block holds what it is to be copied for."""
        return self._versions[row.block] == row.version and row.number >= self._unwanted_blocks

    def _end_if_written(self, copy_id: int, now_ns: int) -> Effects:
        if self._stagings[copy_id].writing:
            # The pool's place may be free, if not this one.
            return self._stage(now_ns)
        del self._stagings[copy_id]
        return [DropStaged(copy_id), *self._stage(now_ns)]

    def _give_up(self, rows: Sequence[CommittedBlock], now_ns: int) -> Effects:
        """These will be written nowhere."""
        if not rows:
            return []
        self.dropped_blocks += len(rows)
        effects: Effects = []
        for tier in TIERS:
            names = tuple(row.name for row in rows if tier in row.targets)
            if names:
                effects += self._ended(tier, names, (), now_ns)
        return effects

    def _ended(
        self, tier: Tier, names: tuple[BlockName, ...], kept: tuple[bytes, ...], now_ns: int
    ) -> Effects:
        if tier is Tier.REMOTE:
            self._shared.kept(names, kept)
            return []
        return [*self._hierarchy.kept(tier, names, kept, now_ns)]
