"""Drafts in a step: where it draws, and which drafts are what was drawn in their place.

A row that checks drafts draws behind the last token that is known, and behind each draft. Its draws
count along the path of drafts that are what was drawn in their place: behind any other draft, the
draw was from wrong tokens. So a draft that is kept is the token that would have been drawn without
it (sample and match).
Axes: N rows of the plan, D of them drawing, R their draws, T packed tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tandem.facts.steps import BoolArray, IntArray, StepPlan
from tandem.facts.token_tree import TokenTree
from tandem.kernels.sampling import NO_TOKEN

Indices = NDArray[np.int64]
# Of each drawing row, which of its draws count.
Kept = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Draws:
    """What a step draws: of the sequences in `row_slots` [D] the tokens behind `row_ends` [D] that
    it knows or drafts, and behind what is before each draft. `draft_counts` [D] are those of the
    plan, and so are `drafts` [D]; None and empty: no row has any. `trees`: not all are chains."""

    row_slots: IntArray
    row_ends: IntArray
    draft_counts: IntArray | None = None
    drafts: tuple[TokenTree, ...] = ()
    trees: bool = False

    @classmethod
    def of(cls, plan: StepPlan) -> "Draws":
        slots, ends, counts = plan.slots, plan.starts + plan.counts, plan.draft_counts
        drafts = drafts_of(plan) if len(counts) else ()
        if not plan.samples.all():
            rows = np.flatnonzero(plan.samples)
            slots, ends = slots[rows], ends[rows]
            if len(counts):
                counts = counts[rows]
                drafts = [drafts[row] for row in rows.tolist()]
        if not len(plan.draft_counts):
            return cls(slots, ends)
        return cls(slots, ends, counts, tuple(drafts), len(plan.draft_parents) > 0)

    @cached_property
    def slots(self) -> IntArray:
        """Of each draw [R]."""
        if self.draft_counts is None:
            # Whoever waits for samples writes into it.
            return self.row_slots.copy()
        return np.repeat(self.row_slots, self.draft_counts + 1)

    @cached_property
    def positions(self) -> IntArray:
        """Of the token that each draw gives [R]."""
        if self.draft_counts is None:
            return self.row_ends
        counts = self.draft_counts + 1
        places = within(counts)
        if self.trees:
            places = np.concatenate([(0, *depths(each)) for each in self.drafts]).astype(np.int32)
        return np.repeat(self.first_positions, counts) + places

    @cached_property
    def first_positions(self) -> IntArray:
        """Of the first token that each row draws [D]."""
        return self.row_ends if self.draft_counts is None else self.row_ends - self.draft_counts

    @cached_property
    def firsts(self) -> Indices:
        """Where the draws of each drawing row begin [D]."""
        if self.draft_counts is None:
            return np.arange(len(self.row_slots))
        counts = self.draft_counts + 1
        return np.cumsum(counts, dtype=np.int64) - counts

    @cached_property
    def numbers(self) -> Indices:
        """Of each draw among those of its row [R]: 0 behind what is known, i + 1 behind draft i."""
        if self.draft_counts is None:
            return np.zeros(len(self.row_slots), np.int64)
        return within(self.draft_counts + 1).astype(np.int64)

    def tokens_before(self, draw: int) -> tuple[int, ...] | None:
        """The drafts that lead to a draw; None where these lie in a row behind what is known."""
        if not self.trees:
            return None
        row = int(np.searchsorted(self.firsts, draw, side="right")) - 1
        number, tree = draw - int(self.firsts[row]), self.drafts[row]
        return tuple(tree.tokens[each] for each in tree.path(number - 1)) if number else ()

    def kept(self, tokens_R: Sequence[int]) -> Kept:
        """Which draws of each drawing row count, in their order: at least the first."""
        if self.draft_counts is None:
            return ((0,),) * len(tokens_R)
        found, first = [], 0
        for tree in self.drafts:
            drawn = tokens_R[first : first + len(tree) + 1]
            path = tree.walk(drawn)
            # Where the model's numbers give out behind a draft, the next step shall say so.
            if path and drawn[path[-1] + 1] == NO_TOKEN:
                path = path[:-1]
            found.append((0, *(number + 1 for number in path)))
            first += len(drawn)
        return tuple(found)

    def counting(self, kept: Kept) -> list[int]:
        """The draws of all rows that count."""
        if self.draft_counts is None:
            return list(range(len(self.row_slots)))
        found, first = [], 0
        for row, tree in zip(kept, self.drafts, strict=True):
            found += [first + each for each in row]
            first += len(tree) + 1
        return found

    def moves(self, kept: Kept) -> tuple[IntArray, IntArray, IntArray]:
        """(slots, from, to): where KV of kept drafts lies in each sequence, and where it belongs.
        Drafts lie in a row, however they follow one another."""
        found: list[tuple[int, int, int]] = []
        for slot, first, row in zip(self.row_slots, self.first_positions, kept, strict=True):
            known = int(first)
            for place, number in enumerate(row[1:]):
                if number - 1 != place:
                    found.append((int(slot), known + number - 1, known + place))
        slots, sources, targets = np.array(found, np.int32).reshape(-1, 3).T
        return slots, sources, targets


def drafts_of(plan: StepPlan) -> list[TokenTree]:
    """Of each row [N]."""
    tokens, parents = plan.draft_tokens.tolist(), plan.draft_parents.tolist()
    ends = np.cumsum(plan.draft_counts).tolist()
    return [
        TokenTree(tuple(tokens[end - count : end]), tuple(parents[end - count : end]))
        for end, count in zip(ends, plan.draft_counts.tolist(), strict=True)
    ]


def depths(tree: TokenTree) -> list[int]:
    """How many drafts there are on the way to each, with its own."""
    found: list[int] = []
    for number in range(len(tree)):
        parent = tree.parent(number)
        found.append(found[parent] + 1 if parent >= 0 else 1)
    return found


def tree_queries(plan: StepPlan) -> tuple[IntArray, IntArray]:
    """(positions [T], parents [T]) of a step with trees: of each token among those of its row."""
    positions: list[int] = []
    parents: list[int] = []
    for start, count, tree in zip(plan.starts, plan.counts, drafts_of(plan), strict=True):
        known = int(count) - len(tree)
        end = int(start) + known
        positions += range(int(start), end)
        positions += [end - 1 + depth for depth in depths(tree)]
        parents += range(-1, known - 1)
        parents += [known + tree.parent(number) for number in range(len(tree))]
    return np.array(positions, np.int32), np.array(parents, np.int32)


def wanted_tokens(plan: StepPlan, query_start: IntArray) -> IntArray:
    """Of the packed tokens, those behind which something is drawn, and the last of each row: it
    tells whether what the row computed is sound."""
    if not len(plan.draft_counts):
        return query_start[1:] - 1
    counts = plan.draft_counts + 1
    return np.repeat(query_start[1:] - counts, counts) + within(counts)


def drawing_rows(plan: StepPlan) -> BoolArray:
    """Which of the wanted tokens belong to rows that draw."""
    if not len(plan.draft_counts):
        return plan.samples
    return np.repeat(plan.samples, plan.draft_counts + 1)


def draft_places(plan: StepPlan) -> tuple[IntArray, IntArray]:
    """(slots, places) of the plan's drafts, which lie in a row behind what is known."""
    counts = plan.draft_counts
    ends = plan.starts + plan.counts
    return np.repeat(plan.slots, counts), np.repeat(ends - counts, counts) + within(counts)


def within(counts: IntArray) -> IntArray:
    """0 .. count - 1 for each count, end to end."""
    if len(counts) == 1:
        return np.arange(counts[0], dtype=np.int32)
    ends = np.cumsum(counts, dtype=np.int32)
    return np.arange(counts.sum(), dtype=np.int32) - np.repeat(ends - counts, counts)
