"""Guesses one behind the other, as chains or trees, by what computes elements in a `DraftKv`.

Each is drawn as the token itself will be, with its parameters and its noise: so the two are equal
as often as the distributions overlap.
Axes: D sequences, T packed elements, V vocabulary.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandem.engine.proposers.contract import Continuations, Proposals
from tandem.engine.proposers.draft_kv import Branches, Chunks, DraftKv, DraftRows
from tandem.engine.proposers.growing_tree import ROOT, GrowingTree, candidate_shares
from tandem.facts.steps import IntArray
from tandem.facts.token_tree import NO_GUESSES, TokenTree
from tandem.kernels.faces import Kernels

Numbers = NDArray[np.intp]
# (row, number in its tree).
Guess = tuple[int, int]


class ElementModel(Protocol):
    """Computes elements: a *state* of each that is wanted, and from it what follows."""

    def begin(self, rows: DraftRows, chunks: Chunks, numbers: Numbers) -> Tensor:
        """logits_DV behind the last element of each row; these are the rows of such `numbers` among
        all that are asked for."""
        ...

    def go_on(self, rows: DraftRows, chunks: Chunks, sources: Numbers) -> Tensor:
        """logits_DV behind the wanted ones of elements that are guesses: element i goes on from
        state `sources[i]` of all states since `begin`, in the order of their logits."""
        ...


def guesses(
    kv: DraftKv,
    model: ElementModel,
    kernels: Kernels,
    asked: Continuations,
    wanting: Numbers,
    branches: int,
) -> Proposals:
    """For the rows of `asked`, but only for those of numbers `wanting`. With `branches` of 1 each
    guess has one to follow it; with more as many as that, and the likeliest of all are taken."""
    found = [NO_GUESSES] * len(asked.slots)
    if len(wanting):
        rows = kv.rows(asked.slots[wanting], asked.ends[wanting])
        ahead = _LookAhead(kv, model, kernels, rows, asked.counts[wanting])
        for row, tree in zip(wanting.tolist(), ahead.guesses(branches), strict=True):
            found[row] = tree
    return tuple(found)


class _LookAhead:
    """One look ahead, for all of some rows. Counts the states that were computed."""

    def __init__(
        self,
        kv: DraftKv,
        model: ElementModel,
        kernels: Kernels,
        rows: DraftRows,
        counts: IntArray,
    ) -> None:
        self._kv = kv
        self._model = model
        self._kernels = kernels
        self._rows = rows
        self._counts = counts
        self._states = 0

    def guesses(self, branches: int) -> list[TokenTree]:
        """For each row."""
        kv, rows = self._kv, self._rows
        ready, chunks = kv.catch_up(rows)
        logits_DV = self._model.begin(rows.some(ready), chunks, ready)
        sources = self._new_states(len(ready))
        # Of a sequence that is not caught up with there is nothing to guess yet.
        through = chunks.starts + chunks.counts == rows.ends[ready] - kv.shift
        ready, sources = ready[through], sources[through]
        if not len(ready):
            return [NO_GUESSES] * len(self._counts)
        if not through.all():
            logits_DV = logits_DV[torch.from_numpy(through).to(logits_DV.device)]
        if branches == 1:
            return self._chains(logits_DV, ready, sources)
        return self._trees(logits_DV, ready, sources, branches)

    def _chains(self, logits_DV: Tensor, ready: Numbers, sources: Numbers) -> list[TokenTree]:
        """From what follows the `ready` rows, out of states of these numbers."""
        drawn: list[list[int]] = [[] for _ in self._counts]
        for place in range(int(self._counts.max())):
            if place:
                staying = self._counts[ready] > place
                ready, sources = ready[staying], sources[staying]
                if not len(ready):
                    break
                newest = np.array([drawn[row][-1] for row in ready.tolist()])
                starts = self._firsts(ready) + place - 1
                chunks = Chunks(starts, np.ones_like(starts), newest)
                logits_DV = self._model.go_on(self._rows.some(ready), chunks, sources)
                sources = self._new_states(len(ready))
            slots, positions = self._rows.slots[ready], self._rows.ends[ready] + place
            draws = self._kv.slots.sampling_rows(slots, positions)
            tokens = self._kernels.sample(logits_DV, draws).tolist()
            for row, token in zip(ready.tolist(), tokens, strict=True):
                drawn[row].append(max(0, token))
        return [TokenTree(tuple(tokens)) for tokens in drawn]

    def _trees(
        self, logits_DV: Tensor, ready: Numbers, sources: Numbers, branches: int
    ) -> list[TokenTree]:
        """The same, but of each guess several may follow. All guesses that were gone on from are
        computed again with those that are now: they lie in a row in KV."""
        growing = {row: GrowingTree(int(self._counts[row])) for row in ready.tolist()}
        # The state behind each guess that was gone on from.
        behind = {(row, ROOT): int(at) for row, at in zip(ready.tolist(), sources, strict=True)}
        asked: list[Guess] = [(row, ROOT) for row in ready.tolist()]
        while True:
            self._grow(growing, asked, logits_DV, branches)
            asked = [
                (row, number)
                for row, tree in growing.items()
                for number in tree.worth_growing(branches)
            ]
            if not asked:
                break
            going = list(dict.fromkeys(row for row, _ in asked))
            elements = [
                (row, number)
                for row in going
                for number in (*growing[row].grown, *(own for of, own in asked if of == row))
            ]
            rows = np.array(going, np.intp)
            chunks = self._chunks(growing, rows, elements, asked)
            from_T = [behind[row, growing[row].parents[number]] for row, number in elements]
            logits_DV = self._model.go_on(self._rows.some(rows), chunks, np.array(from_T, np.intp))
            behind |= zip(asked, self._new_states(len(asked)).tolist(), strict=True)
        return [
            growing[row].tree() if row in growing else NO_GUESSES
            for row in range(len(self._counts))
        ]

    def _grow(
        self,
        growing: dict[int, GrowingTree],
        asked: Sequence[Guess],
        logits_DV: Tensor,
        branches: int,
    ) -> None:
        """What may follow these guesses."""
        rows = np.array([row for row, _ in asked], np.intp)
        depths = [growing[row].depths[number] if number != ROOT else 0 for row, number in asked]
        slots, positions = self._rows.slots[rows], self._rows.ends[rows] + np.array(depths)
        draws = self._kv.slots.sampling_rows(slots, positions)
        candidates = self._kernels.sample_candidates(logits_DV, draws, branches)
        tokens, shares = candidate_shares(candidates)
        for (row, number), follows, likely in zip(asked, tokens, shares, strict=True):
            growing[row].grow(number, follows, likely)

    def _chunks(
        self,
        growing: dict[int, GrowingTree],
        rows: Numbers,
        elements: Sequence[Guess],
        wanted: Sequence[Guess],
    ) -> Chunks:
        trees = [growing[row] for row, _ in elements]
        numbers = [number for _, number in elements]
        counts = np.array([sum(of == row for of, _ in elements) for row in rows.tolist()])
        first = dict(zip(rows.tolist(), (np.cumsum(counts) - counts).tolist(), strict=True))
        place = {guess: at - first[guess[0]] for at, guess in enumerate(elements)}
        parents = [
            place.get((row, tree.parents[number]), ROOT)
            for (row, number), tree in zip(elements, trees, strict=True)
        ]
        return Chunks(
            self._firsts(rows),
            counts,
            np.array([tree.tokens[number] for tree, number in zip(trees, numbers, strict=True)]),
            Branches(
                np.array(parents, np.int32),
                np.array(
                    [tree.depths[number] - 1 for tree, number in zip(trees, numbers, strict=True)]
                ),
                np.array([first[guess[0]] + place[guess] for guess in wanted]),
            ),
        )

    def _firsts(self, rows: Numbers) -> IntArray:
        """The element of the first guess of each."""
        firsts: IntArray = self._rows.ends[rows] - self._kv.shift
        return firsts

    def _new_states(self, count: int) -> Numbers:
        first, self._states = self._states, self._states + count
        return np.arange(first, self._states)
