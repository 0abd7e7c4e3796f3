"""The benefit gate: a tier is used only while fetching a token is measured to be faster than
computing it; one that loses or fails rests and is tried again. Both are throughputs: fetches that
share a link take longer each, as prompts do that share a step."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

from msgspec import structs

from tandem.cluster.tiers.config import TierLimits
from tandem.facts.fleet import Tier
from tandem.facts.kv import TierFigures
from tandem.facts.steps import StepPlan

NS_PER_S = 1_000_000_000
# How long a tier is off, doubled each time in a row up to the longest.
FIRST_PAUSE_NS = 60 * NS_PER_S
LONGEST_PAUSE_NS = 3600 * NS_PER_S
# So many failures in a row switch a tier off for a moment, doubled likewise.
FAILURES_IN_A_ROW = 3
FIRST_REST_NS = 5 * NS_PER_S
# Older measurements weigh half after so many tokens of newer ones.
HALF_LIFE_TOKENS = 4096


class Pace:
    """Seconds a token, weighed by tokens, the younger the more."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._tokens = 0.0

    @property
    def s_per_token(self) -> float:
        """0 while nothing was measured."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def add(self, tokens: int, seconds: float) -> None:
        kept = 0.5 ** (tokens / HALF_LIFE_TOKENS)
        self._seconds = kept * self._seconds + seconds
        self._tokens = kept * self._tokens + tokens


class LinkUse:
    """How the fetches under way from one tier share its time: of n at once, each has an n-th."""

    def __init__(self) -> None:
        self._under_way = 0
        self._as_of_ns = 0
        self._share_ns = 0.0

    def begin_fetch(self, now_ns: int) -> float:
        """One more. Give the result to `end_fetch`."""
        self._advance(now_ns)
        self._under_way += 1
        return self._share_ns

    def end_fetch(self, begun: float, now_ns: int) -> float:
        """One less: the nanoseconds that were its own. Those of all are the time in which there was
        any."""
        self._advance(now_ns)
        self._under_way -= 1
        return self._share_ns - begun

    def _advance(self, now_ns: int) -> None:
        if self._under_way:
            self._share_ns += (now_ns - self._as_of_ns) / self._under_way
        self._as_of_ns = now_ns


@dataclass(slots=True)
class TierGain:
    """One tier. `fetches` and `tokens` are the evidence since it was last switched on, `newest` the
    seconds a token of the last few; it is off until `off_until_ns` because of `reason`."""

    pace: Pace
    newest: deque[float] = field(default_factory=deque)
    fetches: int = 0
    tokens: int = 0
    failures: int = 0
    pause_ns: int = FIRST_PAUSE_NS
    rest_ns: int = FIRST_REST_NS
    off_until_ns: int = 0
    reason: str = ""


class BenefitGate:
    """Deals in tiers and figures only."""

    def __init__(self, tiers: Iterable[Tier], limits: TierLimits) -> None:
        self._limits = limits
        self._gains = {tier: TierGain(Pace()) for tier in tiers}
        self._compute = Pace()

    def computed(self, tokens: int, seconds: float) -> None:
        """So many prompt tokens were computed, in a step of hardly anything else."""
        self._compute.add(tokens, seconds)

    def fetched(self, tier: Tier, tokens: int, seconds: float, now_ns: int) -> None:
        """A fetch from this tier alone brought so many tokens in so many seconds of the link's
        time."""
        gain = self._gains[tier]
        if not gain.fetches:
            # A trial looks at its own fetches alone.
            gain.pace = Pace()
            gain.newest = deque(maxlen=self._limits.trial_fetches)
        gain.pace.add(tokens, seconds)
        gain.newest.append(seconds / tokens)
        gain.fetches += 1
        gain.tokens += tokens
        limits = self._limits
        if gain.fetches < limits.trial_fetches or gain.tokens < limits.trial_tokens:
            return
        fetch, compute = gain.pace.s_per_token, self._compute.s_per_token
        # One fetch during which the machine was busy elsewhere says nothing about the tier.
        if not compute or min(fetch, median(gain.newest)) <= compute:
            gain.pause_ns = FIRST_PAUSE_NS
            return
        times = f"{fetch * 1e6:.0f} us a token, computing {compute * 1e6:.0f} us"
        self._switch_off(gain, gain.pause_ns, f"fetching takes {times}", now_ns)
        gain.pause_ns = min(2 * gain.pause_ns, LONGEST_PAUSE_NS)

    def worked(self, tier: Tier) -> None:
        """Something was read or written without trouble."""
        gain = self._gains[tier]
        gain.failures, gain.rest_ns = 0, FIRST_REST_NS

    def failed(self, tier: Tier, problem: str, now_ns: int) -> None:
        """Reading or writing had a problem. One that is off already is no worse for it: what is
        still written there fails, too."""
        gain = self._gains[tier]
        if not self.is_on(tier, now_ns):
            return
        gain.failures += 1
        if gain.failures >= FAILURES_IN_A_ROW:
            gain.failures = 0
            self._switch_off(gain, gain.rest_ns, problem, now_ns)
            gain.rest_ns = min(2 * gain.rest_ns, LONGEST_PAUSE_NS)

    def is_on(self, tier: Tier, now_ns: int) -> bool:
        """Whether the tier is worth its while, as far as is known."""
        return now_ns >= self._gains[tier].off_until_ns

    def judged(self, figures: TierFigures, now_ns: int) -> TierFigures:
        """With what is known here beside."""
        gain = self._gains[figures.tier]
        on = self.is_on(figures.tier, now_ns)
        return structs.replace(
            figures,
            on=figures.on and on,
            fetch_s_per_token=gain.pace.s_per_token,
            compute_s_per_token=self._compute.s_per_token,
            reason=figures.reason if on else gain.reason,
        )

    def _switch_off(self, gain: TierGain, pause_ns: int, reason: str, now_ns: int) -> None:
        gain.off_until_ns = max(gain.off_until_ns, now_ns + pause_ns)
        gain.reason = reason
        gain.fetches = gain.tokens = 0


# A step measures prefill from so many tokens on, nearly all of them of prompts.
LEAST_TOKENS = 32
LEAST_PROMPT_SHARE = 0.75


class StepClock:
    """Steps land in the order in which they were launched; one that waited behind another began
    when that landed."""

    def __init__(self, benefit: BenefitGate) -> None:
        self._benefit = benefit
        self._in_flight: deque[tuple[int, int]] = deque()
        self._landed_ns = 0

    def launched(self, plan: StepPlan, now_ns: int) -> None:
        """A step was asked for."""
        batched_tokens = plan.batched_tokens
        prompt_tokens = batched_tokens - len(plan.slots)
        telling = (
            batched_tokens >= LEAST_TOKENS and prompt_tokens >= LEAST_PROMPT_SHARE * batched_tokens
        )
        self._in_flight.append((now_ns, batched_tokens if telling else 0))

    def landed(self, now_ns: int) -> None:
        """The step launched first of those under way is done."""
        launched_ns, tokens = self._in_flight.popleft()
        if tokens:
            seconds = (now_ns - max(launched_ns, self._landed_ns)) / NS_PER_S
            self._benefit.computed(tokens, seconds)
        self._landed_ns = now_ns

    def skipped(self, landed_ns: int) -> None:
        """Steps that only decode were taken at one go, the last of which landed then."""
        self._landed_ns = landed_ns
