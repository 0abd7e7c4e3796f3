"""KV of what drafts beside a model: a pool whose blocks are those of the model's pool, how far it
is computed for each sequence, and the batches that compute further.

What was computed of a block stays of use to whoever gets the same block with the same content. An
*element* is what a proposer computes for a known token: element i is that of token i + `shift`.
Axes: D sequences, M blocks of a sequence, T packed elements, V vocabulary.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.engine.slots import Slots
from tandem.facts.steps import IntArray, Placement, scratch_blocks
from tandem.kernels.attention import AttentionBatch
from tandem.kv.store import KvStore
from tandem.models.decoder import TokenBatch

# Known tokens that are computed in one step at most: a long prompt takes several, in which its
# sequence has no drafts, and nobody waits long.
CATCH_UP_TOKENS = 512
# Odd, so that powers of it never become 0.
NAME_BASE = 0x9E3779B97F4A7C15


class BlockContents:
    """Which blocks hold KV of which tokens. A name is a sum over the tokens up to the block's end,
    each times a power: two sequences with one name would only harm a guess."""

    def __init__(self, blocks: int, context_tokens: int, block_size: int) -> None:
        self._names = np.zeros(blocks, np.uint64)
        self._block_size = block_size
        powers = np.full(context_tokens, NAME_BASE, np.uint64)
        powers[0] = 1
        self._powers = np.cumprod(powers, dtype=np.uint64)

    def held_tokens(self, tokens: IntArray, blocks_M: IntArray) -> int:
        """How many of these tokens lie in the first of these blocks already."""
        names = self._names_of(tokens)[: len(blocks_M)]
        same = self._names[blocks_M[: len(names)]] == names
        held = len(same) if same.all() else int(same.argmin())
        return held * self._block_size

    def overwritten(self, blocks: IntArray) -> None:
        """What these held is gone."""
        self._names[blocks] = 0

    def computed(self, tokens: IntArray, blocks_M: IntArray) -> None:
        """The full blocks of these tokens now hold them."""
        names = self._names_of(tokens)
        self._names[blocks_M[: len(names)]] = names

    def _names_of(self, tokens: IntArray) -> NDArray[np.uint64]:
        whole = len(tokens) // self._block_size * self._block_size
        terms = (tokens[:whole].astype(np.uint64) + np.uint64(1)) * self._powers[:whole]
        sums = np.cumsum(terms, dtype=np.uint64)
        return sums[self._block_size - 1 :: self._block_size]


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Sequences in `slots` [D] of which `ends` tokens are known, with their block `tables` [D, M]:
    long enough for drafts, whose blocks may not be handed out yet."""

    slots: IntArray
    ends: IntArray
    tables: IntArray

    def some(self, rows: NDArray[np.intp]) -> "DraftRows":
        if len(rows) == len(self.slots):
            return self
        return DraftRows(self.slots[rows], self.ends[rows], self.tables[rows])


@dataclass(frozen=True, slots=True)
class Branches:
    """Of elements that are guesses, in trees: whom each follows among those of its row (`parents`
    [T], -1: what is known), its position behind the first of them (`offsets` [T]), and the elements
    that are `wanted`, in the order of all."""

    parents: IntArray
    offsets: IntArray
    wanted: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chunks:
    """Elements `starts .. starts + counts` [D] of some rows, whose tokens are `tokens` [T]."""

    starts: IntArray
    counts: IntArray
    tokens: IntArray
    branches: Branches | None = None


class DraftKv:
    """`kv` has the blocks of the model's pool, and behind them `scratch_blocks` for each slot. With
    a `window` no more elements than that are looked at, nor ever computed before the last."""

    def __init__(
        self, kv: KvStore, slots: Slots, shift: int = 0, window: int | None = None
    ) -> None:
        self.kv = kv
        self.slots = slots
        self.shift = shift
        self._window = window
        shape = slots.shape
        self._scratch = scratch_blocks(shape.block_size)
        self._pool_blocks = kv.blocks - self._scratch * shape.slots
        assert self._pool_blocks > 0
        self._contents = BlockContents(self._pool_blocks, shape.context_tokens, shape.block_size)
        # Of each slot: elements whose KV is there, or -1 where that has yet to be looked up.
        self._computed = np.zeros(shape.slots, np.int64)

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """These slots are others' now."""
        for placement in placements:
            self._computed[placement.slot] = -1

    def rows(self, slots: IntArray, ends: IntArray) -> DraftRows:
        """Of the sequences in these slots, of which so many tokens are known."""
        widest = self._handed_out(int(ends.max())) + self._scratch
        tables_DM = np.zeros((len(slots), widest), np.int32)
        for row, (slot, end) in enumerate(zip(slots.tolist(), ends.tolist(), strict=True)):
            blocks = self._handed_out(end)
            first = self._pool_blocks + slot * self._scratch
            tables_DM[row, :blocks] = self.slots.block_table[slot, :blocks]
            tables_DM[row, blocks : blocks + self._scratch] = np.arange(
                first, first + self._scratch
            )
        return DraftRows(slots, ends, tables_DM)

    def catch_up(self, rows: DraftRows) -> tuple[NDArray[np.intp], Chunks]:
        """Which rows are to be computed further and by which elements, within the budget; those
        that come to their end are the first. To be computed before anything else is asked."""
        ends = rows.ends - self.shift
        starts = np.array(
            [
                self._start(slot, end, table)
                for slot, end, table in zip(rows.slots, ends, rows.tables, strict=True)
            ]
        )
        before = np.cumsum(ends - starts) - (ends - starts)
        counts = np.clip(CATCH_UP_TOKENS - before, 0, ends - starts)
        computing = np.flatnonzero(counts)
        for row in computing.tolist():
            start, reached = int(starts[row]), int(starts[row] + counts[row])
            self._forget(start, int(rows.ends[row]), rows.tables[row])
            self._note(int(rows.slots[row]), reached, int(rows.ends[row]), rows.tables[row])
        tokens = [
            self._tokens(int(rows.slots[row]), int(starts[row]), int(starts[row] + counts[row]))
            for row in computing.tolist()
        ]
        chunks = Chunks(starts[computing], counts[computing], np.concatenate(tokens))
        return computing, chunks

    def batch(self, rows: DraftRows, chunks: Chunks) -> TokenBatch:
        """Of these elements; without branches the last of each row is wanted."""
        device = self.slots.to_device
        block_size, starts, counts = self.slots.shape.block_size, chunks.starts, chunks.counts
        if len(chunks.tokens) == len(counts):
            query_start, rows_T = np.arange(len(counts) + 1), np.arange(len(counts))
            places_T = starts
        else:
            query_start = np.concatenate(((0,), np.cumsum(counts)))
            rows_T = np.repeat(np.arange(len(counts)), counts)
            first_T = np.repeat(starts - query_start[:-1], counts).astype(np.int32)
            places_T = np.arange(query_start[-1], dtype=np.int32) + first_T
        blocks_T = rows.tables[rows_T, places_T // block_size].astype(np.int64)
        elements_T = places_T.astype(np.int64)
        wanted, parents = (query_start[1:] - 1).astype(np.int64), None
        if chunks.branches is not None:
            elements_T = np.repeat(starts.astype(np.int64), counts) + chunks.branches.offsets
            wanted, parents = chunks.branches.wanted, device(chunks.branches.parents)
        return TokenBatch(
            token_ids=device(chunks.tokens.astype(np.int64)),
            positions=device(elements_T + self.shift),
            slots=device(blocks_T * block_size + places_T % block_size),
            attention=AttentionBatch(
                query_start=device(query_start.astype(np.int32)),
                context_lengths=device((starts + counts).astype(np.int32)),
                block_table=device(np.ascontiguousarray(rows.tables)),
                parents=parents,
            ),
            wanted=device(wanted),
        )

    def _tokens(self, slot: int, first: int, end: int) -> IntArray:
        """Of these elements."""
        known = self.slots.tokens[slot, first + self.shift : end + self.shift]
        found: IntArray = known.cpu().numpy()
        return found

    def _start(self, slot: int, end: int, table_M: IntArray) -> int:
        """Where to begin: the last element is always computed, from it the next token is drawn."""
        computed = int(self._computed[slot])
        if self._window is not None:
            computed = max(computed, end - self._window)
        elif computed < 0:
            computed = self._contents.held_tokens(self._tokens(slot, 0, end - 1), table_M)
        return min(computed, end - 1)

    def _forget(self, start: int, end: int, table_M: IntArray) -> None:
        """Blocks are written to from this element on."""
        first = start // self.slots.shape.block_size
        self._contents.overwritten(table_M[first : self._handed_out(end)])

    def _note(self, slot: int, reached: int, end: int, table_M: IntArray) -> None:
        """The first `reached` elements are computed; those in scratch blocks do not last."""
        block_size = self.slots.shape.block_size
        lasting = min(reached, self._handed_out(end) * block_size)
        before, self._computed[slot] = int(self._computed[slot]), lasting
        if self._window is None and lasting // block_size > max(0, before) // block_size:
            self._contents.computed(self._tokens(slot, 0, lasting), table_M)

    def _handed_out(self, end: int) -> int:
        """Blocks that a sequence surely has of which `end` tokens are known: those in which its KV
        lies, which the newest token has yet to get."""
        return -(-(end - 1) // self.slots.shape.block_size)
