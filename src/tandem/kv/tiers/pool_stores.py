"""The memory of a process of the shared pool, and what lies behind it: a lane for each, so that a
disk or server that is slow holds up no block that lies in memory.

It does what the machine of the process asks for (`facts.pool_node_messages`) and decides nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from tandem.facts.fleet import Tier
from tandem.facts.kv_tiers import BlockFormat, BlockName
from tandem.kv.tiers.contract import BlockStore, Kept, Row
from tandem.kv.tiers.copies import Copy, Place, Transits
from tandem.kv.tiers.engine_config import Answers, TierCalls
from tandem.kv.tiers.fetches import Fetch
from tandem.kv.tiers.lane import Lane
from tandem.kv.tiers.memory import allocated_rows
from tandem.messages.node import BlocksFetched, CopyBlocks

# Copies between the two go through so much memory, in so many pieces at once.
PIECE_BYTES: Final = 4 << 20
PIECES: Final = 2


@dataclass(frozen=True, slots=True)
class PoolRead:
    """Blocks to be read into `rows`, which are not touched after `ended`."""

    fetch: Fetch
    rows: Sequence[Row]
    ended: Callable[[BlocksFetched], None]

    @classmethod
    def of(
        cls,
        fetch_id: int,
        names: Sequence[BlockName],
        rows: Sequence[Row],
        ended: Callable[[BlocksFetched], None],
    ) -> "PoolRead":
        """All of these, one row for each."""
        return cls(Fetch(fetch_id, names, range(len(names)), len(names)), rows, ended)


class PoolStores:
    """Methods are thread-safe and return at once, but `close`; what they are given is called from
    their threads. What is asked of a tier happens in that order, but that reads go first. `calls`
    hear the end of every `copy`. The stores belong to it from now on."""

    def __init__(
        self, stores: Mapping[Tier, BlockStore], block_format: BlockFormat, calls: TierCalls
    ) -> None:
        self._now_ns = calls.now_ns
        self._block_bytes = block_format.block_bytes
        self._answers = Answers(calls.told)
        piece_blocks = max(1, PIECE_BYTES // self._block_bytes)
        memory = allocated_rows(PIECES * piece_blocks, self._block_bytes)
        self._transits = Transits(memory, piece_blocks, self._answers)
        self._places = {
            tier: Place(store, Lane(f"tier {tier}", calls.failed)) for tier, store in stores.items()
        }
        self._fastest = self._places[next(tier for tier in Tier if tier in stores)]
        for place in self._places.values():
            place.lane.start()

    def put(
        self, names: Sequence[BlockName], rows: Sequence[Row], ended: Callable[[Kept], None]
    ) -> None:
        """Keep these in the fastest tier. The rows are not touched after `ended`."""
        store = self._fastest.store

        def step() -> bool:
            ended(store.put(names, rows))
            return True

        self._fastest.lane.post(step)

    def read(self, read: PoolRead, tiers: Sequence[Tier]) -> None:
        """Read block i from `tiers[i]`."""
        indices: dict[Tier, list[int]] = {}
        for index, tier in enumerate(tiers):
            indices.setdefault(tier, []).append(index)
        read.fetch.parts = len(indices)
        for tier, some in indices.items():
            store = self._places[tier].store
            self._places[tier].lane.post(partial(self._read_part, read, store, some), urgent=True)

    def copy(self, order: CopyBlocks) -> None:
        """Copy blocks from one tier to another; ends with `BlocksKept`."""
        if self._answers.expect():
            copy = Copy(order.copy_id, order.target, order.names)
            source, target = self._places[order.source], self._places[order.target]
            self._transits.begin(copy, source, target, urgent=False)

    def forget(self, tier: Tier, digests: Sequence[bytes]) -> None:
        """A tier holds these no more, after whatever was asked of it before."""
        store = self._places[tier].store

        def step() -> bool:
            store.forget(digests)
            return True

        self._places[tier].lane.post(step)

    def close(self, patience_s: float) -> None:
        """End what is under way, in bounded time; no end of a copy is told afterwards."""
        self._answers.close(patience_s)
        for place in self._places.values():
            place.lane.close()
        for place in self._places.values():
            if place.lane.join(patience_s):
                place.store.close()

    def _read_part(self, read: PoolRead, store: BlockStore, indices: Sequence[int]) -> bool:
        fetch = read.fetch
        fetch.begin(self._now_ns())
        piece = [index for index in indices if index < fetch.limit]
        if piece:
            names = [fetch.names[index] for index in piece]
            fetch.take(piece, store.get(names, [read.rows[index] for index in piece]))
        if fetch.part_over():
            read.ended(fetch.report(self._block_bytes, self._now_ns()))
        return True
