"""The tier engine: moves the bytes of KV blocks between the device of one worker and its slower
tiers.

It does what a node machine asks for (`messages.node`) and decides nothing: which blocks a tier
holds, and who may write to a block meanwhile, is the machine's business. A worker thread for each
tier, and one that copies full blocks off the device, at the lowest priority: whatever else there is
to compute goes first.
"""

from collections.abc import Mapping, Sequence
from threading import Lock

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.kv.region import LOWEST_PRIORITY
from tandem.kv.threads import StepThread
from tandem.kv.tiers.contract import (
    Answers,
    BlockStore,
    DeviceBlocks,
    TierCalls,
    TierEngineConfig,
    TierEvent,
)
from tandem.kv.tiers.copies import LEAVING, Copy, StagedCopy, Staging, TierStore, Transits
from tandem.kv.tiers.device import bounce_rows
from tandem.kv.tiers.fetches import Fetch, FetchRoute, TierFetch
from tandem.kv.tiers.rows import allocated_rows
from tandem.messages.node import BlocksStaged

# Fastest first: what goes to a faster one is wanted soon.
_ORDER = (Tier.HOST, Tier.DISK, Tier.REMOTE)


class TierEngine:
    """Methods are thread-safe and return at once, but `stop_tiers`. Every `stage_blocks` is
    answered by one `BlocksStaged`, every `keep_staged` and `copy_between_tiers` by one `BlocksKept`
    and every `fetch_blocks` by one `BlocksFetched`, from threads of the engine, until `stop_tiers`.
    `stores` belong to the engine from now on, each is called from one thread alone."""

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
        self._answers = Answers(calls.answered)
        self._chunk_blocks = config.blocks_of(config.chunk_bytes, size)
        staging_blocks = config.blocks_of(config.staging_bytes, size)
        self._staging = Staging(bounce_rows(staging_blocks, size, pinned=pinned))
        transit_blocks = config.blocks_of(config.transit_bytes, size)
        transit = allocated_rows(transit_blocks, size)
        self._transits = Transits(transit, self._chunk_blocks, self._answers)
        self._stager = StepThread("kv staging", calls.failed, nice=LOWEST_PRIORITY)
        self._tiers = {
            tier: TierStore(store, StepThread(f"kv tier {tier}", calls.failed))
            for tier, store in stores.items()
        }
        self._routes = {tier: self._route(store) for tier, store in stores.items()}
        self._fetches: dict[int, Fetch] = {}
        self._fetches_lock = Lock()
        for worker in self._workers():
            worker.start_worker()

    def stage_blocks(self, copy_id: int, blocks: Sequence[int]) -> None:
        """Copy blocks off the device; they may be overwritten meanwhile."""
        if not self._answers.expect_answer():
            return
        staged = self._staging.claim_rows(copy_id, len(blocks))
        if staged is None:
            self._answer_soon(BlocksStaged(copy_id, staged=False))
            return
        begin = 0

        def step() -> bool:
            nonlocal begin
            end = min(begin + self._chunk_blocks, len(blocks))
            if not (staged.dropped or self._answers.closing):
                rows = self._staging.staged_rows(staged, range(begin, end))
                self._device.read_blocks(blocks[begin:end], rows)
                begin = end
                if end < len(blocks):
                    return False
            return self._staged(copy_id, staged)

        self._stager.post(step)

    def keep_staged(
        self, copy_id: int, tier: Tier, rows: Sequence[int], names: Sequence[BlockName]
    ) -> None:
        """Write rows of a staged copy into a tier under these names."""
        if not self._answers.expect_answer():
            return
        copy = Copy(copy_id, tier, names)
        target, staged = self._tiers.get(tier), self._staging.find_staged(copy_id)
        if target is None or staged is None:
            if staged:
                self._staging.reader_done(staged)
            copy.problem = "no such tier" if target is None else "nothing is staged"
            self._answer_soon(copy.report())
            return
        assert len(rows) == len(names)
        store = target.store

        def step() -> bool:
            if self._answers.closing:
                copy.problem = LEAVING
            begin, end = copy.done, min(copy.done + self._chunk_blocks, len(names))
            if not (copy.over or staged.dropped):
                some = self._staging.staged_rows(staged, rows[begin:end])
                kept = store.put_blocks(names[begin:end], some)
                copy.kept += kept.digests
                copy.problem = kept.problem
                copy.done = end
                if not copy.over:
                    return False
            self._staging.reader_done(staged)
            self._answers.give_answer(copy.report())
            return True

        target.worker.post(step)

    def drop_staged(self, copy_id: int) -> None:
        """Nothing more is kept of a staged copy; unknown ones are dropped already."""
        self._staging.drop_staged(copy_id)

    def copy_between_tiers(
        self, copy_id: int, source: Tier, target: Tier, names: Sequence[BlockName]
    ) -> None:
        """Copy blocks from one tier to another."""
        assert source is not target
        if not self._answers.expect_answer():
            return
        copy = Copy(copy_id, target, names)
        from_tier, to_tier = self._tiers.get(source), self._tiers.get(target)
        if from_tier is None or to_tier is None:
            copy.problem = "no such tier"
            self._answer_soon(copy.report())
            return
        urgent = _ORDER.index(target) < _ORDER.index(source)
        self._transits.begin_copy(copy, from_tier, to_tier, urgent=urgent)

    def forget_in_tier(self, tier: Tier, digests: Sequence[bytes]) -> None:
        """A tier holds these no more, after whatever was asked of it before."""
        if (kept := self._tiers.get(tier)) is not None:
            store = kept.store
            kept.worker.call(lambda: store.forget_blocks(digests))

    def fetch_blocks(
        self,
        fetch_id: int,
        tiers: Sequence[Tier],
        names: Sequence[BlockName],
        target_blocks: Sequence[int],
    ) -> None:
        """Read `names[i]` from `tiers[i]` into block `target_blocks[i]`, checked."""
        assert len(tiers) == len(names) == len(target_blocks)
        if not self._answers.expect_answer():
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
        self._device.invalidate_blocks(target_blocks)
        for tier, some in indices.items():
            part = TierFetch(fetch, some, self._routes[tier])
            self._tiers[tier].worker.post(part, urgent=True)
        if not indices:
            self._stager.call(lambda: self._fetched(fetch), urgent=True)

    def end_fetch(self, fetch_id: int) -> None:
        """End it soon, come or not; unknown ones have ended already."""
        with self._fetches_lock:
            fetch = self._fetches.get(fetch_id)
        if fetch:
            fetch.stop_fetch("stopped")

    def stop_tiers(self) -> None:
        """End all that is under way, all threads and stores, in bounded time; nobody is called
        afterwards."""
        self._answers.refuse_answers()
        with self._fetches_lock:
            fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.stop_fetch(LEAVING)
        self._answers.finish_answers(self._config.close_s)
        for worker in self._workers():
            worker.stop_worker()
        for tier in self._tiers.values():
            if tier.worker.join_worker(self._config.close_s):
                tier.store.close_store()
        self._stager.join_worker(self._config.close_s)

    def _route(self, store: BlockStore) -> FetchRoute:
        """How its blocks come into the device."""
        device, config = self._device, self._config
        chunk = config.blocks_of(config.fetch_chunk_bytes, device.block_bytes)
        rows, write_blocks = device.rows, None
        if rows is None:
            rows = bounce_rows(chunk, device.block_bytes, pinned=config.pinned)
            write_blocks = device.write_blocks
        return FetchRoute(
            store, rows, chunk, self._calls.now_ns, self._fetched, write_blocks=write_blocks
        )

    def _workers(self) -> list[StepThread]:
        return [self._stager, *(tier.worker for tier in self._tiers.values())]

    def _staged(self, copy_id: int, staged: StagedCopy) -> bool:
        whole = not (staged.dropped or self._answers.closing)
        if not whole:
            self._staging.drop_staged(copy_id)
        self._staging.reader_done(staged)
        self._answers.give_answer(BlocksStaged(copy_id, whole))
        return True

    def _answer_soon(self, event: TierEvent) -> None:
        self._stager.call(lambda: self._answers.give_answer(event), urgent=True)

    def _fetched(self, fetch: Fetch) -> None:
        with self._fetches_lock:
            del self._fetches[fetch.fetch_id]
        block_bytes = self._device.block_bytes
        self._answers.give_answer(fetch.report(block_bytes, self._calls.now_ns()))
