"""Blocks on their way from slower tiers into the device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from tandem.facts.kv_tiers import BlockName
from tandem.kv.tiers.contract import BlockStore, DeviceBlocks, Found
from tandem.kv.tiers.memory import Rows
from tandem.messages.node import BlocksFetched

NS_PER_S = 1_000_000_000


@dataclass(slots=True)
class Fetch:
    """Block `names[i]` is to come into block `targets[i]`. Lanes work on it at the same time, each
    on the blocks of its tier in their order; `limit` is the first block that is not to be had:
    nobody needs those behind it. `parts` are not over yet."""

    fetch_id: int
    names: Sequence[BlockName]
    targets: Sequence[int]
    limit: int
    parts: int = 0
    came_blocks: int = 0
    begun_ns: int | None = None
    problem: str = ""
    spoilt: list[bytes] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def begin(self, now_ns: int) -> None:
        with self.lock:
            if self.begun_ns is None:
                self.begun_ns = now_ns

    def stop(self, problem: str) -> None:
        with self.lock:
            self.limit = 0
            self.problem = self.problem or problem

    def take(self, asked: Sequence[int], found: Found) -> bool:
        """What came of some blocks; whether all did."""
        with self.lock:
            self.came_blocks += found.blocks
            self.spoilt += found.spoilt
            self.missing += found.missing
            self.problem = self.problem or found.problem
            if found.blocks < len(asked):
                self.limit = min(self.limit, asked[found.blocks])
        return found.blocks == len(asked)

    def part_over(self) -> bool:
        """Whether it was the last."""
        with self.lock:
            self.parts -= 1
            return self.parts == 0

    def report(self, block_bytes: int, now_ns: int) -> BlocksFetched:
        seconds = 0.0 if self.begun_ns is None else (now_ns - self.begun_ns) / NS_PER_S
        return BlocksFetched(
            self.fetch_id,
            self.limit,
            self.came_blocks * block_bytes,
            seconds,
            tuple(self.spoilt),
            tuple(self.missing),
            self.problem,
        )


@dataclass(frozen=True, slots=True)
class FetchWays:
    """How the blocks of one tier reach the device: at most `piece_blocks` at once, straight into it
    or by way of `bounce`, memory of this tier's lane alone."""

    store: BlockStore
    device: DeviceBlocks
    bounce: Rows | None
    piece_blocks: int
    now_ns: Callable[[], int]
    ended: Callable[[Fetch], object]


class FetchPart:
    """The blocks of one tier: a step of its lane brings a piece."""

    def __init__(self, fetch: Fetch, indices: Sequence[int], ways: FetchWays) -> None:
        self._fetch = fetch
        self._indices = indices
        self._ways = ways
        self._done = 0

    def __call__(self) -> bool:
        fetch, ways = self._fetch, self._ways
        fetch.begin(ways.now_ns())
        piece = self._indices[self._done : self._done + ways.piece_blocks]
        piece = [index for index in piece if index < fetch.limit]
        self._done += len(piece)
        if piece and fetch.take(piece, self._bring(piece)) and self._done < len(self._indices):
            return False
        if fetch.part_over():
            ways.ended(fetch)
        return True

    def _bring(self, piece: Sequence[int]) -> Found:
        ways, fetch = self._ways, self._fetch
        names = [fetch.names[index] for index in piece]
        targets = [fetch.targets[index] for index in piece]
        if ways.bounce is None:
            blocks = ways.device.rows
            assert blocks is not None
            return ways.store.get(names, [blocks[target] for target in targets])
        rows = [ways.bounce[index] for index in range(len(piece))]
        found = ways.store.get(names, rows)
        ways.device.write(targets[: found.blocks], rows[: found.blocks])
        return found
