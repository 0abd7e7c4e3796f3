"""Blocks on their way into a slower tier: from the staging memory, or from another tier."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from tandem.facts.fleet import Tier
from tandem.facts.kv_tiers import BlockName
from tandem.kv.tiers.contract import BlockStore
from tandem.kv.tiers.engine_config import Answers
from tandem.kv.tiers.lane import Lane
from tandem.kv.tiers.memory import Rows
from tandem.kv.tiers.staged import StagedCopy, Staging
from tandem.messages.node import BlocksKept

LEAVING = "the worker is leaving"


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
class Place:
    """A tier: its bytes, and the lane that alone touches them."""

    store: BlockStore
    lane: Lane


class KeepStaged:
    """Rows of a staged copy: a step of the target's lane keeps a piece."""

    def __init__(
        self, copy: Copy, staged: StagedCopy, rows: Sequence[int], piece_blocks: int
    ) -> None:
        assert len(rows) == len(copy.names)
        self.copy = copy
        self.staged = staged
        self._rows = rows
        self._piece_blocks = piece_blocks

    def step(self, store: BlockStore, staging: Staging, answers: Answers) -> bool:
        """Whether that was all; then it is answered."""
        copy = self.copy
        if answers.closing:
            copy.problem = LEAVING
        end = min(copy.done + self._piece_blocks, len(copy.names))
        if not copy.over and not self.staged.dropped:
            rows = staging.rows(self.staged, self._rows[copy.done : end])
            kept = store.put(copy.names[copy.done : end], rows)
            copy.kept += kept.digests
            copy.problem = kept.problem
            copy.done = end
            if not copy.over:
                return False
        staging.done(self.staged)
        answers.give(copy.report())
        return True


class Transits:
    """Copies between tiers, a piece at a time through memory they share: first the source's lane
    reads, then the target's lane writes. As many go on at once as there is memory for, the others
    wait for their turn."""

    def __init__(self, memory: Rows, piece_blocks: int, answers: Answers) -> None:
        self._memory = memory
        self._piece_blocks = min(piece_blocks, len(memory))
        self._answers = answers
        self._free = [
            memory[first : first + self._piece_blocks]
            for first in range(0, len(memory) - self._piece_blocks + 1, self._piece_blocks)
        ]
        self._waiting: deque[_Transit] = deque()
        self._lock = Lock()

    def begin(self, copy: Copy, source: Place, target: Place, *, urgent: bool) -> None:
        """Urgent is what somebody waits for: its reading goes before whatever the source's lane
        writes."""
        transit = _Transit(copy, source, target, urgent)
        with self._lock:
            if not self._free:
                self._waiting.append(transit)
                return
            rows = self._free.pop()
        self._read(transit, rows)

    def _read(self, transit: "_Transit", rows: Rows) -> None:
        transit.source.lane.post(lambda: self._reading(transit, rows), urgent=transit.urgent)

    def _reading(self, transit: "_Transit", rows: Rows) -> bool:
        copy = transit.copy
        if self._answers.closing:
            copy.problem = LEAVING
        if copy.over:
            self._end(transit, rows)
            return True
        names = copy.names[copy.done : copy.done + self._piece_blocks]
        found = transit.source.store.get(names, list(rows[: len(names)]))
        # One that is not to be had does not keep the others from being copied.
        copy.done += min(found.blocks + 1, len(names))
        if found.problem and not found.blocks:
            copy.problem = found.problem
        some = names[: found.blocks]
        transit.target.lane.post(lambda: self._writing(transit, some, rows))
        return True

    def _writing(self, transit: "_Transit", names: Sequence[BlockName], rows: Rows) -> bool:
        copy = transit.copy
        if names and not self._answers.closing:
            kept = transit.target.store.put(names, list(rows[: len(names)]))
            copy.kept += kept.digests
            copy.problem = copy.problem or kept.problem
        self._read(transit, rows)
        return True

    def _end(self, transit: "_Transit", rows: Rows) -> None:
        with self._lock:
            following = self._waiting.popleft() if self._waiting else None
            if following is None:
                self._free.append(rows)
        self._answers.give(transit.copy.report())
        if following is not None:
            self._read(following, rows)


@dataclass(frozen=True, slots=True)
class _Transit:
    copy: Copy
    source: Place
    target: Place
    urgent: bool
