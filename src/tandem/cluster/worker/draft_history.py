"""What a worker has learnt of drafts: chances of being kept, by place and by sequence.

All that was seen fades, so that what did not pay is tried again after a while.
"""

from itertools import accumulate
from math import log
from operator import mul

from msgspec import Struct

from tandem.policy.speculation import DraftChances

# Before anything was seen: as good a chance as is worth a try, and what that counts as, in tokens.
FIRST_KEPT, FIRST_OFFERED = 0.7, 0.8
PRIOR_TOKENS = 2.0
# What is known of all sequences counts as so many tokens of each: one miss says little.
ALL_TOKENS = 12.0
# No chance is certain, one way or the other.
LEAST_KEPT, MOST_KEPT = 0.01, 0.99
# What remains of an observation after each further step.
CHANCE_FADES, OFFER_FADES, TOTAL_FADES = 0.97, 0.9, 0.99
# Within so many steps, at the most, whoever begins to be drafted for is caught up with.
CATCH_UP_STEPS = 8


class DraftRecord(Struct):
    """Of one sequence, fading: of `tried` draft tokens, each after kept ones, `kept` were kept; of
    `wanted` tokens `offered` were drafted. The newest `begun_steps` have all wanted some."""

    kept: float = 0.0
    tried: float = 0.0
    offered: float = 0.0
    wanted: float = 0.0
    begun_steps: int = 0

    @property
    def catches_up(self) -> bool:
        """Whether who drafts for it may just be reading what was said before, once."""
        return not self.begun_steps or (self.begun_steps < CATCH_UP_STEPS and not self.offered)

    def fade(self, steps: int) -> None:
        """So many steps went without drafts. What was kept seldom is forgotten, so that it is tried
        again; what was kept often would only look worse."""
        if self.kept < FIRST_KEPT * self.tried:
            self.kept *= CHANCE_FADES**steps
            self.tried *= CHANCE_FADES**steps
        self.wanted *= OFFER_FADES**steps
        self.offered *= OFFER_FADES**steps
        self.begun_steps = 0


class DraftHistory:
    """Owns what was learnt of all sequences; the record of each is with the sequence.

    The places behind each other differ alike for all (each head of Medusa is right in its own share
    of cases), and sequences differ as a whole: a chance is that of its place, to a power.
    """

    def __init__(self, most_tokens: int) -> None:
        # Of all, by place: how many draft tokens after kept ones there were, and were kept.
        self._tried = [0.0] * most_tokens
        self._kept = [0.0] * most_tokens
        # Made of these, once a step: the chance at each place, and that over all places.
        self._usual: tuple[list[float], float] | None = None

    def row_landed(
        self, record: DraftRecord, tried: int, kept: int, wanted: int, offered: int
    ) -> None:
        """Of the drafts of a sequence `tried` stood behind kept ones only, and `kept` were kept
        themselves; of those `wanted` for the next step some were `offered`."""
        record.kept = record.kept * CHANCE_FADES + kept
        record.tried = record.tried * CHANCE_FADES + tried
        record.wanted = record.wanted * OFFER_FADES + wanted
        record.offered = record.offered * OFFER_FADES + offered
        record.begun_steps = record.begun_steps + 1 if wanted else 0
        for place in range(tried):
            self._tried[place] += 1
            self._kept[place] += place < kept

    def step_landed(self, drafted: bool) -> None:
        """After the rows of a step, some of which `drafted`."""
        self._usual = None
        for place, (tried, kept) in enumerate(zip(self._tried, self._kept, strict=True)):
            if drafted or kept < FIRST_KEPT * tried:
                self._tried[place] = tried * TOTAL_FADES
                self._kept[place] = kept * TOTAL_FADES

    def chances(self, record: DraftRecord) -> DraftChances:
        """Of a sequence, by what was seen of it and, as long as that is little, of all."""
        by_place, usual = self._usual or self._learnt()
        own = _bounded((record.kept + ALL_TOKENS * usual) / (record.tried + ALL_TOKENS))
        power = log(own) / log(usual)
        return DraftChances(
            tuple(accumulate([each**power for each in by_place], mul)),
            (record.offered + FIRST_OFFERED * PRIOR_TOKENS) / (record.wanted + PRIOR_TOKENS),
        )

    def _learnt(self) -> tuple[list[float], float]:
        chances = [_usually(*each) for each in zip(self._kept, self._tried, strict=True)]
        self._usual = chances, _usually(sum(self._kept), sum(self._tried))
        return self._usual


def _usually(kept: float, tried: float) -> float:
    return _bounded((kept + PRIOR_TOKENS * FIRST_KEPT) / (tried + PRIOR_TOKENS))


def _bounded(chance: float) -> float:
    return min(max(chance, LEAST_KEPT), MOST_KEPT)
