"""Demand: how many workers a workload needs to keep its SLO, from the distribution of its lengths.

Prefill is a queue with several servers, M/G/c with bursts: the second moment of the prompts' work
makes the waiting. Decode is a pool without a queue, M/G/infinity: Little's law gives the sequences
in flight and Campbell's theorem the spread of the KV that they hold.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, exp, fsum, inf, sqrt
from statistics import NormalDist, median

from tandem.cost.worker import WorkerCost
from tandem.facts.slo import Slo
from tandem.policy.planning.contract import Window
from tandem.policy.planning.pools import Sizes, mean

# So many requests describe a distribution well enough; a plan shall cost milliseconds.
SAMPLED_REQUESTS = 256
# Waiting grows without bound towards 1, and cost estimates are never exact.
HIGHEST_LOAD = 0.85
# Median of the square of a standard normal number.
MEDIAN_SQUARE = 0.4549


@dataclass(frozen=True, slots=True)
class DecodeRoom:
    """What one decode worker can hold at once."""

    kv_tokens: float = inf
    sequences: float = inf


@dataclass(frozen=True, slots=True)
class Workload:
    """A typical stretch of requests: `lengths` as (uncached prompt, output) tokens. `burstiness` is
    the variance of the number of arrivals over its mean, 1 for independent ones.
    `context_tokens` is what a running sequence is seen to attend to, reused prefix included; 0
    where none was seen. `backlog_s` seconds of prefill are waiting and shall be gone in
    `recovery_s`. `sequences` are at decode workers now, running or waiting for a place: clients
    that ask only when they have been answered show no higher rate than is served, however many
    wait."""

    lengths: tuple[tuple[int, int], ...]
    burstiness: float = 1.0
    context_tokens: float = 0.0
    backlog_s: float = 0.0
    recovery_s: float = 60.0
    sequences: int = 0


@dataclass(frozen=True, slots=True)
class Demand:
    """Prices a workload. Everything that does not depend on the rate is computed once, so that
    several rates are cheap. `attainment` is the share of requests that must keep each bound."""

    cost: WorkerCost
    slo: Slo
    workload: Workload
    attainment: float
    room: DecodeRoom
    prefill_s: tuple[float, ...]
    # The context of one answer summed over its steps, and its square: means over the requests.
    context: float
    squared_context: float

    @classmethod
    def of(
        cls,
        cost: WorkerCost,
        slo: Slo,
        workload: Workload,
        *,
        attainment: float,
        room: DecodeRoom,
    ) -> "Demand":
        prices = {
            prompt: cost.prefill_seconds(prompt)
            for prompt in dict.fromkeys(prompt for prompt, _ in workload.lengths)
        }
        prefill_s = tuple(prices[prompt] for prompt, _ in workload.lengths)
        sums = [_context_sums(prompt, output) for prompt, output in workload.lengths]
        context, squared = mean([one for one, _ in sums]), mean([two for _, two in sums])
        # Lengths know uncached prompts alone; running sequences show how much more they attend to.
        seen = workload.context_tokens * mean([output for _, output in workload.lengths])
        more = max(1.0, seen / context) if context else 1.0
        return cls(
            cost, slo, workload, attainment, room, prefill_s, context * more, squared * more**2
        )

    def sizes(self, rate_per_s: float, most: int) -> Sizes:
        """The fewest workers, at least one and at most `most` of each role, that serve `rate_per_s`
        requests within the SLO."""
        if not self.workload.lengths:
            return Sizes(1, 1)
        return Sizes(
            _fewest(most, lambda workers: self.ttft_kept(rate_per_s, workers)),
            _fewest(most, lambda workers: self.tpot_kept(rate_per_s, workers)),
        )

    def ttft_kept(self, rate_per_s: float, workers: int) -> bool:
        """Whether wait plus prefill stays within the TTFT for the promised share of requests.

        The wait is zero or exponential (exact for M/M/c, and the heavy-traffic limit of G/G/c), its
        mean by Lee and Longton's scaling of Erlang's formula, which for one server is that of
        Pollaczek and Khinchine. Prompts whose own prefill takes longer than the bound are left out:
        no number of workers helps them.
        """
        mean_s = mean(self.prefill_s)
        load = rate_per_s * mean_s + self.workload.backlog_s / self.workload.recovery_s
        if load > HIGHEST_LOAD * workers:
            return False
        bound_s = self._ttft_bound_s
        slack_s = [bound_s - seconds for seconds in self.prefill_s if seconds <= bound_s]
        if not slack_s or not load:
            return True
        squared = mean([seconds * seconds for seconds in self.prefill_s]) / mean_s**2
        variability = (self.workload.burstiness + squared - 1) / 2
        waits = erlang_c(workers, load)
        wait_s = variability * mean_s / (workers - load)
        late = waits * fsum(exp(-slack / wait_s) for slack in slack_s) / len(slack_s)
        return late <= 1 - self.attainment

    @property
    def _ttft_bound_s(self) -> float:
        bounds = [bound for bound in (self.slo.ttft_s, self.slo.e2e_s) if bound is not None]
        return min(bounds, default=inf)

    def tpot_kept(self, rate_per_s: float, workers: int) -> bool:
        """Whether decode steps stay within the TPOT, and everything in flight fits.

        The step time is the smallest fixed point of: step -> sequences in flight by Little's law,
        and their KV, both at the promised quantile -> step. Iterated from below it rises, so the
        first value out of bounds settles the matter.
        """
        lengths = self.workload.lengths
        tokens_per_s = rate_per_s * mean([output for _, output in lengths])
        deviations = NormalDist().inv_cdf(self.attainment) * sqrt(self.workload.burstiness)
        step_s, bound_s = 0.0, self._interval_bound_s
        for _ in range(200):
            sequences = tokens_per_s * step_s
            sequences = max(self.workload.sequences, sequences + deviations * sqrt(sequences))
            kv_tokens = rate_per_s * step_s * self.context
            kv_tokens += deviations * sqrt(rate_per_s * step_s * self.squared_context)
            each, each_kv = max(1, ceil(sequences / workers)), ceil(kv_tokens / workers)
            next_s = self.cost.decode_seconds(each, each_kv)
            if next_s > bound_s or each > self.room.sequences or each_kv > self.room.kv_tokens:
                return False
            if next_s <= step_s * 1.0001:
                return True
            step_s = next_s
        return False

    @property
    def _interval_bound_s(self) -> float:
        bound_s = inf if self.slo.tpot_s is None else self.slo.tpot_s
        if self.slo.e2e_s is None:
            return bound_s
        # Each answer leaves so much time a token; the promised share of them must have it.
        room_s = sorted(
            (self.slo.e2e_s - seconds) / output
            for seconds, (_, output) in zip(self.prefill_s, self.workload.lengths, strict=True)
            if output and seconds < self.slo.e2e_s
        )
        return min([bound_s, *room_s[int(len(room_s) * (1 - self.attainment)) :][:1]])


def _context_sums(prompt: int, output: int) -> tuple[float, float]:
    """The context, and its square, summed over the steps of one answer."""
    last = prompt + output
    return output * (prompt + output / 2), (last**3 - prompt**3) / 3


def _fewest(most: int, kept: Callable[[int], bool]) -> int:
    return min(most, 1 + bisect_left(range(1, most + 1), True, key=kept))


def erlang_c(servers: int, load: float) -> float:
    """Probability that an arrival waits in M/M/c, `load` < `servers` in erlangs; by the stable
    recursion of Erlang's B."""
    blocked = 1.0
    for count in range(1, servers + 1):
        blocked = load * blocked / (count + load * blocked)
    return servers * blocked / (servers - load * (1 - blocked))


def sampled(lengths: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """At most `SAMPLED_REQUESTS` of the lengths, evenly through their order by size."""
    ordered = sorted(lengths)
    if len(ordered) <= SAMPLED_REQUESTS:
        return tuple(ordered)
    stride = len(ordered) / SAMPLED_REQUESTS
    return tuple(ordered[int((index + 0.5) * stride)] for index in range(SAMPLED_REQUESTS))


def burstiness(windows: Sequence[Window]) -> float:
    """Variance over mean of the requests a window, at least 1, at most 50.

    From the median difference of neighbouring windows: neither a slow rise nor a single step of the
    load is a burst.
    """
    counts = [window.requests for window in windows]
    squares = [(after - before) ** 2 for before, after in pairwise(counts)]
    average = mean(counts)
    if len(squares) < 8 or not average:
        return 1.0
    return min(50.0, max(1.0, median(squares) / MEDIAN_SQUARE / 2 / average))
