"""The numbers of a server that clients measured: its SLO as a command line spells it, a run at one
load, and the knee over several.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TypeVar

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.facts.units import SECONDS
from tandem.report.record import MeasuredRequest
from tandem.report.statistics import Latencies, distribution, latencies

# The share of requests within the SLO at which a load counts as carried, as in DistServe.
ENOUGH_ATTAINMENT = 0.9

_Load = TypeVar("_Load")
_TERM = re.compile(r"(ttft|tpot|e2el|e2e)[=:](.+)")
# A minute is no bound on an answer, and an `m` here is a mistyped `ms`.
_BOUND = replace(SECONDS, factors={unit: SECONDS.factors[unit] for unit in ("ms", "s")}, bare="ms")


def parse_slo(texts: Sequence[str]) -> Slo:
    """Reads `ttft=500ms,tpot=50ms`; also `ttft:500 tpot:50`, milliseconds, as vLLM writes it.

    Raises `InvalidConfiguration`."""
    bounds: dict[str, float] = {}
    for term in re.split(r"[,\s]+", ",".join(texts)):
        if not term:
            continue
        match = _TERM.fullmatch(term)
        bound_s = _seconds(match[2]) if match else 0.0
        if not match or not bound_s:
            raise InvalidConfiguration(
                f"--slo must look like ttft=500ms,tpot=50ms,e2e=10s, got {term!r}"
            )
        name = "e2e" if match[1] == "e2el" else match[1]
        bounds[name] = bound_s
    return Slo(bounds.get("ttft"), bounds.get("tpot"), bounds.get("e2e"))


def highest_carried(rising: Iterable[_Load], carried: Callable[[_Load], bool]) -> _Load | None:
    """The knee: of loads in rising order, the last before the first that is not carried, however
    lucky a later one may be; None if not even the lowest is carried."""
    highest = None
    for load in takewhile(carried, rising):
        highest = load
    return highest


def _seconds(text: str) -> float:
    """0 for what is no bound, as for a bound of 0."""
    try:
        return _BOUND.read(text)
    except ValueError:
        return 0.0


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
class MeasuredSummary:
    """One run. Rates are per second of `duration_s`, from the first sending to the last end;
    throughput and latencies count the requests that succeeded.

    `goodput_rps` counts requests that met the SLO, None without one; `attainment` is their share of
    all requests, failed ones included. `cached_share` is the part of the prompt tokens that came
    from the server's prefix cache, None where the server does not say. `late_p99_s` is how far the
    client ran behind its plan.
    """

    requests: int
    succeeded: int
    failures: dict[str, int]
    duration_s: float
    prompt_tokens: int
    output_tokens: int
    request_throughput_rps: float
    output_throughput_tps: float
    total_throughput_tps: float
    goodput_rps: float | None
    attainment: float | None
    cached_share: float | None
    late_p99_s: float
    latencies: Latencies


@dataclass(frozen=True)
class SweepPoint:
    """One load and what came of it."""

    load: LoadPoint
    summary: MeasuredSummary
    requests: Sequence[MeasuredRequest] = ()


def summarise_measured(requests: Sequence[MeasuredRequest], slo: Slo) -> MeasuredSummary:
    """The numbers of a run."""
    good = [request for request in requests if request.finished]
    first_ns = min((request.arrival_ns for request in requests), default=0)
    duration_s = (max((request.end_ns for request in requests), default=0) - first_ns) / 1e9
    kept = sum(request.keeps(slo) for request in good)
    prompt_tokens = sum(request.prompt_tokens for request in good)
    output_tokens = sum(request.emitted_tokens for request in good)
    late = distribution(request.arrival_ns - request.due_ns for request in requests)
    return MeasuredSummary(
        requests=len(requests),
        succeeded=len(good),
        failures=dict(Counter(each.reason for each in requests if each.reason).most_common()),
        duration_s=duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        request_throughput_rps=_rate(len(good), duration_s),
        output_throughput_tps=_rate(output_tokens, duration_s),
        total_throughput_tps=_rate(prompt_tokens + output_tokens, duration_s),
        goodput_rps=None if slo.empty else _rate(kept, duration_s),
        attainment=None if slo.empty or not requests else kept / len(requests),
        cached_share=_cached_share(good),
        late_p99_s=0.0 if late is None else late.p99_ns / 1e9,
        latencies=latencies(good, Counter(gap for each in good for gap in each.gaps_ns).items()),
    )


def knee(points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The highest load that the server still carries, None if not even the lowest is carried.

    With an SLO: 90 % of the requests meet it. Without: no request failed and the median TTFT is at
    most three times that of the lowest load.
    """
    rising = sorted(points, key=lambda point: point.load.value)
    return highest_carried(rising, lambda point: _carried(point.summary, rising[0].summary))


def _carried(summary: MeasuredSummary, lowest: MeasuredSummary) -> bool:
    if summary.attainment is not None:
        return summary.attainment >= ENOUGH_ATTAINMENT
    ttft, lowest_ttft = summary.latencies.ttft, lowest.latencies.ttft
    if summary.failures or ttft is None or lowest_ttft is None:
        return False
    return ttft.p50_ns <= SLOWDOWN_AT_KNEE * lowest_ttft.p50_ns


def _cached_share(good: Sequence[MeasuredRequest]) -> float | None:
    counted = [request for request in good if request.cached_tokens is not None]
    prompt_tokens = sum(request.prompt_tokens for request in counted)
    if not prompt_tokens:
        return None
    return sum(request.cached_tokens or 0 for request in counted) / prompt_tokens


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
