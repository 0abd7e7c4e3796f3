"""`tandem report`: one HTML file that needs nothing, of a journal or of what a benchmark wrote."""

import re
from pathlib import Path

import pytest

from tandem.facts.slo import Slo
from tandem.report.documents import MeasuredResults
from tandem.report.measured import LoadPoint, SweepPoint, summarise_measured
from tandem.report.measured_file import read_results
from tandem.report.record import Ending, MeasuredRequest
from tests.commands.cli import tandem
from tests.commands.test_replay_command import REQUESTS, record

MS = 1_000_000
SLO = Slo(ttft_s=0.2)


def request(number: int, *, failed: bool = False) -> MeasuredRequest:
    arrival_ns = number * 100 * MS
    return MeasuredRequest(
        request_id=str(number),
        serial=number,
        arrival_ns=arrival_ns,
        prompt_tokens=20,
        output_tokens=5,
        ending=Ending.FAILED if failed else Ending.FINISHED,
        reason="HTTP 500: <b>no</b>" if failed else "",
        first_token_ns=-1 if failed else arrival_ns + (50 + number) * MS,
        last_token_ns=-1 if failed else arrival_ns + (90 + number) * MS,
        end_ns=arrival_ns + (90 + number) * MS,
        emitted_tokens=0 if failed else 5,
        due_ns=arrival_ns,
        gaps_ns=[] if failed else [10 * MS] * 4,
        cached_tokens=8,
        finish_reason=None if failed else "length",
    )


def written(folder: Path, *rates: float) -> Path:
    requests = [*map(request, range(9)), request(9, failed=True)]
    runs = [
        SweepPoint(LoadPoint(rate_rps=rate), summarise_measured(requests, SLO), requests)
        for rate in rates
    ]
    settings = {"load": {"seed": 3, "warmup": 0}, "slo": {"ttft_s": 0.2}}
    file = folder / "result.json"
    MeasuredResults(settings, {"model": "m", "url": "http://x"}, "2026-01-01", runs).write(file)
    return file


def test_results_are_read_as_they_were_written(tmp_path):
    read = read_results(written(tmp_path, 1.5, float("inf")))
    assert (read.model, read.slo, read.settings) == ("m", SLO, "load.seed 3")
    assert [run.load.rate_rps for run in read.runs] == [1.5, float("inf")]
    requests = [*map(request, range(9)), request(9, failed=True)]
    assert read.runs[0].summary == summarise_measured(requests, SLO)


@pytest.mark.parametrize("rates", [(2.0,), (1.0, 2.0)])
def test_a_benchmark_becomes_a_page_that_needs_nothing(tmp_path, rates):
    output = tmp_path / "report.html"
    done = tandem("report", written(tmp_path, *rates), "-o", output)
    assert done.exit_code == 0, done.output
    page = output.read_text()
    assert "<h1>m at http://x</h1>" in page
    assert page.count("<figure") == 1
    assert "<svg" in page
    needs_nothing(page)
    if len(rates) == 1:
        # What a server says is no markup.
        assert "HTTP 500: &lt;b&gt;no&lt;/b&gt;" in page


def needs_nothing(page: str) -> None:
    """Nothing is loaded: the names of namespaces are no addresses."""
    assert not re.search(r"<script|<link|<img|url\(|@import", page.replace("url(#", ""))
    loaded = re.findall(r"""(?:src|href)=["'](?!#)([^"']+)""", page)
    assert not loaded


def test_a_journal_becomes_a_page_with_its_slowest_requests(tmp_path):
    output = tmp_path / "report.html"
    done = tandem("report", record(tmp_path), "-o", output)
    assert done.exit_code == 0, done.output
    page = output.read_text()
    assert f"{REQUESTS} requests in" in page
    assert "the slowest first tokens" in page
    needs_nothing(page)
    # Of the last 0.3 s: those that came every 50 ms, and took a few of them.
    done = tandem("report", tmp_path / "journal", "-o", output, "--last", "0.3")
    assert re.search(r": [4-7] requests in 0\.3 s", done.output), done.output


def test_mistakes_are_told_in_a_line(tmp_path):
    (tmp_path / "other.json").write_text('{"format": 1}')
    for words, told in (
        ((tmp_path / "other.json",), "is not what `tandem bench --output` writes"),
        ((tmp_path / "nothing",), "nothing"),
        ((written(tmp_path, 1.0), "--last", "3"), "--last: a benchmark is reported as a whole"),
        ((written(tmp_path, 1.0), "-o", tmp_path / "no" / "x.html"), "there is no folder"),
    ):
        done = tandem("report", *words)
        assert done.exit_code != 0
        assert told in str(done.exception) + done.output, (told, done.output)
