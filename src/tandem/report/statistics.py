"""Statistics of durations: the one definition of a percentile for all that Tandem reports.

Percentiles are numpy's `linear` (Hyndman and Fan's type 7), as in vLLM's benchmark and genai-perf:
of n sorted values, p percent lies at place (n - 1) * p / 100, counted from 0, and on the line
between its two neighbours where that is no whole number. Durations are integers of nanoseconds and
their sums exact, so the figures of a run are the same bytes everywhere.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tandem.report.record import RequestOutcome

_REPORTED_PER_MILLE = (500, 900, 990, 999)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations in nanoseconds: how many, their mean, some percentiles and the largest."""

    count: int
    mean_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """TTFT of all that got a first token, TPOT (a mean for each request of two tokens or more), ITL
    (every gap between tokens), and whole answers of those that finished; None where nothing was
    measured."""

    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None


def latencies(
    requests: Sequence[RequestOutcome], counted_gaps_ns: Iterable[tuple[int, int]]
) -> Latencies:
    """The latencies of these requests, and of the gaps between their tokens: (gap, how often)."""
    return Latencies(
        ttft=distribution(ttfts_ns(requests)),
        tpot=distribution(tpots_ns(requests)),
        itl=weighted_distribution(counted_gaps_ns),
        e2e=distribution(each.end_ns - each.arrival_ns for each in requests if each.finished),
    )


def ttfts_ns(requests: Iterable[RequestOutcome]) -> list[int]:
    return [each.first_token_ns - each.arrival_ns for each in requests if each.first_token_ns >= 0]


def tpots_ns(requests: Iterable[RequestOutcome]) -> list[int]:
    """Rounded down to whole nanoseconds."""
    return [
        (each.last_token_ns - each.first_token_ns) // (each.emitted_tokens - 1)
        for each in requests
        if each.emitted_tokens > 1
    ]


def distribution(values_ns: Iterable[int]) -> Distribution | None:
    """None without values."""
    return weighted_distribution((value, 1) for value in values_ns)


def weighted_distribution(counted_ns: Iterable[tuple[int, int]]) -> Distribution | None:
    """The same of values that occurred so many times each, as if they were written out."""
    ordered = sorted((value, count) for value, count in counted_ns if count)
    if not ordered:
        return None
    values = [value for value, _ in ordered]
    # Up to ends[i] of all values are at most values[i].
    ends = list(accumulate(count for _, count in ordered))
    mean_ns = sum(value * count for value, count in ordered) / ends[-1]
    p50_ns, p90_ns, p99_ns, p999_ns = (
        _percentile(values, ends, per_mille) for per_mille in _REPORTED_PER_MILLE
    )
    return Distribution(ends[-1], mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, values[-1])


def _percentile(values: Sequence[int], ends: Sequence[int], per_mille: int) -> float:
    """Integers up to the one division at the end: exact but for its rounding."""
    place, above_per_mille = divmod((ends[-1] - 1) * per_mille, 1000)
    low = values[bisect_right(ends, place)]
    high = values[bisect_right(ends, min(place + 1, ends[-1] - 1))]
    return (low * (1000 - above_per_mille) + high * above_per_mille) / 1000
