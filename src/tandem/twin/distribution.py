"""How durations are distributed, exactly: integers of nanoseconds in, nearest-rank percentiles out.

A percentile is the smallest value that at least so much of all values does not exceed. Sums of
integers are exact, so the figures of a run are the same bytes everywhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """Durations in nanoseconds: how many, their mean, some percentiles and the largest."""

    count: int
    mean_ns: float
    p50_ns: int
    p90_ns: int
    p99_ns: int
    p999_ns: int
    max_ns: int


def distribution(values_ns: Iterable[int]) -> Distribution | None:
    """None without values."""
    ordered = sorted(values_ns)
    return weighted_distribution([(value, 1) for value in ordered])


def weighted_distribution(counted_ns: Iterable[tuple[int, int]]) -> Distribution | None:
    """The same of values that occurred so many times each, as if they were written out."""
    ordered = sorted((value, count) for value, count in counted_ns if count)
    total = sum(count for _, count in ordered)
    if not total:
        return None
    ranks = [-(-total * per_mille // 1000) for per_mille in (500, 900, 990, 999)]
    found: list[int] = []
    seen = 0
    for value, count in ordered:
        seen += count
        while len(found) < len(ranks) and seen >= ranks[len(found)]:
            found.append(value)
    mean_ns = sum(value * count for value, count in ordered) / total
    p50_ns, p90_ns, p99_ns, p999_ns = found
    return Distribution(total, mean_ns, p50_ns, p90_ns, p99_ns, p999_ns, ordered[-1][0])
