"""Circuit breaker of admission: what its parameters are, and how it changes from one look at the
measured tail to the next.

Early rejection admits what is predicted to keep its SLO. Where what comes breaks it all the same,
predictions are not to be trusted: the breaker opens, and only a share of the SLO (and of the load,
where a class has none) is given out. The share falls by the overshoot and is given back step by
step (additive increase, multiplicative decrease: Chiu and Jain, 1989).
"""

from dataclasses import dataclass, replace
from enum import Enum
from math import inf

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.admission.tail import SLICES


@dataclass(frozen=True, slots=True)
class BreakerTerms:
    """A breaker opens when, of the last `window_s`, the 99th percentile is more than `p99_share` of
    the SLO, or the 99.9th more than `p999_share`; it closes by steps once both are below
    `holds_share` of that. At least `min_requests` must have been measured. What is given out is
    never less than `least_share`, and all of it again `recovery_s` after it was least."""

    window_s: float = 30.0
    min_requests: int = 20
    p99_share: float = 1.0
    p999_share: float = 1.5
    holds_share: float = 0.95
    least_share: float = 0.1
    recovery_s: float = 120.0

    def __post_init__(self) -> None:
        for name in ("window_s", "p99_share", "p999_share", "recovery_s"):
            value = getattr(self, name)
            if not 0 < value < inf:
                raise InvalidConfiguration(f"breaker: {name} is {value:g}; choose more than 0")
        if self.min_requests < 2:
            raise InvalidConfiguration(
                f"breaker: min_requests is {self.min_requests}; choose 2 or more, "
                "because one late request is no tail"
            )
        for name in ("holds_share", "least_share"):
            value = getattr(self, name)
            if not 0 < value <= 1:
                raise InvalidConfiguration(
                    f"breaker: {name} is {value:g}; choose a share above 0, at most 1"
                )

    @property
    def window_ns(self) -> int:
        return round(self.window_s * 1e9)

    @property
    def look_s(self) -> float:
        """Between two looks at what was measured."""
        return self.window_s / SLICES


class BreakerStage(Enum):
    """CLOSED: predictions are trusted. OPEN: they were wrong. HALF_OPEN: they hold again within a
    share that grows."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Measure(Enum):
    """What can miss its SLO."""

    TTFT = "TTFT"
    TPOT = "TPOT"


@dataclass(frozen=True, slots=True)
class Breaker:
    """State of one class's breaker: the shares of its SLO that may be promised; `cause` is whose
    tail was broken, and how, in words. `broke_at` is the share with which it was broken last."""

    stage: BreakerStage = BreakerStage.CLOSED
    ttft_share: float = 1.0
    tpot_share: float = 1.0
    cause: str = ""
    broke_at: float = 1.0

    @property
    def share(self) -> float:
        """The smaller of both: what is given out of the load where there is no SLO."""
        return min(self.ttft_share, self.tpot_share)


CLOSED = Breaker()
BOTH = (Measure.TTFT, Measure.TPOT)

# However far the tail is off, the share is at most halved and at least cut by a tenth at one go.
_MOST_CUT, _LEAST_CUT = 0.5, 0.9
# From this part of what was too much, steps are smaller: every one of them may be too far.
_NEAR, _CAREFUL = 0.85, 0.2


@dataclass(frozen=True, slots=True)
class Broken:
    """What was found to be missed: `measures`, `overshoot` times (more than 1) as long as they may
    be."""

    measures: tuple[Measure, ...]
    overshoot: float
    cause: str


def tightened(breaker: Breaker, broken: Broken, terms: BreakerTerms) -> Breaker:
    """After a look that found the tail broken."""
    cut = min(max(1.0 / broken.overshoot, _MOST_CUT), _LEAST_CUT)
    ttft_share, tpot_share = breaker.ttft_share, breaker.tpot_share
    if Measure.TTFT in broken.measures:
        ttft_share = max(terms.least_share, ttft_share * cut)
    if Measure.TPOT in broken.measures:
        tpot_share = max(terms.least_share, tpot_share * cut)
    return Breaker(BreakerStage.OPEN, ttft_share, tpot_share, broken.cause, broke_at=breaker.share)


def relaxed(breaker: Breaker, terms: BreakerTerms) -> Breaker:
    """After a look that found it kept: one step, of those that `recovery_s` has room for; a smaller
    one near what was too much last time."""
    step = (1.0 - terms.least_share) * terms.look_s / terms.recovery_s
    if breaker.broke_at < 1.0 and breaker.share > _NEAR * breaker.broke_at:
        step *= _CAREFUL
    ttft_share, tpot_share = (
        min(1.0, breaker.ttft_share + step),
        min(1.0, breaker.tpot_share + step),
    )
    if min(ttft_share, tpot_share) >= 1.0:
        return CLOSED
    return replace(
        breaker,
        stage=BreakerStage.HALF_OPEN,
        ttft_share=ttft_share,
        tpot_share=tpot_share,
    )


def exhausted(breaker: Breaker, broken: Broken, terms: BreakerTerms) -> bool:
    """Whether nothing more can be taken of what would help."""
    shares = {Measure.TTFT: breaker.ttft_share, Measure.TPOT: breaker.tpot_share}
    return all(shares[measure] <= terms.least_share for measure in broken.measures)
