"""Drafts in a step: where it draws, and which drafts are what was drawn in their place.

A row that checks drafts draws the token behind each of its last tokens. Its draws count up to the
first that is not the draft in its place: that one was drawn from the right tokens, what follows was
not. So a draft that is kept is the token that would have been drawn without it (sample and match).
Axes: N rows of the plan, D of them drawing, R their draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandem.facts.steps import BoolArray, IntArray, StepPlan
from tandem.kernels.sampling import NO_TOKEN

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Draws:
    """What a step draws: tokens at `positions` [R] of the sequences in `slots` [R]. `counts` [D]
    are the draws of each drawing row; None: one each. `drafts` are the plan's, row after row."""

    slots: IntArray
    positions: IntArray
    counts: IntArray | None = None
    drafts: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, plan: StepPlan) -> "Draws":
        sampling = np.flatnonzero(plan.samples)
        slots, ends = plan.slots[sampling], (plan.starts + plan.counts)[sampling]
        if not len(plan.draft_counts):
            return cls(slots, ends)
        counts = plan.draft_counts[sampling] + 1
        tokens = iter(plan.draft_tokens.tolist())
        drafts = tuple(tuple(next(tokens) for _ in range(count - 1)) for count in counts.tolist())
        places = within(counts) - np.repeat(counts - 1, counts)
        return cls(np.repeat(slots, counts), np.repeat(ends, counts) + places, counts, drafts)

    @property
    def row_slots(self) -> IntArray:
        """Of the drawing rows [D]."""
        return self.slots if self.counts is None else self.slots[self.firsts]

    @property
    def firsts(self) -> Indices:
        """Where the draws of each drawing row begin [D]."""
        if self.counts is None:
            return np.arange(len(self.slots))
        return np.cumsum(self.counts, dtype=np.int64) - self.counts

    def kept(self, tokens_R: Sequence[int]) -> tuple[int, ...]:
        """How many draws of each drawing row count: at least one each."""
        if self.counts is None:
            return (1,) * len(tokens_R)
        found, first = [], 0
        for drafts in self.drafts:
            drawn = tokens_R[first : first + len(drafts)]
            same = [draft == token for draft, token in zip(drafts, drawn, strict=True)]
            count = 1 + (same.index(False) if False in same else len(same))
            # Where the model's numbers give out behind a draft, the next step shall say so.
            if count > 1 and tokens_R[first + count - 1] == NO_TOKEN:
                count -= 1
            found.append(count)
            first += len(drafts) + 1
        return tuple(found)

    def counting(self, kept: Sequence[int]) -> Indices:
        """Which draws are among the `kept` ones of their rows."""
        kept_D = np.array(kept, np.int32)
        return np.repeat(self.firsts, kept_D) + within(kept_D)


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
    """(slots, positions) of the plan's drafts."""
    counts = plan.draft_counts
    ends = plan.starts + plan.counts
    return np.repeat(plan.slots, counts), np.repeat(ends - counts, counts) + within(counts)


def within(counts: IntArray) -> IntArray:
    """0 .. count - 1 for each count, end to end."""
    ends = np.cumsum(counts, dtype=np.int32)
    return np.arange(counts.sum(), dtype=np.int32) - np.repeat(ends - counts, counts)
