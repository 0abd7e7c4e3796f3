"""The numbers of a simulated run, against values worked out by hand, and how they are shown."""

import json
from array import array
from io import StringIO

import pytest
from rich.console import Console

from tandem.facts.fleet import Tier
from tandem.facts.slo import Slo
from tandem.report.comparison import Point, comparison_table, finding, knee
from tandem.report.documents import canonical_json
from tandem.report.record import Ending, RequestRecord, RunRecord, TransferRecord, WorkerRecord
from tandem.report.summary import DeviceTerms, Summary, Terms, generalised, summarise
from tandem.report.tables import cluster_tables, short_seconds
from tests.report.made_runs import SECOND, made_run

TERMS = Terms(
    Slo(ttft_s=2.0, tpot_s=0.1),
    {"gold": Slo(ttft_s=0.5)},
    {"a100": DeviceTerms(usd_per_hour=2.0, idle_watts=60, prefill_watts=400, decode_watts=250)},
)
HOUR = 3600 * SECOND


def small_run() -> RunRecord:
    """Two finished (one of class gold and too late for it), one rejected, one failed."""
    finished = RequestRecord("a", 0, 1 * SECOND, 100, 11, ending=Ending.FINISHED)
    finished.first_token_ns, finished.last_token_ns = 2 * SECOND, 3 * SECOND
    finished.end_ns, finished.emitted_tokens = 3 * SECOND, 11
    finished.reused_tokens, finished.computed_tokens = {Tier.DEVICE: 40, Tier.HOST: 20}, 45
    finished.moved_tokens = 100
    late = RequestRecord("b", 1, 2 * SECOND, 100, 1, service_class="gold", ending=Ending.FINISHED)
    late.first_token_ns = late.last_token_ns = late.end_ns = 3 * SECOND
    late.emitted_tokens, late.computed_tokens = 1, 100
    rejected = RequestRecord("c", 2, 2 * SECOND, 800, 1, ending=Ending.REJECTED, end_ns=2 * SECOND)
    rejected.reason = "predicted TTFT 3.2 s exceeds 2 s: 41,000 tokens wait at p3"
    gone = RequestRecord("d", 3, 3 * SECOND, 200, 5, ending=Ending.FAILED, end_ns=5 * SECOND)
    gone.computed_tokens = 150
    return RunRecord(
        {},
        [finished, late, rejected, gone],
        array("q", [100_000_000]),
        array("q", [10]),
        [WorkerRecord("w-0", "both", "a100", 2, HOUR, HOUR // 2, HOUR // 4, 9, preemptions=2)],
        [TransferRecord("kv", 1, 5e9, 0.25)],
        end_ns=6 * SECOND,
    )


def test_a_small_run_worked_out_by_hand():
    summary = summarise(small_run(), TERMS)
    assert summary.endings == {"finished": 2, "failed": 1, "rejected": 1}
    assert summary.duration_s == 4.0
    assert (summary.kept, summary.goodput_rps, summary.attainment) == (1, 0.25, 0.25)
    assert summary.goodput_rps_per_device == 1 / 7200
    assert (summary.output_tokens, summary.output_tokens_per_s) == (12, 3.0)
    assert summary.latencies.ttft is not None
    assert (summary.latencies.ttft.count, summary.latencies.ttft.p50_ns) == (2, SECOND)
    assert summary.latencies.tpot is not None
    assert (summary.latencies.tpot.count, summary.latencies.tpot.max_ns) == (1, 100_000_000)
    assert summary.classes["gold"].requests == 1
    assert summary.classes["gold"].kept == 0
    assert summary.preemptions == 2
    assert summary.reasons == {"predicted TTFT # s exceeds # s: # tokens wait at p#": 1}


def test_reuse_counts_the_requests_that_were_let_in():
    reuse = summarise(small_run(), TERMS).reuse
    assert reuse.hits == {Tier.DEVICE: 0.1, Tier.HOST: 0.05, Tier.DISK: 0.0, Tier.REMOTE: 0.0}
    assert reuse.hit_ratio == 0.15
    assert reuse.computed_tokens == 295
    # Five of the first twice, and all of the one that failed.
    assert reuse.wasted_tokens == 155
    assert reuse.transfer_share_of_ttft == 0.25


def test_dollars_and_joules_of_up_time():
    bill = summarise(small_run(), TERMS).bill
    assert bill.device_hours == 2.0
    assert bill.usd == 4.0
    assert bill.usd_per_million_output_tokens == pytest.approx(4.0 / 12 * 1e6)
    # Half an hour idle, a quarter prefilling, a quarter decoding, on two devices.
    assert bill.kilowatt_hours == 2 * (0.5 * 60 + 0.25 * 400 + 0.25 * 250) / 1000


def test_a_run_without_requests_has_no_figures_and_no_errors():
    summary = summarise(RunRecord({}), TERMS)
    assert summary.requests == summary.kept == summary.goodput_rps == 0
    assert summary.latencies.ttft is None
    assert summary.bill.usd_per_million_output_tokens is None
    assert cluster_tables(summary, TERMS)
    json.loads(canonical_json(summary))


def test_json_is_canonical():
    first, second = made_run(), made_run()
    second.requests.reverse()
    texts = {canonical_json(summarise(run, TERMS)) for run in (first, second)}
    assert len(texts) == 1
    document = json.loads(texts.pop())
    assert document["latencies"]["ttft"]["p50_s"] > 0
    assert document["reuse"]["hits"]["device"] > 0


def test_json_has_seconds_and_rounded_floats():
    assert canonical_json({"b": [1 / 3], "a_ns": 1_500_000_000, "end_ns": -1}) == (
        b'{"a_s": 1.5, "b": [0.333333333], "end_s": null}\n'
    )


def test_tables_have_every_section():
    file = StringIO()
    console = Console(width=140, file=file)
    for table in cluster_tables(summarise(small_run(), TERMS), TERMS):
        console.print(table)
    text = file.getvalue()
    for words in (
        "0.250  requests/s within the SLO",
        "TTFT (first token)",
        "gold",
        "both on ",
        "KV transfer",
        "predicted TTFT # s exceeds # s",
        "4.00  $",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [(None, "-"), (1_234_567_890, "1.23 s"), (2_000_000_000_000, "2,000 s"), (5e7, "50 ms"),
     (1500, "1.5 us"), (12, "12 ns")],
)  # fmt: skip
def test_durations_are_in_the_unit_that_suits(duration_ns, text):
    assert short_seconds(duration_ns) == text


def test_reasons_lose_their_numbers_only():
    assert generalised("p3 waits 41,000 tokens, 3.2 s.") == "p# waits # tokens, # s."


def compared(service_s: dict[str, float], speeds: tuple[float, ...]) -> list[Point]:
    terms = Terms(Slo(ttft_s=4.0))
    return [
        Point(name, speed, played(each, speed, terms))
        for name, each in service_s.items()
        for speed in speeds
    ]


def played(service_s: float, speed: float, terms: Terms) -> Summary:
    return summarise(made_run(speed=speed, service_s=service_s, requests=120), terms)


def test_the_knee_is_the_last_load_at_which_the_slo_is_kept():
    points = compared({"slow": 0.9, "fast": 0.4}, (0.5, 1.0, 2.0))
    assert knee(points, "slow") == 1.0
    assert knee(points, "fast") == 2.0
    assert knee(compared({"hopeless": 9.0}, (1.0,)), "hopeless") is None
    assert finding([point for point in points if point.speed < 2]).startswith(
        "The SLO is kept up to 1x the recorded load or more; there fast has the highest goodput"
    )
    assert finding(points) == (
        "fast keeps the SLO up to 2x the recorded load or more; the others 1x at most"
    )


def test_at_one_load_goodput_decides():
    points = compared({"slow": 1.5, "fast": 0.4}, (1.0,))
    assert finding(points).startswith("fast has the highest goodput: 0.96/s, ")
    assert finding(points).endswith(" times that of slow")
    level = finding(compared({"one": 0.4, "two": 0.4, "last": 1.5}, (1.0,)))
    assert level.startswith("one and two have the highest goodput: 0.96/s, ")
    assert "whatever the policy" in finding(compared({"one": 0.4, "two": 0.4}, (1.0,)))


@pytest.mark.parametrize("width", [100, 400])
def test_the_comparison_marks_the_best_of_each_column(width):
    points = compared({"slow": 0.9, "middle": 0.8, "fast": 0.4}, (1.0, 2.0))
    file = StringIO()
    console = Console(width=width, file=file)
    console.print(comparison_table(points, width))
    lines = file.getvalue().splitlines()
    stars = {line.split()[0]: line.count("*") for line in lines if line.strip()}
    # Goodput, TTFT and (at twice the load) rejections; TPOT and hits are alike.
    assert stars["fast"] > 0
    assert stars["middle"] == 0
    beside = [line for line in lines if "speed 1" in line and "speed 2" in line]
    assert bool(beside) == (width == 400)
