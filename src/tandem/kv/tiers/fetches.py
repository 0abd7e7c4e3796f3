"""Fetches: blocks on their way from the stores of slower tiers into the device, or to a reader."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Lock

from tandem.facts.kv import BlockName
from tandem.kv.threads import NS_PER_S
from tandem.kv.tiers.contract import BlockStore, Found, Row
from tandem.kv.tiers.rows import Rows
from tandem.messages.node import BlocksFetched


@dataclass(slots=True)
class Fetch:
    """Block `names[i]` is to come into block `targets[i]`. Worker threads work on it at the same
    time, each on the blocks of its tier in their order; `limit` is the first block that is not to
    be had: nobody needs those behind it. `parts` are not over yet."""

    fetch_id: int
    names: Sequence[BlockName]
    targets: Sequence[int]
    limit: int
    parts: int = 0
    came_blocks: int = 0
    begun_ns: int | None = None
    problem: str = ""
    corrupt: list[bytes] = field(default_factory=list)
    missing: list[bytes] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def begin(self, now_ns: int) -> None:
        with self.lock:
            if self.begun_ns is None:
                self.begun_ns = now_ns

    def stop_fetch(self, problem: str) -> None:
        """It ends soon, come or not."""
        with self.lock:
            self.limit = 0
            self.problem = self.problem or problem

    def blocks_came(self, asked: Sequence[int], found: Found) -> bool:
        """What came of some blocks; whether all did."""
        with self.lock:
            self.came_blocks += found.blocks
            self.corrupt += found.corrupt
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
            tuple(self.corrupt),
            tuple(self.missing),
            self.problem,
        )


@dataclass(frozen=True, slots=True)
class FetchRoute:
    """How the blocks of one store reach their targets, at most `chunk_blocks` at once: straight
    into `rows[target]`; or, with `write_blocks`, by way of `rows`, memory of this store's worker
    alone. `ended` is called by whoever ends the fetch."""

    store: BlockStore
    rows: Rows | Sequence[Row]
    chunk_blocks: int
    now_ns: Callable[[], int]
    ended: Callable[[Fetch], None]
    write_blocks: Callable[[Sequence[int], Sequence[Row]], None] | None = None


class TierFetch:
    """The blocks of one store: a step of its worker brings a chunk."""

    def __init__(self, fetch: Fetch, indices: Sequence[int], route: FetchRoute) -> None:
        self._fetch = fetch
        self._indices = indices
        self._route = route
        self._done = 0

    def __call__(self) -> bool:
        fetch, route = self._fetch, self._route
        fetch.begin(route.now_ns())
        chunk = self._indices[self._done : self._done + route.chunk_blocks]
        chunk = [index for index in chunk if index < fetch.limit]
        self._done += len(chunk)
        if (
            chunk
            and fetch.blocks_came(chunk, self._bring(chunk))
            and self._done < len(self._indices)
        ):
            return False
        if fetch.part_over():
            route.ended(fetch)
        return True

    def _bring(self, chunk: Sequence[int]) -> Found:
        route, fetch = self._route, self._fetch
        names = [fetch.names[index] for index in chunk]
        targets = [fetch.targets[index] for index in chunk]
        if route.write_blocks is None:
            return route.store.get_blocks(names, [route.rows[target] for target in targets])
        rows = [route.rows[index] for index in range(len(chunk))]
        found = route.store.get_blocks(names, rows)
        route.write_blocks(targets[: found.blocks], rows[: found.blocks])
        return found
