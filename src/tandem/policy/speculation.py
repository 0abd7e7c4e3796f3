"""Speculation: how many tokens are drafted for each running sequence before the model is asked.

A step that checks drafts draws the token in the place of each of them, and keeps a draft while it
is what was drawn: so no answer depends on any of this, and what is decided here is speed alone. A
draft token is worth the chance that it is kept, and costs what the step takes longer for it; the
step as a whole should give the most tokens a second (goodput, as in SmartSpec, Liu et al. 2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Protocol

from tandem.facts.steps import MOST_DRAFT_TOKENS

# Of all sequences together in a step: each of their draws is a row of logits.
MOST_STEP_DRAFTS = 64
# How many may be drafted in all: this is decided often, and numbers between are as good.
WEIGHED_COUNTS = (*range(1, 9), *range(10, 17, 2), *range(20, 33, 4), 40, 48, 56, MOST_STEP_DRAFTS)
# What drafts must promise over none: both are estimates, and the next step waits for them.
LEAST_GAIN = 1.03
# Of rules that promise about as much the one that drafts more is taken: what it tries is learnt.
ALIKE = 0.97


class StepTimes(Protocol):
    """How long a step of decodes takes."""

    def step_ns(self, tokens: int, drafted: int) -> float:
        """With so many tokens in all, at whose end the longest draft for the next step is of
        `drafted` tokens."""
        ...


@dataclass(frozen=True, slots=True)
class DraftChances:
    """Of one sequence: how often all of its first 1, 2, ... draft tokens are kept (`kept`, which
    never rises), and how often there is one where one is wanted (`offered`)."""

    kept: tuple[float, ...]
    offered: float = 1.0


@dataclass(frozen=True, slots=True)
class DraftRule:
    """A sequence gets drafts as long as the last of them is kept with a chance of `least_chance`,
    and at most `longest`."""

    longest: int
    least_chance: float = 0.0

    def tokens_for(self, chances: DraftChances) -> int:
        """How many tokens to draft for such a sequence."""
        for count, kept in enumerate(chances.kept[: self.longest]):
            if chances.offered * kept < self.least_chance:
                return count
        return min(self.longest, len(chances.kept))


NO_DRAFTS = DraftRule(0)


@dataclass(frozen=True, slots=True)
class Speculation:
    """At most `most_tokens` drafts a sequence and step; where not `adaptive`, always as many.
    Raises `ValueError` for a number that is out of range."""

    most_tokens: int = 4
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.most_tokens <= MOST_DRAFT_TOKENS:
            raise ValueError(f"must be 1 to {MOST_DRAFT_TOKENS}, got {self.most_tokens}")

    def rule(self, running: Sequence[DraftChances], times: StepTimes) -> DraftRule:
        """By which the tokens a second of these sequences are the most; there are chances of
        `most_tokens` tokens of each."""
        if not self.adaptive:
            return DraftRule(self.most_tokens)
        rows = len(running)
        best, best_rate = NO_DRAFTS, rows / times.step_ns(rows, 0)
        worth = best_rate * LEAST_GAIN
        by_place = [
            [each.offered * each.kept[place] for each in running]
            for place in range(self.most_tokens)
        ]
        chances: list[float] = []
        for longest, of_place in enumerate(by_place, 1):
            # A step takes no more: what lies beyond is not worth the time to weigh it.
            chances = sorted(chances + of_place, reverse=True)[:MOST_STEP_DRAFTS]
            expected = list(accumulate(chances, initial=float(rows)))
            for count in (*takewhile(len(chances).__gt__, WEIGHED_COUNTS), len(chances)):
                rate = expected[count] / times.step_ns(rows + count, longest)
                if rate > worth and rate >= ALIKE * best_rate:
                    # Midway to who just gets none, as chances are not known that exactly.
                    least = (chances[count - 1] + next(iter(chances[count:]), 0.0)) / 2
                    best, best_rate = DraftRule(longest, least), max(rate, best_rate)
        return best
