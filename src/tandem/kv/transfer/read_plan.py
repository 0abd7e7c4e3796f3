"""What to read of a source rank's blocks and where it lands: the arithmetic of a KV transfer.

Knows offsets only, no connector and no memory. A transfer is read in chunks: some blocks, all the
runs wanted of them; or some runs of a single block too large for a chunk. N blocks, R runs.
"""

import math
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tandem.facts.errors import TandemError
from tandem.facts.kv import MoveKv
from tandem.kv.connectors.contract import Spans, join_spans
from tandem.kv.layout import WORD_BYTES, RegionLayout, slots_of, tags_of
from tandem.kv.transfer.sources import SharedRuns

ALL = slice(None)


class ChunkTooSmall(TandemError):
    """Not even one run of the source's blocks fits into a chunk."""


@dataclass(frozen=True, slots=True)
class ChunkRange:
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
class ReadPlan:
    """What one rank reads from one rank of a source for one order: the order's blocks, or encoded
    copies of them. They are `source_blocks` of memory laid out as `source` from `begin` on, and
    `expected` are the versions that their metadata must
    name. A chunk uses scratch memory as `[metadata][runs, unless straight]`; `at` is where its own
    begins."""

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
    ) -> "ReadPlan":
        blocks = np.array(order.source_blocks, dtype=np.int64)
        versions = np.array(order.source_versions, dtype=np.uint64)
        return cls(order, source, target, runs, 0, blocks, versions)

    def of_copies(self, begin: int, copies: RegionLayout) -> "ReadPlan":
        """The same from encoded copies."""
        return replace(
            self,
            source=copies,
            begin=begin,
            source_blocks=slots_of(self.source_blocks, copies.blocks),
            expected=tags_of(self.source_blocks, self.expected, self.source.blocks),
        )

    def chunk_ranges(self, room_bytes: int, blocks: slice = ALL) -> list[ChunkRange]:
        """In the order of tokens; none needs more than `room_bytes` of scratch memory, or reads
        more. Raises `ChunkTooSmall`."""
        if len(self.source_blocks) * WORD_BYTES > room_bytes:
            raise ChunkTooSmall(f"the versions of all blocks take more than {room_bytes} bytes")
        first, end, _ = blocks.indices(len(self.source_blocks))
        kept = self._kept_as_they_are()
        changes = np.flatnonzero(np.diff(kept[first:end])) + first + 1
        edges = [first, *changes.tolist(), end]
        found: list[ChunkRange] = []
        for first, end in pairwise(edges):
            found += self._cut(first, end, straight=bool(kept[first]), room_bytes=room_bytes)
        return found

    @property
    def everything(self) -> ChunkRange:
        """All blocks of the order, for `version_spans`."""
        return ChunkRange(0, len(self.source_blocks), 0, 0, straight=False)

    def data_at(self, wanted: ChunkRange) -> int:
        return wanted.shape[0] * self.source.metadata_bytes

    def metadata_spans(self, wanted: ChunkRange, at: int) -> Spans:
        return self._of_metadata(wanted, at, self.source.metadata_bytes)

    def version_spans(self, wanted: ChunkRange, at: int) -> Spans:
        """The versions alone, the first word of each block's metadata, side by side."""
        return self._of_metadata(wanted, at, WORD_BYTES)

    def data_spans(self, wanted: ChunkRange, at: int) -> Spans:
        """`local` counts from the begin of the own region if `straight`, else from scratch's."""
        run_bytes = self.source.run_bytes
        remote_N = self.begin + _starts(self.source, self.source_blocks[wanted.blocks])
        remote_R = self.runs.source[wanted.runs] * run_bytes
        if wanted.straight:
            local_N = _starts(self.target, self._target_blocks()[wanted.blocks])
            local_R = self.runs.target[wanted.runs] * run_bytes
        else:
            blocks, runs = wanted.shape
            local_N = at + self.data_at(wanted) + _steps(blocks, runs * run_bytes)
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

    def remote_runs(self, wanted: ChunkRange) -> NDArray[np.int64]:
        """Where each run of the wanted lies at the source, block by block."""
        starts = self.begin + _starts(self.source, self.source_blocks[wanted.blocks])
        return _sums(starts, self.runs.source[wanted.runs] * self.source.run_bytes)

    def landed_runs(self, wanted: ChunkRange, at: int) -> NDArray[np.int64]:
        """Where each of them comes to lie here, counted as `local` of `data`."""
        blocks, runs = wanted.shape
        if not wanted.straight:
            return at + self.data_at(wanted) + _steps(blocks * runs, self.source.run_bytes)
        starts = _starts(self.target, self._target_blocks()[wanted.blocks])
        return _sums(starts, self.runs.target[wanted.runs] * self.target.run_bytes)

    def landing_spans(self, wanted: ChunkRange) -> Spans:
        """From a wanted that is not straight, its values converted and lying as [block, run, token,
        head_dim] without gaps (`remote`), to the own region (`local`): wanted tokens only."""
        order, row_bytes = self.order, self.target.layout.row_bytes
        source_tokens = self.source.layout.block_size
        target_tokens = self.target.layout.block_size
        _, runs = wanted.shape
        begin = order.first_token // source_tokens + wanted.first
        first = max(order.first_token, begin * source_tokens)
        end = min(order.end_token, (begin + wanted.shape[0]) * source_tokens)
        # Within a chunk, neither the source's block nor the target's ends.
        step = math.gcd(source_tokens, target_tokens)
        inner = np.arange(first // step + 1, -(-end // step), dtype=np.int64) * step
        chunks = np.concatenate((np.array([first], dtype=np.int64), inner))
        lengths = np.diff(chunks, append=end) * row_bytes
        remote = ((chunks // source_tokens - begin) * runs * source_tokens) * row_bytes
        remote += chunks % source_tokens * row_bytes
        block = chunks // target_tokens - order.first_token // target_tokens
        local = _starts(self.target, self._target_blocks()[block])
        local += chunks % target_tokens * row_bytes
        return Spans(
            _sums(remote, _steps(runs, source_tokens * row_bytes)),
            _sums(local, self.runs.target[wanted.runs] * self.target.run_bytes),
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

    def _cut(self, first: int, end: int, *, straight: bool, room_bytes: int) -> list[ChunkRange]:
        runs, run_bytes = len(self.runs.source), self.source.run_bytes
        overhead = self.source.metadata_bytes
        spare = room_bytes if straight else room_bytes - overhead
        if overhead > room_bytes or run_bytes > spare:
            raise ChunkTooSmall(
                f"the metadata of a block ({overhead} bytes) and a run of {run_bytes} do not fit "
                f"into chunks of {room_bytes} bytes"
            )
        each = max(overhead, runs * run_bytes) if straight else overhead + runs * run_bytes
        if each <= room_bytes:
            step = room_bytes // each
            cuts = [*range(first, end, step), end]
            return [ChunkRange(one, other, 0, runs, straight) for one, other in pairwise(cuts)]
        cuts = [*range(0, runs, spare // run_bytes), runs]
        return [
            ChunkRange(block, block + 1, one, other, straight)
            for block in range(first, end)
            for one, other in pairwise(cuts)
        ]

    def _of_metadata(self, wanted: ChunkRange, at: int, bytes_each: int) -> Spans:
        blocks = self.source_blocks[wanted.blocks]
        return join_spans(
            Spans(
                self.begin + blocks * self.source.metadata_bytes,
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
