"""What to read of a source rank's blocks and where it lands: the arithmetic of a move.

Knows offsets only, no connector and no memory. A move is read in windows: some blocks, all the runs
wanted of them; or some runs of a single block too large for a window. N blocks, R runs.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tandem.facts.errors import TandemError
from tandem.facts.kv_export import MoveKv
from tandem.kv.connector import Spans
from tandem.kv.region_layout import WORD_BYTES, RegionLayout
from tandem.kv.shards import SharedRuns
from tandem.kv.spans import join_spans
from tandem.kv.staging import slots_of, tags_of

ALL = slice(None)


class WindowTooSmall(TandemError):
    """Not even one run of the source's blocks fits into a window."""


@dataclass(frozen=True, slots=True)
class Window:
    """Blocks `first .. end` of the order and, of the runs that are read, `first_run .. end_run`.
    `straight`: they land in own blocks just as they are; else in scratch memory."""

    first: int
    end: int
    first_run: int
    end_run: int
    straight: bool

    @property
    def blocks(self) -> slice:
        return slice(self.first, self.end)

    @property
    def runs(self) -> slice:
        return slice(self.first_run, self.end_run)

    @property
    def shape(self) -> tuple[int, int]:
        return self.end - self.first, self.end_run - self.first_run


@dataclass(frozen=True, slots=True)
class Reading:
    """What one rank reads from one rank of a source for one order: the order's blocks, or encoded
    copies of them. They are `source_blocks` of memory laid out as `source` from `begin` on, and
    `expected` stands in their headers
    for a generation. Windows use scratch memory as `[headers][runs, unless
    straight]`; `at` is the offset of theirs."""

    order: MoveKv
    source: RegionLayout
    target: RegionLayout
    runs: SharedRuns
    begin: int
    source_blocks: NDArray[np.int64]
    expected: NDArray[np.uint64]

    @classmethod
    def of_blocks(
        cls, order: MoveKv, source: RegionLayout, target: RegionLayout, runs: SharedRuns
    ) -> "Reading":
        blocks = np.array(order.source_blocks, dtype=np.int64)
        generations = np.array(order.source_generations, dtype=np.uint64)
        return cls(order, source, target, runs, 0, blocks, generations)

    def of_copies(self, begin: int, copies: RegionLayout) -> "Reading":
        """The same from encoded copies."""
        return replace(
            self,
            source=copies,
            begin=begin,
            source_blocks=slots_of(self.source_blocks, copies.blocks),
            expected=tags_of(self.source_blocks, self.expected, self.source.blocks),
        )

    def windows(self, room_bytes: int, blocks: slice = ALL) -> list[Window]:
        """In the order of tokens; none needs more than `room_bytes` of scratch memory, or reads
        more. Raises `WindowTooSmall`."""
        if len(self.source_blocks) * WORD_BYTES > room_bytes:
            raise WindowTooSmall(f"the generations of all blocks take more than {room_bytes} bytes")
        first, end, _ = blocks.indices(len(self.source_blocks))
        kept = self._kept_as_they_are()
        changes = np.flatnonzero(np.diff(kept[first:end])) + first + 1
        edges = [first, *changes.tolist(), end]
        found: list[Window] = []
        for first, end in pairwise(edges):
            found += self._cut(first, end, straight=bool(kept[first]), room_bytes=room_bytes)
        return found

    @property
    def everything(self) -> Window:
        """All blocks of the order, for `generations`."""
        return Window(0, len(self.source_blocks), 0, 0, straight=False)

    def data_at(self, window: Window) -> int:
        return window.shape[0] * self.source.header_bytes

    def headers(self, window: Window, at: int) -> Spans:
        return self._of_headers(window, at, self.source.header_bytes)

    def generations(self, window: Window, at: int) -> Spans:
        """The first word of each header, side by side."""
        return self._of_headers(window, at, WORD_BYTES)

    def data(self, window: Window, at: int) -> Spans:
        """`local` counts from the begin of the own region if `straight`, else from scratch's."""
        run_bytes = self.source.run_bytes
        remote_N = self.begin + _starts(self.source, self.source_blocks[window.blocks])
        remote_R = self.runs.source[window.runs] * run_bytes
        if window.straight:
            local_N = _starts(self.target, self._target_blocks()[window.blocks])
            local_R = self.runs.target[window.runs] * run_bytes
        else:
            blocks, runs = window.shape
            local_N = at + self.data_at(window) + _steps(blocks, runs * run_bytes)
            local_R = _steps(runs, run_bytes)
        # Joined within a block first: the runs of a block are many, and of one pattern.
        pattern = join_spans(Spans(remote_R, local_R, np.full_like(remote_R, run_bytes)))
        return join_spans(
            Spans(
                _sums(remote_N, pattern.remote),
                _sums(local_N, pattern.local),
                np.tile(pattern.lengths, len(remote_N)),
            )
        )

    def remote_runs(self, window: Window) -> NDArray[np.int64]:
        """Where each run of the window lies at the source, block by block."""
        starts = self.begin + _starts(self.source, self.source_blocks[window.blocks])
        return _sums(starts, self.runs.source[window.runs] * self.source.run_bytes)

    def landed_runs(self, window: Window, at: int) -> NDArray[np.int64]:
        """Where each of them comes to lie here, counted as `local` of `data`."""
        blocks, runs = window.shape
        if not window.straight:
            return at + self.data_at(window) + _steps(blocks * runs, self.source.run_bytes)
        starts = _starts(self.target, self._target_blocks()[window.blocks])
        return _sums(starts, self.runs.target[window.runs] * self.target.run_bytes)

    def landing(self, window: Window) -> Spans:
        """From a window that is not straight, its values converted and lying as [block, run, token,
        head_dim] without gaps (`remote`), to the own region (`local`): wanted tokens only."""
        order, row_bytes = self.order, self.target.layout.row_bytes
        source_tokens = self.source.layout.block_size
        target_tokens = self.target.layout.block_size
        _, runs = window.shape
        begin = order.first_token // source_tokens + window.first
        first = max(order.first_token, begin * source_tokens)
        end = min(order.end_token, (begin + window.shape[0]) * source_tokens)
        # Within a piece, neither the source's block nor the target's ends.
        step = math.gcd(source_tokens, target_tokens)
        inner = np.arange(first // step + 1, -(-end // step), dtype=np.int64) * step
        pieces = np.concatenate((np.array([first], dtype=np.int64), inner))
        lengths = np.diff(pieces, append=end) * row_bytes
        remote = ((pieces // source_tokens - begin) * runs * source_tokens) * row_bytes
        remote += pieces % source_tokens * row_bytes
        block = pieces // target_tokens - order.first_token // target_tokens
        local = _starts(self.target, self._target_blocks()[block])
        local += pieces % target_tokens * row_bytes
        return Spans(
            _sums(remote, _steps(runs, source_tokens * row_bytes)),
            _sums(local, self.runs.target[window.runs] * self.target.run_bytes),
            np.repeat(lengths, runs),
        )

    def _kept_as_they_are(self) -> NDArray[np.bool_]:
        """Of each source block, whether all of it is wanted and is what a block here should hold.
        A block that is wanted in part shares its memory with tokens that others bring."""
        order, mine, theirs = self.order, self.target.layout, self.source.layout
        size = theirs.block_size
        starts = (order.first_token // size + np.arange(len(self.source_blocks))) * size
        whole = (starts >= order.first_token) & (starts + size <= order.end_token)
        return whole & (mine.block_size == size and mine.dtype == theirs.dtype)

    def _cut(self, first: int, end: int, *, straight: bool, room_bytes: int) -> list[Window]:
        runs, run_bytes = len(self.runs.source), self.source.run_bytes
        overhead = self.source.header_bytes
        spare = room_bytes if straight else room_bytes - overhead
        if overhead > room_bytes or run_bytes > spare:
            raise WindowTooSmall(
                f"a KV header of {overhead} bytes and a run of {run_bytes} do not fit into pieces "
                f"of {room_bytes} bytes"
            )
        each = max(overhead, runs * run_bytes) if straight else overhead + runs * run_bytes
        if each <= room_bytes:
            step = room_bytes // each
            cuts = [*range(first, end, step), end]
            return [Window(one, other, 0, runs, straight) for one, other in pairwise(cuts)]
        cuts = [*range(0, runs, spare // run_bytes), runs]
        return [
            Window(block, block + 1, one, other, straight)
            for block in range(first, end)
            for one, other in pairwise(cuts)
        ]

    def _of_headers(self, window: Window, at: int, bytes_each: int) -> Spans:
        blocks = self.source_blocks[window.blocks]
        return join_spans(
            Spans(
                self.begin + blocks * self.source.header_bytes,
                at + _steps(len(blocks), bytes_each),
                np.full_like(blocks, bytes_each),
            )
        )

    def _target_blocks(self) -> NDArray[np.int64]:
        return np.array(self.order.target_blocks, dtype=np.int64)


def _starts(layout: RegionLayout, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
    return layout.pool_offset + blocks * layout.layout.block_bytes


def _steps(count: int, bytes_each: int) -> NDArray[np.int64]:
    return np.arange(count, dtype=np.int64) * bytes_each


def _sums(outer: NDArray[np.int64], inner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Every outer plus every inner, the inner ones changing first."""
    return (outer[:, None] + inner).reshape(-1)
