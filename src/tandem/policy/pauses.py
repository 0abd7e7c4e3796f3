"""Pauses of agents' sessions: how long one will last, when to bring the KV of its session back to a
device, and where.
"""

from collections.abc import Iterable
from math import inf

from msgspec import Struct

from tandem.facts.fleet import Role, Tier
from tandem.policy.routing.prediction import Predictor, worthwhile_pulls
from tandem.policy.views import RequestView, WorkerView, view_of

NS_PER_S = 1_000_000_000
# Gains of mean and deviation, as of round trips in TCP (RFC 6298).
MEAN_GAIN = 1 / 8
DEVIATION_GAIN = 1 / 4
# An announced pause is taken to be right to a tenth.
ANNOUNCED_DEVIATION = 0.1
# What is brought back is there so long before it is expected to be needed: at least so many
# seconds, and never for most of the pause.
LEAST_MARGIN_S = 0.02
LARGEST_MARGIN = 0.5
# After its expected end a pause may last as long again, and so much more, before what is pinned for
# it is let go.
LATE_S = 5.0


class ExpectedPause(Struct, frozen=True):
    """How long a session pauses, and by how much it usually differs."""

    seconds: float
    deviation_s: float

    def after(self, seconds: float) -> "ExpectedPause":
        """Once another pause has been so long."""
        error_s = seconds - self.seconds
        return ExpectedPause(
            self.seconds + MEAN_GAIN * error_s,
            self.deviation_s + DEVIATION_GAIN * (abs(error_s) - self.deviation_s),
        )


def announced_pause(seconds: float) -> ExpectedPause:
    """Of a pause that the client has announced."""
    return ExpectedPause(seconds, ANNOUNCED_DEVIATION * seconds)


def first_pause(seconds: float) -> ExpectedPause:
    """Of the pauses of which one has been so long."""
    return ExpectedPause(seconds, seconds / 2)


class PausePlan(Struct, frozen=True):
    """What to do about a pause that begins now: the session is expected back in `return_in_ns`, its
    KV is brought back in `prefetch_in_ns`, and until then kept in slower tiers for `pin_ns`."""

    return_in_ns: int
    prefetch_in_ns: int
    pin_ns: int


def plan_pause(pause: ExpectedPause, pull_s: float, longest_s: float) -> PausePlan | None:
    """None where there is nothing to gain: the pause is over before KV that takes `pull_s` to bring
    back could have made room for anybody, or it is longer than KV is kept for a pause."""
    margin_s = max(LEAST_MARGIN_S, min(pause.deviation_s, LARGEST_MARGIN * pause.seconds))
    prefetch_in_s = pause.seconds - pull_s - margin_s
    if prefetch_in_s <= pull_s or pause.seconds > longest_s:
        return None
    pin_s = min(2 * pause.seconds + LATE_S, longest_s)
    return PausePlan(
        round(pause.seconds * NS_PER_S), round(prefetch_in_s * NS_PER_S), round(pin_s * NS_PER_S)
    )


def quickest_pull_s(worker: WorkerView, tokens: int) -> float:
    """Seconds to bring the KV of so many tokens to a device from the fastest slower tier; infinite
    where there is none."""
    tiers = (tier for tier in worker.cost.tiers if tier is not Tier.DEVICE)
    return min((worker.cost.pull_seconds(tier, tokens) for tier in tiers), default=inf)


def place_to_return(
    request: RequestView, workers: Iterable[WorkerView], predictor: Predictor
) -> WorkerView | None:
    """Where the session's next call would have its first token soonest, among those who hold
    something of it or could have it from the shared pool; None where nobody does."""
    prefilling = [each for each in workers if each.accepting and each.role.prefills]
    if not request.remote_tokens:
        prefilling = [each for each in prefilling if each.worker in request.hits]
    if not prefilling:
        return None
    quotes = {
        view.worker: quote.ttft_s
        for role in Role
        if (alike := [each for each in prefilling if each.role is role])
        for view, quote in zip(alike, predictor.prefill_quotes(request, alike, role), strict=True)
    }
    return view_of(prefilling, min(quotes, key=lambda worker: (quotes[worker], worker)))


def tokens_to_bring(request: RequestView, worker: WorkerView, predictor: Predictor) -> int:
    """Up to which token the KV of the session should be on the worker's device; 0 where all that is
    worth it is there. The hits must be what the worker holds now."""
    ends = worthwhile_pulls(request, worker, predictor)
    return ends[-1][1] if ends else 0
