"""What a worker has learnt of drafts: chances of being kept by sequence, and how long its steps
take by their size.

All that was measured fades, so that what did not pay is tried again after a while.
"""

from msgspec import Struct

from tandem.policy.speculation import DraftChances

# Before anything was seen: as good a chance as is worth a try, and what that counts as, in tokens.
FIRST_KEPT, FIRST_OFFERED = 0.7, 0.8
PRIOR_TOKENS = 2.0
# What remains of an observation after each further step.
CHANCE_FADES, OFFER_FADES = 0.97, 0.9
TIME_FADES = 0.9
# Sizes of steps whose times are kept, for so many steps.
MOST_SIZES = 96
SIZE_STEPS = 512
# Before anything was measured: what a token and a draft token add to a step, as shares of it.
TOKEN_SHARE, DRAFT_SHARE = 0.02, 0.02


class DraftRecord(Struct):
    """Of one sequence, fading: of `tried` draft tokens, each after kept ones, `kept` were kept; of
    `wanted` tokens `offered` were drafted."""

    kept: float = 0.0
    tried: float = 0.0
    offered: float = 0.0
    wanted: float = 0.0

    def fade(self, remains: float) -> None:
        """What was seen of drafts counts less from now on."""
        self.kept *= remains
        self.tried *= remains

    def row_landed(self, drafted: int, kept: int, wanted: int, offered: int) -> None:
        """A step checked so many drafts and proposed others."""
        self.kept = self.kept * CHANCE_FADES + kept
        self.tried = self.tried * CHANCE_FADES + kept + (kept < drafted)
        self.wanted = self.wanted * OFFER_FADES + wanted
        self.offered = self.offered * OFFER_FADES + offered

    def chances(self, expected: float) -> DraftChances:
        """By what was seen of it and what is `expected` of any."""
        return DraftChances(
            (self.kept + PRIOR_TOKENS * expected) / (self.tried + PRIOR_TOKENS),
            (self.offered + FIRST_OFFERED * PRIOR_TOKENS) / (self.wanted + PRIOR_TOKENS),
        )


class _Size(Struct):
    """Steps of one size: how long they take, fading, and when there was the last."""

    took_ns: float
    at_step: int


class DecodeStepTimes:
    """Nanoseconds of steps without prompts, by their tokens and the longest draft that they made.
    What was not measured lies on a plane through what was."""

    def __init__(self) -> None:
        self._sizes: dict[tuple[int, int], _Size] = {}
        self._steps = 0
        self._plane: tuple[float, float, float] | None = None

    @property
    def known(self) -> bool:
        """Whether any step was measured."""
        return bool(self._sizes)

    def step_landed(self, tokens: int, drafted: int, took_ns: float) -> None:
        self._steps += 1
        self._plane = None
        took_ns = max(1.0, took_ns)
        size = self._sizes.get((tokens, drafted))
        if size is None:
            if len(self._sizes) == MOST_SIZES:
                del self._sizes[min(self._sizes, key=lambda key: self._sizes[key].at_step)]
            self._sizes[tokens, drafted] = _Size(took_ns, self._steps)
            return
        # One slow step among many is the machine's, not the size's.
        took_ns = min(took_ns, 2 * size.took_ns)
        size.took_ns += (1 - TIME_FADES) * (took_ns - size.took_ns)
        size.at_step = self._steps

    def step_ns(self, tokens: int, drafted: int) -> float:
        """See `StepTimes`. Some step was measured before."""
        size = self._sizes.get((tokens, drafted))
        if size is not None and self._steps - size.at_step < SIZE_STEPS:
            return size.took_ns
        if self._plane is None:
            self._plane = self._fitted()
        base, per_token, per_draft = self._plane
        return base + per_token * tokens + per_draft * drafted

    def _fitted(self) -> tuple[float, float, float]:
        """Least squares over the sizes that were seen lately, held to the first guess where they do
        not say; nothing gets faster by doing more."""
        sizes = self._sizes.items()
        middle = sum(size.took_ns for _, size in sizes) / len(sizes)
        mean_tokens = sum(tokens for (tokens, _), _ in sizes) / len(sizes)
        mean_drafted = sum(drafted for (_, drafted), _ in sizes) / len(sizes)
        guess_token, guess_draft = TOKEN_SHARE * middle, DRAFT_SHARE * middle
        # Normal equations of what deviates from the guess, with a ridge.
        tt = td = dd = 1e-9
        ts = ds = 0.0
        for (tokens, drafted), size in sizes:
            x, y = tokens - mean_tokens, drafted - mean_drafted
            rest = size.took_ns - middle - guess_token * x - guess_draft * y
            tt, td, dd = tt + x * x, td + x * y, dd + y * y
            ts, ds = ts + x * rest, ds + y * rest
        tt, dd = tt + 1.0, dd + 1.0
        divisor = tt * dd - td * td
        per_token = max(0.0, guess_token + (ts * dd - ds * td) / divisor)
        per_draft = max(0.0, guess_draft + (ds * tt - ts * td) / divisor)
        base = middle - per_token * mean_tokens - per_draft * mean_drafted
        if base <= 0.0:
            # A plane that says a step of nothing gives time back says nothing of other sizes.
            return 0.0, middle / max(1.0, mean_tokens), per_draft
        return base, per_token, per_draft
