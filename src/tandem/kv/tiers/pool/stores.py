"""The stores of a shared-pool process: its memory, and the disk or Redis behind it, a worker thread
for each, so that a disk or server that is slow holds up no block that lies in memory.

It does what the machine of the process asks for (`messages.pool_node`) and decides nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockFormat, BlockName
from tandem.kv.threads import StepThread
from tandem.kv.tiers.contract import Answers, BlockStore, Kept, Row, TierCalls
from tandem.kv.tiers.copies import Copy, TierStore, Transits
from tandem.kv.tiers.fetches import Fetch, FetchRoute, TierFetch
from tandem.kv.tiers.rows import allocated_rows
from tandem.messages.node import BlocksFetched, CopyBlocks

# Copies between the two go through so much memory, in so many chunks at once.
CHUNK_BYTES: Final = 4 << 20
CHUNKS: Final = 2


class PoolStores:
    """Methods are thread-safe and return at once, but `stop_stores`; what they are given is called
    from their threads. What is asked of a tier happens in that order, but that reads go first.
    `calls` get the end of every `copy_between_tiers`. The stores belong to it from now on."""

    def __init__(
        self, stores: Mapping[Tier, BlockStore], block_format: BlockFormat, calls: TierCalls
    ) -> None:
        self._now_ns = calls.now_ns
        self._block_bytes = block_format.block_bytes
        self._answers = Answers(calls.answered)
        chunk_blocks = max(1, CHUNK_BYTES // self._block_bytes)
        memory = allocated_rows(CHUNKS * chunk_blocks, self._block_bytes)
        self._transits = Transits(memory, chunk_blocks, self._answers)
        self._tier_stores = {
            tier: TierStore(store, StepThread(f"kv tier {tier}", calls.failed))
            for tier, store in stores.items()
        }
        self._fastest = self._tier_stores[next(tier for tier in Tier if tier in stores)]
        for tier_store in self._tier_stores.values():
            tier_store.worker.start_worker()

    def keep_blocks(
        self, names: Sequence[BlockName], rows: Sequence[Row], ended: Callable[[Kept], None]
    ) -> None:
        """Keep these in the fastest tier. The rows are not touched after `ended`."""
        store = self._fastest.store
        self._fastest.worker.call(lambda: ended(store.put_blocks(names, rows)))

    def read_kept_blocks(
        self,
        fetch_id: int,
        names: Sequence[BlockName],
        tiers: Sequence[Tier],
        rows: Sequence[Row],
        ended: Callable[[BlocksFetched], None],
    ) -> None:
        """Read block i from `tiers[i]` into `rows[i]`; the rows are not touched after `ended`."""
        fetch = Fetch(fetch_id, names, range(len(names)), limit=len(names))
        indices: dict[Tier, list[int]] = {}
        for index, tier in enumerate(tiers):
            indices.setdefault(tier, []).append(index)
        fetch.parts = len(indices)

        def over(fetch: Fetch) -> None:
            ended(fetch.report(self._block_bytes, self._now_ns()))

        for tier, some in indices.items():
            store, worker = self._tier_stores[tier].store, self._tier_stores[tier].worker
            route = FetchRoute(store, rows, len(some), self._now_ns, over)
            worker.post(TierFetch(fetch, some, route), urgent=True)

    def copy_between_tiers(self, order: CopyBlocks) -> None:
        """Copy blocks from one tier to another; ends with `BlocksKept`."""
        if self._answers.expect_answer():
            copy = Copy(order.copy_id, order.target, order.names)
            source, target = self._tier_stores[order.source], self._tier_stores[order.target]
            self._transits.begin_copy(copy, source, target, urgent=False)

    def forget_in_tier(self, tier: Tier, digests: Sequence[bytes]) -> None:
        """A tier holds these no more, after whatever was asked of it before."""
        store = self._tier_stores[tier].store
        self._tier_stores[tier].worker.call(lambda: store.forget_blocks(digests))

    def stop_stores(self, patience_s: float) -> None:
        """End what is under way, in bounded time; no end of a copy is reported afterwards."""
        self._answers.finish_answers(patience_s)
        for tier_store in self._tier_stores.values():
            tier_store.worker.stop_worker()
        for tier_store in self._tier_stores.values():
            if tier_store.worker.join_worker(patience_s):
                tier_store.store.close_store()
