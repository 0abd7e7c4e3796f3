"""Copies into a slower tier: full blocks staged beside the device, and blocks of another tier."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.kv.threads import StepThread
from tandem.kv.tiers.contract import Answers, BlockStore, Row
from tandem.kv.tiers.rows import Rows
from tandem.messages.node import BlocksKept

LEAVING = "the worker is leaving"


@dataclass(slots=True)
class StagedCopy:
    """Full blocks copied off the device: `places` are rows of the staging memory. They are freed
    when it is `dropped` and the last of its `readers` is done."""

    places: Sequence[int]
    readers: int = 0
    dropped: bool = False


class Staging:
    """Who has which rows of the staging memory. Safe to be called from several threads."""

    def __init__(self, memory: Rows) -> None:
        self._memory = memory
        self._free = list(range(len(memory) - 1, -1, -1))
        self._copies: dict[int, StagedCopy] = {}
        self._lock = Lock()

    def claim_rows(self, copy_id: int, count: int) -> StagedCopy | None:
        """Rows for a new copy; None when there are not so many left."""
        with self._lock:
            assert copy_id not in self._copies
            if count > len(self._free):
                return None
            # The copy is read by whoever fills it, first.
            copy = StagedCopy([self._free.pop() for _ in range(count)], readers=1)
            self._copies[copy_id] = copy
            return copy

    def find_staged(self, copy_id: int) -> StagedCopy | None:
        """With one reader more, who is to call `reader_done`; None when nothing is to be read
        there."""
        with self._lock:
            copy = self._copies.get(copy_id)
            if copy is not None:
                copy.readers += 1
            return copy

    def reader_done(self, copy: StagedCopy) -> None:
        """One reader less: of whoever claimed it, or found it."""
        with self._lock:
            copy.readers -= 1
            self._free_unused(copy)

    def drop_staged(self, copy_id: int) -> None:
        """Nothing more is kept of it; unknown ones are dropped already."""
        with self._lock:
            copy = self._copies.pop(copy_id, None)
            if copy is not None:
                copy.dropped = True
                self._free_unused(copy)

    def staged_rows(self, copy: StagedCopy, indices: Sequence[int]) -> list[Row]:
        return [self._memory[copy.places[index]] for index in indices]

    def _free_unused(self, copy: StagedCopy) -> None:
        if copy.dropped and not copy.readers:
            self._free += copy.places
            copy.places = ()


@dataclass(slots=True)
class Copy:
    """`names` are to be kept by the tier `target`; `done` of them have been tried."""

    copy_id: int
    target: Tier
    names: Sequence[BlockName]
    done: int = 0
    kept: list[bytes] = field(default_factory=list)
    problem: str = ""

    @property
    def over(self) -> bool:
        return bool(self.problem) or self.done >= len(self.names)

    def report(self) -> BlocksKept:
        return BlocksKept(self.copy_id, self.target, tuple(self.kept), self.problem)


@dataclass(frozen=True, slots=True)
class TierStore:
    """One tier: its store, and the worker thread that alone calls it."""

    store: BlockStore
    worker: StepThread


class Transits:
    """Copies between tiers, a chunk at a time through memory they share: first the worker
    thread of the source reads, then that of the target writes. As many go on at once as there is
    memory for, the others wait for their turn."""

    def __init__(self, memory: Rows, chunk_blocks: int, answers: Answers) -> None:
        self._memory = memory
        self._chunk_blocks = min(chunk_blocks, len(memory))
        self._answers = answers
        self._free = [
            memory[first : first + self._chunk_blocks]
            for first in range(0, len(memory) - self._chunk_blocks + 1, self._chunk_blocks)
        ]
        self._waiting: deque[_Transit] = deque()
        self._lock = Lock()

    def begin_copy(self, copy: Copy, source: TierStore, target: TierStore, *, urgent: bool) -> None:
        """Urgent is what somebody waits for: its reading goes before whatever the source
        writes."""
        transit = _Transit(copy, source, target, urgent)
        with self._lock:
            if not self._free:
                self._waiting.append(transit)
                return
            rows = self._free.pop()
        self._read(transit, rows)

    def _read(self, transit: "_Transit", rows: Rows) -> None:
        transit.source.worker.post(lambda: self._reading(transit, rows), urgent=transit.urgent)

    def _reading(self, transit: "_Transit", rows: Rows) -> bool:
        copy = transit.copy
        if self._answers.closing:
            copy.problem = LEAVING
        if copy.over:
            self._end(transit, rows)
            return True
        names = copy.names[copy.done : copy.done + self._chunk_blocks]
        found = transit.source.store.get_blocks(names, list(rows[: len(names)]))
        # One that is not to be had does not keep the others from being copied.
        copy.done += min(found.blocks + 1, len(names))
        if found.problem and not found.blocks:
            copy.problem = found.problem
        some = names[: found.blocks]
        transit.target.worker.post(lambda: self._writing(transit, some, rows))
        return True

    def _writing(self, transit: "_Transit", names: Sequence[BlockName], rows: Rows) -> bool:
        copy = transit.copy
        if names and not self._answers.closing:
            kept = transit.target.store.put_blocks(names, list(rows[: len(names)]))
            copy.kept += kept.digests
            copy.problem = copy.problem or kept.problem
        self._read(transit, rows)
        return True

    def _end(self, transit: "_Transit", rows: Rows) -> None:
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._free.append(rows)
        self._answers.give_answer(transit.copy.report())
        if following is not None:
            self._read(following, rows)


@dataclass(frozen=True, slots=True)
class _Transit:
    copy: Copy
    source: TierStore
    target: TierStore
    urgent: bool
