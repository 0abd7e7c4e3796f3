"""A smaller model as proposer (speculative decoding, Leviathan et al. 2023): it computes the same
tokens in a KV pool of its own, which has the blocks of the large model's.

What it has computed of a block stays of use to whoever gets the same block with the same content.
Axes: D rows that draw, M blocks of a sequence, T packed tokens, V vocabulary.
"""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.slots import Slots
from tandem.facts.steps import IntArray, Placement, scratch_blocks
from tandem.kernels.attention import AttentionBatch
from tandem.kv.store import KvStore
from tandem.models.decoder import Decoder, TokenBatch

# Known tokens that it computes in one step at most: a long prompt takes several, in which its
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

    def computed(self, tokens: IntArray, blocks_M: IntArray) -> None:
        """The full blocks of these tokens now hold them."""
        names = self._names_of(tokens)
        self._names[blocks_M[: len(names)]] = names

    def _names_of(self, tokens: IntArray) -> NDArray[np.uint64]:
        whole = len(tokens) // self._block_size * self._block_size
        terms = (tokens[:whole].astype(np.uint64) + np.uint64(1)) * self._powers[:whole]
        sums = np.cumsum(terms, dtype=np.uint64)
        return sums[self._block_size - 1 :: self._block_size]


class DraftModelProposer:
    """Guesses are drawn as the tokens themselves will be, with their parameters and their noise: so
    they are equal as often as the two models' distributions overlap. `kv` has the blocks of the
    large model's pool, and behind them `scratch_blocks` for each slot."""

    def __init__(self, decoder: Decoder, kv: KvStore, slots: Slots) -> None:
        self._decoder = decoder
        self._kv = kv
        self._slots = slots
        shape = slots.shape
        self._scratch = scratch_blocks(shape.block_size)
        self._pool_blocks = kv.blocks - self._scratch * shape.slots
        assert self._pool_blocks > 0
        self._contents = BlockContents(self._pool_blocks, shape.context_tokens, shape.block_size)
        # Of each slot: tokens whose KV is there, or -1 where that has yet to be looked up.
        self._computed = np.zeros(shape.slots, np.int64)

    def sequences_placed(self, placements: Iterable[Placement]) -> None:
        """See the port."""
        for placement in placements:
            self._computed[placement.slot] = -1

    def propose(self, rows: Continuations) -> Proposals:
        """See the port."""
        longest = rows.ends + rows.counts <= self._decoder.spec.context_tokens
        wanting = np.flatnonzero((rows.counts > 0) & longest)
        found: list[tuple[int, ...]] = [()] * len(rows.slots)
        if len(wanting):
            drawn = self._draft(rows.slots[wanting], rows.ends[wanting], rows.counts[wanting])
            for row, tokens in zip(wanting.tolist(), drawn, strict=True):
                found[row] = tokens
        return tuple(found)

    def _draft(self, slots: IntArray, ends: IntArray, counts: IntArray) -> list[tuple[int, ...]]:
        tables_DM = self._tables(slots, ends)
        ready, logits_DV = self._catch_up(slots, ends, tables_DM)
        drawn: list[list[int]] = [[] for _ in slots]
        for place in range(int(counts.max())):
            if place:
                ready = ready[counts[ready] > place]
                if not len(ready):
                    break
                newest = np.array([drawn[row][-1] for row in ready])
                starts = ends[ready] + place - 1
                logits_DV = self._logits(newest, starts, np.ones_like(starts), tables_DM[ready])
            draws = self._slots.sampling_rows(slots[ready], ends[ready] + place)
            tokens = self._decoder.kernels.sample(logits_DV, draws).tolist()
            for row, token in zip(ready.tolist(), tokens, strict=True):
                drawn[row].append(max(0, token))
        return [tuple(tokens) for tokens in drawn]

    def _catch_up(
        self, slots: IntArray, ends: IntArray, tables_DM: IntArray
    ) -> tuple[NDArray[np.intp], Tensor]:
        """Compute what is known, as far as the budget reaches. Gives the rows that are through with
        it, and the logits behind the last token of each."""
        starts = np.array(
            [
                self._start(slot, end, table)
                for slot, end, table in zip(slots, ends, tables_DM, strict=True)
            ]
        )
        before = np.cumsum(ends - starts) - (ends - starts)
        chunks = np.clip(CATCH_UP_TOKENS - before, 0, ends - starts)
        computing = np.flatnonzero(chunks)
        known = [
            self._slots.tokens[slot, start : start + chunk].cpu().numpy()
            for slot, start, chunk in zip(
                slots[computing], starts[computing], chunks[computing], strict=True
            )
        ]
        logits_DV = self._logits(
            np.concatenate(known), starts[computing], chunks[computing], tables_DM[computing]
        )
        reached = starts + chunks
        for row in computing.tolist():
            self._note(slots[row], int(reached[row]), int(ends[row]), tables_DM[row])
        through = reached[computing] == ends[computing]
        return computing[through], logits_DV[torch.from_numpy(through).to(logits_DV.device)]

    def _start(self, slot: int, end: int, table_M: IntArray) -> int:
        """Where to begin: the last known token is always computed, its logits draw the next."""
        computed = int(self._computed[slot])
        if computed < 0:
            tokens = self._slots.tokens[slot, : end - 1].cpu().numpy()
            computed = self._contents.held_tokens(tokens, table_M)
        return min(computed, end - 1)

    def _note(self, slot: int, reached: int, end: int, table_M: IntArray) -> None:
        """KV of the first `reached` tokens is there; that in scratch blocks does not last."""
        block_size = self._slots.shape.block_size
        lasting = min(reached, self._handed_out(end) * block_size)
        before, self._computed[slot] = int(self._computed[slot]), lasting
        if lasting // block_size > max(0, before) // block_size:
            self._contents.computed(self._slots.tokens[slot, :lasting].cpu().numpy(), table_M)

    def _handed_out(self, end: int) -> int:
        """Blocks that a sequence surely has of which `end` tokens are known: those in which its KV
        lies, which the newest token has yet to get."""
        return -(-(end - 1) // self._slots.shape.block_size)

    def _tables(self, slots: IntArray, ends: IntArray) -> IntArray:
        """Block tables long enough for drafts, whose blocks may not be handed out yet."""
        widest = self._handed_out(int(ends.max())) + self._scratch
        tables_DM = np.zeros((len(slots), widest), np.int32)
        for row, (slot, end) in enumerate(zip(slots.tolist(), ends.tolist(), strict=True)):
            blocks = self._handed_out(end)
            first = self._pool_blocks + slot * self._scratch
            tables_DM[row, :blocks] = self._slots.block_table[slot, :blocks]
            tables_DM[row, blocks : blocks + self._scratch] = np.arange(
                first, first + self._scratch
            )
        return tables_DM

    def _logits(
        self, tokens_T: IntArray, starts: IntArray, counts: IntArray, tables_DM: IntArray
    ) -> Tensor:
        """Behind the last of each row's `counts` tokens, which stand at `starts`."""
        device = self._slots.to_device
        block_size = self._slots.shape.block_size
        query_start = np.zeros(len(counts) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        rows_T = np.repeat(np.arange(len(counts)), counts)
        positions_T = np.arange(query_start[-1]) + np.repeat(starts - query_start[:-1], counts)
        blocks_T = tables_DM[rows_T, positions_T // block_size].astype(np.int64)
        batch = TokenBatch(
            token_ids=device(tokens_T.astype(np.int64)),
            positions=device(positions_T.astype(np.int64)),
            slots=device(blocks_T * block_size + positions_T % block_size),
            attention=AttentionBatch(
                query_start=device(query_start),
                context_lengths=device((starts + counts).astype(np.int32)),
                block_table=device(np.ascontiguousarray(tables_DM)),
            ),
            wanted=device((query_start[1:] - 1).astype(np.int64)),
        )
        return self._decoder.logits(self._decoder.forward(batch, self._kv))
