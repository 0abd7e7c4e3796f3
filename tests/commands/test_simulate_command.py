"""`tandem simulate`, from its flags to its files."""

import json

import pytest
from typer.testing import CliRunner

from tandem.commands.main import app


@pytest.fixture
def trace(tmp_path):
    """Forty requests a tenth of a second apart; every fourth begins like the one before it."""
    rows = [
        {
            "arrival_s": number / 10,
            "prompt_tokens": 600 + 10 * number,
            "output_tokens": 5,
            "block_ids": [number // 4, 100 + number],
        }
        for number in range(40)
    ]
    file = tmp_path / "trace.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def run(*words: object):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["simulate", *map(str, words)])


def test_one_run_is_told_in_full(trace, tmp_path):
    figures, records = tmp_path / "run.json", tmp_path / "records.jsonl"
    result = run("mixed", "--trace", trace, "--first", 30, "--json", figures, "--records", records)
    assert result.exit_code == 0, result.output
    for words in ("TTFT (first token)", "prefill on h100", "the first 30 of 40 requests"):
        assert words in result.output
    document = json.loads(figures.read_bytes())
    summary = document["runs"][0]["summary"]
    assert summary["endings"] == {"finished": 30}
    assert summary["output_tokens"] == 150
    assert document["runs"][0]["settings"]["routing"] == "cost"
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert sum(line["of"] == "request" for line in lines) == 30
    assert any(line["of"] == "decision" for line in lines)


def test_a_list_compares_and_processes_change_nothing(trace, tmp_path):
    texts = set()
    for processes in (1, 2):
        figures = tmp_path / f"{processes}.json"
        result = run(
            "aggregated-16", "--trace", trace, "--speed", "1,4", "--routing", "cost,random",
            "--processes", processes, "--json", figures,
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        assert "TTFT p50/p99" in result.output
        texts.add(figures.read_bytes())
    assert len(texts) == 1
    runs = json.loads(texts.pop())["runs"]
    assert [(each["label"], each["speed"]) for each in runs] == [
        ("cost", 1.0), ("cost", 4.0), ("random", 1.0), ("random", 4.0),
    ]  # fmt: skip


def test_one_request_is_explained(trace):
    result = run("mixed", "--trace", trace, "--first", 5, "--explain", 3)
    assert result.exit_code == 0, result.output
    assert "routing" in result.output
    assert "first token" in result.output


def test_a_plot_is_drawn(trace, tmp_path):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "run.png"
    result = run("mixed", "--trace", trace, "--first", 5, "--plot", plot)
    assert result.exit_code == 0, result.output
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["moncake-16"], "did you mean mooncake-16?"),
        (["mixed", "--routing", "cst"], "--routing: unknown cst; did you mean cost?"),
        (["mixed", "--speed", "0"], "--speed must be a number greater than 0"),
        (["mixed", "--slo", "ttft"], "--slo must look like"),
        (["mixed", "--set", "pools.x.count=1"], "no entry x"),
        (["mixed", "--faults", "crash"], "--faults must look like"),
        (["mixed", "--faults", "at: 1s, crash: decode-99"], "there is no worker decode-99"),
        (["mixed", "--explain", "1", "--speed", "1,2"], "--explain looks at one run"),
        (["mixed", "--explain", "999"], "999: no such request"),
        (["mixed", "--plot", "run.txt"], "--plot must end in"),
        (["mixed", "--set", "policies.routing.harm=2"], "routing cost takes no parameters"),
        (["mooncake-16", "--set", "policies.admission.x=2"], "admission none: "),
        (["mixed", "--set", "policies.forecast=trend"], "planning static forecasts nothing"),
    ],
)
def test_a_mistake_is_one_line(trace, words, told):
    result = run(*words, "--trace", trace, "--first", 3)
    assert result.exit_code == 2
    assert told in result.output
    assert result.output.count("\n") == 1
