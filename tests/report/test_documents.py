"""The files that runs leave: their keys are read by other programs, so they stay."""

import json
from pathlib import Path

import pytest

from tandem.bench.traces.reader import read_trace
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.report.documents import (
    MeasuredResults,
    measured_row,
    require_folder,
    write_file,
    write_measured_records,
)
from tandem.report.measured import LoadPoint, SweepPoint, summarise_measured
from tests.report.test_measured import failure, record

SUMMARY_KEYS = {
    "requests", "succeeded", "failures", "duration_s", "prompt_tokens", "output_tokens",
    "request_throughput_rps", "output_throughput_tps", "total_throughput_tps", "goodput_rps",
    "attainment", "cached_share", "late_p99_s", "latencies",
}  # fmt: skip
DISTRIBUTION_KEYS = {"mean_s", "p50_s", "p90_s", "p99_s", "p999_s"}


def runs() -> list[SweepPoint]:
    requests = [record(0, 0.0, 0.4, [0.2, 0.4]), failure(1, 0.5, 0.75, "HTTP 429: full")]
    summary = summarise_measured(requests, Slo(ttft_s=1.0))
    return [SweepPoint(LoadPoint(float("inf")), summary, requests)]


def test_results_keep_their_keys(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    MeasuredResults({"seed": 1, "file": tmp_path}, {"model": "m"}, "now", runs()).write(file)
    document = json.loads(file.read_bytes())
    assert document.keys() == {"format", "started_utc", "server", "settings", "runs"}
    (run,) = document["runs"]
    assert run["load"] == {"rate_rps": "inf", "concurrency": None}
    assert run["summary"].keys() == SUMMARY_KEYS
    assert run["summary"]["latencies"].keys() == {"ttft", "tpot", "itl", "e2e"}
    for found in run["summary"]["latencies"].values():
        assert found.keys() >= DISTRIBUTION_KEYS
    assert run["summary"]["latencies"]["itl"]["p50_s"] == pytest.approx(0.3)


def test_a_row_has_seconds() -> None:
    finished, failed = runs()[0].requests
    assert measured_row(finished) == {
        "index": 0,
        "arrival_s": 0.0,
        "sent_s": 0.0,
        "prompt_tokens": 100,
        "output_tokens": 3,
        "cached_tokens": 25,
        "ttft_s": 0.4,
        "tpot_s": 0.3,
        "latency_s": 1.0,
        "gaps_s": [0.2, 0.4],
        "finish_reason": None,
        "error": "",
    }
    row = measured_row(failed)
    assert (row["ttft_s"], row["tpot_s"], row["error"]) == (None, None, "HTTP 429: full")
    # It is known when it became clear that there is no answer.
    assert row["latency_s"] == 0.25


def test_records_can_be_replayed(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    write_measured_records(file, runs())
    rows = read_trace(file)
    assert [row.arrival_s for row in rows] == [0.0, 0.5]
    assert [row.output_tokens for row in rows] == [3, 1]


def test_a_file_that_cannot_be_written_is_the_caller_s_mistake(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="--json: cannot write"):
        write_file(tmp_path / "nowhere" / "a.json", b"", "--json")
    with pytest.raises(InvalidConfiguration, match="--json: there is no folder"):
        require_folder(tmp_path / "nowhere" / "a.json", "--json")
