"""The numbers of a run against examples worked by hand and numpy's percentiles."""

import numpy as np
import pytest

from tandem.bench.load import nanoseconds
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.report.measured import (
    LoadPoint,
    MeasuredSummary,
    SweepPoint,
    knee,
    parse_slo,
    summarise_measured,
)
from tandem.report.record import Ending, MeasuredRequest


def record(index: int, sent_s: float, ttft_s: float, gaps_s: list[float]) -> MeasuredRequest:
    sent_ns, gaps_ns = nanoseconds(sent_s), [nanoseconds(gap_s) for gap_s in gaps_s]
    first_ns = sent_ns + nanoseconds(ttft_s)
    last_ns = first_ns + sum(gaps_ns)
    return MeasuredRequest(
        request_id=str(index),
        serial=index,
        arrival_ns=sent_ns,
        prompt_tokens=100,
        output_tokens=len(gaps_s) + 1,
        ending=Ending.FINISHED,
        first_token_ns=first_ns,
        last_token_ns=last_ns,
        end_ns=last_ns,
        emitted_tokens=len(gaps_s) + 1,
        due_ns=sent_ns,
        gaps_ns=gaps_ns,
        cached_tokens=25,
    )


def failure(index: int, sent_s: float, ended_s: float, reason: str) -> MeasuredRequest:
    sent_ns = nanoseconds(sent_s)
    return MeasuredRequest(
        request_id=str(index),
        serial=index,
        arrival_ns=sent_ns,
        prompt_tokens=100,
        output_tokens=1,
        ending=Ending.FAILED,
        reason=reason,
        end_ns=nanoseconds(ended_s),
        due_ns=sent_ns,
    )


def test_by_hand() -> None:
    # Two answers over 2 s: 3 tokens from 0.0 to 1.0, 2 tokens from 1.0 to 2.0.
    records = [record(0, 0.0, 0.4, [0.2, 0.4]), record(1, 1.0, 0.5, [0.5])]
    failed = failure(2, 0.5, 0.6, "HTTP 429: full")
    summary = summarise_measured([*records, failed], Slo(ttft_s=0.45, tpot_s=0.31))
    assert (summary.requests, summary.succeeded) == (3, 2)
    assert summary.failures == {"HTTP 429: full": 1}
    assert summary.duration_s == pytest.approx(2.0)
    assert summary.request_throughput_rps == pytest.approx(1.0)
    assert summary.output_throughput_tps == pytest.approx(2.5)
    assert summary.total_throughput_tps == pytest.approx(102.5)
    assert summary.cached_share == pytest.approx(0.25)
    # TPOT of the first: (0.2 + 0.4) / 2 = 0.3, within; the second misses its TTFT and its TPOT.
    assert summary.goodput_rps == pytest.approx(0.5)
    assert summary.attainment == pytest.approx(1 / 3)
    ttft, tpot = summary.latencies.ttft, summary.latencies.tpot
    itl, e2e = summary.latencies.itl, summary.latencies.e2e
    assert ttft is not None and tpot is not None and itl is not None and e2e is not None
    assert ttft.mean_ns == pytest.approx(0.45e9)
    assert tpot.mean_ns == pytest.approx(0.4e9)
    assert itl.mean_ns == pytest.approx(1.1e9 / 3)
    assert e2e.p50_ns == pytest.approx(1.0e9)


def test_percentiles_are_numpys() -> None:
    rng = np.random.default_rng(0)
    ttfts_s = rng.exponential(0.2, 500)
    records = [record(i, 0.01 * i, float(ttft_s), [0.01]) for i, ttft_s in enumerate(ttfts_s)]
    found = summarise_measured(records, Slo()).latencies.ttft
    assert found is not None
    for value, percentile in (
        (found.p50_ns, 50),
        (found.p90_ns, 90),
        (found.p99_ns, 99),
        (found.p999_ns, 99.9),
    ):
        assert value / 1e9 == pytest.approx(np.percentile(ttfts_s, percentile))


def test_answers_of_one_token_have_no_tpot() -> None:
    single = record(0, 0.0, 0.1, [])
    assert single.tpot_s is None
    assert Slo(tpot_s=0.001).kept(single.ttft_s, single.tpot_s, single.latency_s)
    assert summarise_measured([single], Slo()).latencies.tpot is None


def test_nothing_at_all() -> None:
    summary = summarise_measured([], Slo(ttft_s=1.0))
    assert (summary.requests, summary.attainment, summary.latencies.ttft) == (0, None, None)
    assert summary.cached_share is None


def test_all_failed() -> None:
    failed = [failure(i, 0.0, 0.1, "x") for i in range(3)]
    summary = summarise_measured(failed, Slo(ttft_s=1.0))
    assert (summary.goodput_rps, summary.attainment, summary.failures) == (0.0, 0.0, {"x": 3})


@pytest.mark.parametrize(
    "texts",
    [
        ["ttft=500ms,tpot=50ms"],
        ["ttft:500", "tpot:50"],
        ["ttft:500 tpot:50"],
        ["ttft=0.5s,tpot=50"],
    ],
)
def test_slo_spellings(texts: list[str]) -> None:
    assert parse_slo(texts) == Slo(ttft_s=0.5, tpot_s=0.05)


def test_slo_of_the_whole_answer() -> None:
    assert parse_slo(["e2el:2000"]) == parse_slo(["e2e=2s"]) == Slo(e2e_s=2.0)
    assert parse_slo([]).empty


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=5m", "speed=4", "ttft=0", "ttft=-1ms"])
def test_bad_slos_are_named(text: str) -> None:
    with pytest.raises(InvalidConfiguration, match="--slo"):
        parse_slo([text])


def point(rate_rps: float, ttft_s: float, slo: Slo) -> SweepPoint:
    records = [record(i, i / rate_rps, ttft_s, [0.01]) for i in range(10)]
    summary: MeasuredSummary = summarise_measured(records, slo)
    return SweepPoint(LoadPoint(rate_rps), summary)


def test_knee_is_the_last_load_before_the_first_miss() -> None:
    slo = Slo(ttft_s=0.5)
    points = [point(1, 0.1, slo), point(2, 0.2, slo), point(4, 0.9, slo), point(8, 0.3, slo)]
    assert knee(points) is points[1]
    assert knee(points[2:]) is None


def test_knee_without_slo_compares_with_the_lowest_load() -> None:
    points = [
        point(4, 0.9, Slo()),
        point(1, 0.1, Slo()),
        point(2, 0.29, Slo()),
    ]
    found = knee(points)
    assert found is not None and found.load.rate_rps == 2
