"""What a worker has learnt of drafts: chances of being kept, by place and by sequence, and how long
its steps take by their size.

All that was measured fades, so that what did not pay is tried again after a while.
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
# How far a time moves towards the newest, of which no more than so many times what was expected
# counts: the others were disturbed.
FOLLOWS = 0.06
MOST_LONGER = 1.5
SELDOM_SEEN = 2.0
# Before that nothing is known.
FIRST_STEPS = 3
# The first of a size is believed to take at most so many times what was expected.
MOST_UNEXPECTED = 2.0
# Sizes of steps whose times are kept; how much each counts at most, what remains of that with each
# step of another size, and what the plane through all counts.
MOST_SIZES = 96
MOST_SEEN = 32.0
SIZE_FADES = 0.99
PLANE_WEIGHT = 2.0
# Before anything was measured: what a token and a draft token add to a step, as shares of it.
TOKEN_SHARE, DRAFT_SHARE = 0.02, 0.02
GUESS_WEIGHT = 4.0


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
        self.times = DecodeStepTimes()
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


class _Size(Struct):
    """Steps of one size: how long they take, how many were seen (fading), and when the last."""

    took_ns: float
    seen: float
    at_step: int


class DecodeStepTimes:
    """Nanoseconds of steps without prompts, by their tokens and the longest draft that they made.
    What was seldom measured, or long ago, is held to a plane through all that was.
    """

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._steps = 0
        self._plane: tuple[float, float, float] | None = None

    @property
    def known(self) -> bool:
        """Whether enough was measured to tell a usual step from a disturbed one."""
        return self._steps >= FIRST_STEPS

    def step_landed(self, tokens: int, drafted: int, took_ns: float, steps: int = 1) -> float:
        """One of so many `steps`, of which only this is looked at. Gives what counts of it."""
        self._steps += steps
        took_ns, key = max(1.0, took_ns), (alike_sizes(tokens), drafted)
        size = self._sizes.get(key)
        if size is None and self._sizes:
            took_ns = min(took_ns, MOST_UNEXPECTED * self.step_ns(tokens, drafted))
        self._plane = None
        if size is None:
            if len(self._sizes) == MOST_SIZES:
                del self._sizes[min(self._sizes, key=lambda key: self._sizes[key].at_step)]
            self._sizes[key] = _Size(took_ns, 1.0, self._steps)
            return took_ns
        seldom = self._weight(size) < SELDOM_SEEN
        took_ns = min(took_ns, MOST_LONGER * size.took_ns)
        if not seldom:
            size.took_ns += FOLLOWS * (took_ns - size.took_ns)
        elif took_ns < size.took_ns:
            # What was seldom seen, or long ago, may be nothing but a disturbance.
            size.took_ns = took_ns
        size.seen = min(MOST_SEEN, self._weight(size) + 1.0)
        size.at_step = self._steps
        return took_ns

    def step_ns(self, tokens: int, drafted: int) -> float:
        """See `StepTimes`. Some step was measured before."""
        if self._plane is None:
            self._plane = self._fitted()
        base, per_token, per_draft = self._plane
        expected_ns = base + per_token * tokens + per_draft * drafted
        size = self._sizes.get((alike_sizes(tokens), drafted))
        if size is None:
            return expected_ns
        weight = self._weight(size)
        return (weight * size.took_ns + PLANE_WEIGHT * expected_ns) / (weight + PLANE_WEIGHT)

    def _weight(self, size: _Size) -> float:
        return float(size.seen * SIZE_FADES ** (self._steps - size.at_step))

    def _fitted(self) -> tuple[float, float, float]:
        """Least squares over the sizes that were seen, each as often as it was, held to the first
        guess where they do not say; nothing gets faster by doing more."""
        weighted = [(self._weight(size), *key, size.took_ns) for key, size in self._sizes.items()]
        total = sum(weight for weight, *_ in weighted)
        middle = sum(weight * took for weight, _, _, took in weighted) / total
        mean_tokens = sum(weight * tokens for weight, tokens, _, _ in weighted) / total
        mean_drafted = sum(weight * drafted for weight, _, drafted, _ in weighted) / total
        guess_token, guess_draft = TOKEN_SHARE * middle, DRAFT_SHARE * middle
        # Normal equations of what deviates from the guess, with a ridge.
        tt, td, dd = GUESS_WEIGHT, 0.0, GUESS_WEIGHT
        ts = ds = 0.0
        for weight, tokens, drafted, took_ns in weighted:
            x, y = tokens - mean_tokens, drafted - mean_drafted
            rest = weight * (took_ns - middle - guess_token * x - guess_draft * y)
            tt, td, dd = tt + weight * x * x, td + weight * x * y, dd + weight * y * y
            ts, ds = ts + x * rest, ds + y * rest
        divisor = tt * dd - td * td
        per_token = max(0.0, guess_token + (ts * dd - ds * td) / divisor)
        per_draft = max(0.0, guess_draft + (ds * tt - ts * td) / divisor)
        base = middle - per_token * mean_tokens - per_draft * mean_drafted
        if base <= 0.0:
            # A plane that says a step of nothing gives time back says nothing of other sizes.
            return 0.0, middle / max(1.0, mean_tokens), per_draft
        return base, per_token, per_draft


def alike_sizes(tokens: int) -> int:
    """Steps of about as many tokens count as one size: to three binary digits."""
    shift = max(0, tokens.bit_length() - 3)
    return tokens >> shift << shift
