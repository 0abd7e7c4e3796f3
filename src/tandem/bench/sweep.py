"""One workload at several loads: the points, and where the server stops keeping up."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.bench.metrics import Summary

ENOUGH_ATTAINMENT = 0.9
SLOWDOWN_AT_KNEE = 3.0


@dataclass(frozen=True)
class LoadPoint:
    """How hard to push: a rate, a number of requests in flight, or both (then the latter bounds the
    former). With neither, the trace's own arrivals hold."""

    rate_rps: float | None = None
    concurrency: int | None = None

    @property
    def value(self) -> float:
        """Where the point stands on a sweep's axis."""
        return self.rate_rps if self.rate_rps is not None else float(self.concurrency or 0)

    def __str__(self) -> str:
        parts = []
        if self.rate_rps is not None:
            parts.append("all at once" if self.rate_rps == float("inf") else f"{self.rate_rps:g}/s")
        if self.concurrency is not None:
            parts.append(f"{self.concurrency} in flight")
        return ", ".join(parts) or "as recorded"


@dataclass(frozen=True)
class SweepPoint:
    """One load and what came of it."""

    load: LoadPoint
    summary: Summary


def knee(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The highest load that the server still carries, None if not even the lowest is carried.

    With an SLO: 90 % of the requests meet it (the share DistServe uses). Without: no request failed
    and the median TTFT is at most three times that of the lowest load. Loads beyond the first that
    is not carried do not count, however lucky.
    """
    best = None
    rising = sorted(points, key=lambda point: point.load.value)
    for point in rising:
        if not _carried(point.summary, rising[0].summary):
            break
        best = point
    return best


def _carried(summary: Summary, lowest: Summary) -> bool:
    if summary.attainment is not None:
        return summary.attainment >= ENOUGH_ATTAINMENT
    ttft, lowest_ttft = summary.latencies.ttft, lowest.latencies.ttft
    if summary.failures or ttft is None or lowest_ttft is None:
        return False
    return ttft.p50_s <= SLOWDOWN_AT_KNEE * lowest_ttft.p50_s
