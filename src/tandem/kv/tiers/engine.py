"""Moves the bytes of KV blocks between the device of one worker and its slower tiers.

It does what a node machine asks for (`facts.node_messages`) and decides nothing: which blocks a
tier holds, and who may write to a block meanwhile, is the machine's business. A lane for each tier,
and one that copies sealed blocks off the device, at the lowest priority: whatever else there is to
compute goes first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from tandem.facts.fleet import Tier
from tandem.facts.kv_tiers import BlockName
from tandem.kv.region import LOWEST_PRIORITY
from tandem.kv.tiers.contract import BlockStore, DeviceBlocks
from tandem.kv.tiers.copies import LEAVING, Copy, KeepStaged, Place, Transits
from tandem.kv.tiers.device import bounce_rows
from tandem.kv.tiers.engine_config import Answers, TierCalls, TierEngineConfig, TierEvent
from tandem.kv.tiers.fetches import Fetch, FetchPart, FetchWays
from tandem.kv.tiers.lane import Lane
from tandem.kv.tiers.memory import allocated_rows
from tandem.kv.tiers.staged import StagedCopy, Staging
from tandem.messages.node import BlocksStaged

# Fastest first: what goes to a faster one is wanted soon.
_ORDER = (Tier.HOST, Tier.DISK, Tier.REMOTE)


@dataclass(frozen=True, slots=True)
class _Tier:
    place: Place
    ways: FetchWays


class TierEngine:
    """Methods are thread-safe and return at once, but `close`. Every `stage` is answered by one
    `BlocksStaged`, every `keep` and `copy` by one `BlocksKept` and every `fetch` by one
    `BlocksFetched`, from threads of the engine, until `close`. `stores` belong to the engine from
    now on, each is called from its lane's thread alone."""

    def __init__(
        self,
        device: DeviceBlocks,
        stores: Mapping[Tier, BlockStore],
        config: TierEngineConfig,
        calls: TierCalls,
    ) -> None:
        """Raises `MemoryError` or `OSError` where there is no memory to stage blocks in."""
        size, pinned = device.block_bytes, config.pinned
        self._device = device
        self._config = config
        self._calls = calls
        self._answers = Answers(calls.told)
        self._piece_blocks = config.blocks_of(config.piece_bytes, size)
        staging_blocks = config.blocks_of(config.staging_bytes, size)
        self._staging = Staging(bounce_rows(staging_blocks, size, pinned=pinned))
        transit_blocks = config.blocks_of(config.transit_bytes, size)
        transit = allocated_rows(transit_blocks, size)
        self._transits = Transits(transit, self._piece_blocks, self._answers)
        self._stager = Lane("staging", calls.failed, nice=LOWEST_PRIORITY)
        self._tiers = {tier: self._made(tier, store) for tier, store in stores.items()}
        self._fetches: dict[int, Fetch] = {}
        self._fetches_lock = Lock()
        for lane in self._lanes():
            lane.start()

    def stage(self, copy_id: int, blocks: Sequence[int]) -> None:
        """Copy blocks off the device; they may be overwritten meanwhile."""
        if not self._answers.expect():
            return
        staged = self._staging.claim(copy_id, len(blocks))
        if staged is None:
            self._answer_soon(BlocksStaged(copy_id, staged=False))
            return
        begin = 0

        def step() -> bool:
            nonlocal begin
            end = min(begin + self._piece_blocks, len(blocks))
            if not (staged.dropped or self._answers.closing):
                rows = self._staging.rows(staged, range(begin, end))
                self._device.read(blocks[begin:end], rows)
                begin = end
                if end < len(blocks):
                    return False
            return self._staged(copy_id, staged)

        self._stager.post(step)

    def keep(
        self, copy_id: int, tier: Tier, rows: Sequence[int], names: Sequence[BlockName]
    ) -> None:
        """Write rows of a staged copy into a tier under these names."""
        if not self._answers.expect():
            return
        copy = Copy(copy_id, tier, names)
        place, staged = self._tiers.get(tier), self._staging.find(copy_id)
        if place is None or staged is None:
            if staged:
                self._staging.done(staged)
            copy.problem = "no such tier" if place is None else "nothing is staged"
            self._answer_soon(copy.report())
            return
        keeping = KeepStaged(copy, staged, rows, self._piece_blocks)
        store = place.place.store
        place.place.lane.post(lambda: keeping.step(store, self._staging, self._answers))

    def drop(self, copy_id: int) -> None:
        """Nothing more is kept of a staged copy; unknown ones are dropped already."""
        self._staging.drop(copy_id)

    def copy(self, copy_id: int, source: Tier, target: Tier, names: Sequence[BlockName]) -> None:
        """Copy blocks from one tier to another."""
        assert source is not target
        if not self._answers.expect():
            return
        copy = Copy(copy_id, target, names)
        origin, place = self._tiers.get(source), self._tiers.get(target)
        if origin is None or place is None:
            copy.problem = "no such tier"
            self._answer_soon(copy.report())
            return
        urgent = _ORDER.index(target) < _ORDER.index(source)
        self._transits.begin(copy, origin.place, place.place, urgent=urgent)

    def forget(self, tier: Tier, digests: Sequence[bytes]) -> None:
        """A tier holds these no more, after whatever was asked of it before."""
        if tier not in self._tiers:
            return
        place = self._tiers[tier].place

        def step() -> bool:
            place.store.forget(digests)
            return True

        place.lane.post(step)

    def fetch(
        self,
        fetch_id: int,
        tiers: Sequence[Tier],
        names: Sequence[BlockName],
        target_blocks: Sequence[int],
    ) -> None:
        """Read `names[i]` from `tiers[i]` into block `target_blocks[i]`, checked."""
        assert len(tiers) == len(names) == len(target_blocks)
        if not self._answers.expect():
            return
        fetch = Fetch(fetch_id, names, target_blocks, limit=len(names))
        indices: dict[Tier, list[int]] = {}
        for index, tier in enumerate(tiers):
            if tier not in self._tiers:
                fetch.limit = index
                fetch.problem = f"there is no {tier} tier"
                break
            indices.setdefault(tier, []).append(index)
        fetch.parts = max(1, len(indices))
        with self._fetches_lock:
            assert fetch_id not in self._fetches
            self._fetches[fetch_id] = fetch
        # Others may still have orders for what these blocks held before.
        self._device.withdraw(target_blocks)
        for tier, some in indices.items():
            part = FetchPart(fetch, some, self._tiers[tier].ways)
            self._tiers[tier].place.lane.post(part, urgent=True)
        if not indices:
            self._stager.post(lambda: self._fetched(fetch), urgent=True)

    def end_fetch(self, fetch_id: int) -> None:
        """End it soon, come or not; unknown ones have ended already."""
        with self._fetches_lock:
            fetch = self._fetches.get(fetch_id)
        if fetch:
            fetch.stop("stopped")

    def close(self) -> None:
        """End all that is under way, all threads and stores, in bounded time; nobody is called
        afterwards."""
        self._answers.refuse()
        with self._fetches_lock:
            fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.stop(LEAVING)
        self._answers.close(self._config.close_s)
        for lane in self._lanes():
            lane.close()
        for tier in self._tiers.values():
            if tier.place.lane.join(self._config.close_s):
                tier.place.store.close()
        self._stager.join(self._config.close_s)

    def _made(self, tier: Tier, store: BlockStore) -> _Tier:
        device, config = self._device, self._config
        piece = config.blocks_of(config.fetch_piece_bytes, device.block_bytes)
        bounce = None
        if device.rows is None:
            bounce = bounce_rows(piece, device.block_bytes, pinned=config.pinned)
        ways = FetchWays(store, device, bounce, piece, self._calls.now_ns, self._fetched)
        return _Tier(Place(store, Lane(f"tier {tier}", self._calls.failed)), ways)

    def _lanes(self) -> list[Lane]:
        return [self._stager, *(tier.place.lane for tier in self._tiers.values())]

    def _staged(self, copy_id: int, staged: StagedCopy) -> bool:
        whole = not (staged.dropped or self._answers.closing)
        if not whole:
            self._staging.drop(copy_id)
        self._staging.done(staged)
        self._answers.give(BlocksStaged(copy_id, whole))
        return True

    def _answer_soon(self, event: TierEvent) -> None:
        def answer() -> bool:
            self._answers.give(event)
            return True

        self._stager.post(answer, urgent=True)

    def _fetched(self, fetch: Fetch) -> bool:
        with self._fetches_lock:
            del self._fetches[fetch.fetch_id]
        block_bytes = self._device.block_bytes
        self._answers.give(fetch.report(block_bytes, self._calls.now_ns()))
        return True
