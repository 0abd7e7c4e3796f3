"""How long decode steps of a worker take, by their size: what deciding about drafts rests on.

Measured times fade, and a machine that others use disturbs some of them.
"""

from msgspec import Struct

# How far a time moves towards the newest, of which no more than so many times what was expected
# counts: the others were disturbed.
FOLLOWS = 0.06
MOST_LONGER = 1.5
# A size that counts less was seen too seldom, or too long ago, for a mean.
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
