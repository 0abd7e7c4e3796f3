"""From the records of a run to the numbers people compare: latencies, throughput, goodput."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tandem.bench.record import RequestRecord
from tandem.facts.slo import Slo

PERCENTILES = (50.0, 90.0, 99.0, 99.9)


@dataclass(frozen=True)
class Distribution:
    """Mean and percentiles (linear between neighbours, as numpy's) of durations in seconds."""

    mean_s: float
    p50_s: float
    p90_s: float
    p99_s: float
    p999_s: float


@dataclass(frozen=True)
class Latencies:
    """TTFT, TPOT (a mean for each request), ITL (every gap of every request) and end to end; None
    where nothing was measured. Failed requests are left out."""

    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None


@dataclass(frozen=True)
class Summary:
    """One run. Rates are per second of `duration_s`, from the first sending to the last end.

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


def summarise(records: Sequence[RequestRecord], slo: Slo) -> Summary:
    """The numbers of a run; throughput counts the requests that succeeded."""
    good = [record for record in records if record.succeeded]
    starts_s = [record.sent_s for record in records]
    duration_s = max((record.ended_s for record in records), default=0.0) - min(
        starts_s, default=0.0
    )
    # A failed request is never good.
    met = sum(slo.kept(r.ttft_s, r.tpot_s, r.latency_s) for r in good)
    prompt_tokens = sum(record.prompt_tokens for record in good)
    output_tokens = sum(record.output_tokens for record in good)
    return Summary(
        requests=len(records),
        succeeded=len(good),
        failures=dict(Counter(record.error for record in records if record.error).most_common()),
        duration_s=duration_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        request_throughput_rps=_rate(len(good), duration_s),
        output_throughput_tps=_rate(output_tokens, duration_s),
        total_throughput_tps=_rate(prompt_tokens + output_tokens, duration_s),
        goodput_rps=None if slo.empty else _rate(met, duration_s),
        attainment=None if slo.empty or not records else met / len(records),
        cached_share=_cached_share(good),
        late_p99_s=_late_p99_s(records),
        latencies=Latencies(
            ttft=_distribution(record.ttft_s for record in good),
            tpot=_distribution(record.tpot_s for record in good),
            itl=_distribution(gap_s for record in good for gap_s in record.gaps_s),
            e2e=_distribution(record.latency_s for record in good),
        ),
    )


def _distribution(values_s: Iterable[float | None]) -> Distribution | None:
    known_s = np.array([value for value in values_s if value is not None])
    if not known_s.size:
        return None
    return Distribution(
        float(known_s.mean()), *(float(value) for value in np.percentile(known_s, PERCENTILES))
    )


def _late_p99_s(records: Sequence[RequestRecord]) -> float:
    late_s = [record.sent_s - record.due_s for record in records]
    return float(np.percentile(late_s or [0.0], 99))


def _cached_share(good: Sequence[RequestRecord]) -> float | None:
    told = [record for record in good if record.cached_tokens is not None]
    prompt_tokens = sum(record.prompt_tokens for record in told)
    if not prompt_tokens:
        return None
    return sum(record.cached_tokens or 0 for record in told) / prompt_tokens


def _rate(count: float, duration_s: float) -> float:
    return count / duration_s if duration_s > 0 else 0.0
