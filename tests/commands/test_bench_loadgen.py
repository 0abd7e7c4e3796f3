"""`tandem bench --loadgen`: MLPerf's LoadGen itself, in its scenarios, against a real socket."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from tandem.bench.loadgen.logs import read_answers, read_summary
from tandem.bench.tasks.evaluation import SUITES, make_tasks, scaled_counter
from tests.bench.scripted_server import END_ID, Script, ScriptedServer, word_id
from tests.commands.cli import tandem
from tests.waiting import until

pytest.importorskip("mlperf_loadgen")

SMALL = ["--input-tokens", "8", "--output-tokens", "3", "--warmup", "0", "--num-prompts", "24"]
SHORT = ["--min-duration-s", "0.1", "--min-queries", "24"]
BOUNDS = ["--slo", "ttft=5s,tpot=5s"]


def run(url: str, folder: Path, scenario: str, *flags: str) -> Result:
    flags = (*SMALL, *SHORT, "--loadgen", scenario, "--loadgen-logs", str(folder), *flags)
    return tandem("bench", "--url", url, *flags)


@pytest.mark.parametrize(
    ("scenario", "flags"),
    [
        # So many LoadGen wants to see before it believes a 90th or a 99th percentile.
        ("single-stream", ["--min-queries", "64"]),
        ("server", ["--rate", "600", "--min-queries", "460", *BOUNDS]),
        ("offline", ["--rate", "1000", "--min-duration-s", "0"]),
    ],
)
def test_a_fast_server_is_valid(tmp_path: Path, scenario: str, flags: list[str]) -> None:
    records = tmp_path / "records.jsonl"
    with ScriptedServer() as server:
        result = run(server.url, tmp_path / "logs", scenario, *flags, "--records", str(records))
        asked = server.bodies
    assert result.exit_code == 0, result.output
    assert "LoadGen's verdict: VALID" in result.stdout
    summary = read_summary(tmp_path / "logs")
    assert summary.valid and not summary.errors and not summary.reasons
    if scenario != "offline":
        assert summary.figures["50.00 percentile first token latency (ns)"] > 0
        assert summary.figures["50.00 percentile time to output token (ns)"] > 0
    assert len(records.read_text().splitlines()) == len(asked)
    assert all(body["stream"] and len(body["prompt"]) == 8 for body in asked)
    assert len({str(body["prompt"]) for body in asked}) == 24 or scenario == "single-stream"


def test_a_slow_server_is_invalid_and_why(tmp_path: Path) -> None:
    with ScriptedServer(Script(first_token_s=0.02)) as server:
        flags = ["--rate", "400", "--slo", "ttft=10ms,tpot=5s"]
        result = run(server.url, tmp_path / "logs", "server", *flags)
    assert result.exit_code == 1
    assert "LoadGen's verdict: INVALID" in result.stdout
    assert "performance constraints not met" in result.stdout
    assert "TTFT constrain not met" in result.stdout


def test_what_fails_is_reported_and_ends_the_test(tmp_path: Path) -> None:
    with ScriptedServer(Script(refuse=lambda n: 429 if n % 3 == 0 else 200)) as server:
        result = run(server.url, tmp_path / "logs", "offline", "--min-duration-s", "0")
    assert result.exit_code == 1
    assert "8 failed: HTTP 429: queue full" in result.stdout
    assert "16 of 24 queries answered" in result.stdout
    assert "errors in LoadGen's log: 8" in result.stdout
    assert result.stderr.splitlines() == [
        "tandem: a query failed, the test goes on: HTTP 429: queue full"
    ]


def test_what_fails_fast_does_not_count_as_low_latency(tmp_path: Path) -> None:
    """By the latency of whole answers, LoadGen itself finds nothing wrong."""
    with ScriptedServer(Script(refuse=lambda n: 503 if n > 300 else 200)) as server:
        flags = ["--rate", "600", "--slo", "e2e=5s", "--min-queries", "460"]
        result = run(server.url, tmp_path / "logs", "server", *flags)
    assert read_summary(tmp_path / "logs").valid
    assert result.exit_code == 1
    assert "this is no result, whatever LoadGen says" in result.stdout


def test_a_file_of_the_user_holds_unless_flags_say_otherwise(tmp_path: Path) -> None:
    """The one test that reads a file: LoadGen counts more than one a process as an error."""
    config = tmp_path / "user.conf"
    config.write_text(
        "*.Server.target_qps = 3\n"
        "mine.Server.ttft_latency = 1234\n"
        "other.Server.tpot_latency = 7\n"
        "*.*.use_token_latencies = 1\n"
        "*.*.min_query_count = 31\n"
    )
    flags = ["--loadgen-config", str(config), "--loadgen-benchmark", "mine", "--rate", "300"]
    with ScriptedServer() as server:
        run(server.url, tmp_path / "logs", "server", *flags)
    used = read_summary(tmp_path / "logs")
    assert used.figures["target_qps"] == 300
    assert used.figures["ttft_latency (ns)"] == 1234e6
    assert used.figures["tpot_latency (ns)"] != 7e6
    assert used.figures["min_query_count"] == 24
    assert not used.errors


@pytest.mark.parametrize("scenario", ["offline", "single-stream"])
def test_the_accuracy_log_holds_every_answer_as_token_ids(tmp_path: Path, scenario: str) -> None:
    with ScriptedServer() as server:
        flags = ["--loadgen-mode", "accuracy"]
        result = run(server.url, tmp_path / "logs", scenario, *flags)
    assert result.exit_code == 0, result.output
    said = [word_id("w0 "), word_id("w1 "), word_id("w2"), END_ID]
    assert read_answers(tmp_path / "logs") == dict.fromkeys(range(24), said)


def test_answers_that_the_accuracy_log_lacks_are_no_success(tmp_path: Path) -> None:
    script = Script()

    def forget(number: int) -> int:
        script.tells_token_ids = number < 20
        return 200

    script.refuse = forget
    with ScriptedServer(script) as server:
        result = run(server.url, tmp_path / "logs", "single-stream", "--loadgen-mode", "accuracy")
    assert result.exit_code == 1
    # One of those with ids was asked to see whether there are any.
    assert "24 of 24 queries answered" in result.stdout
    assert "19 of 24 answers in LoadGen's accuracy log" in result.stdout


def test_a_server_without_token_ids_cannot_be_asked_for_accuracy(tmp_path: Path) -> None:
    with ScriptedServer(Script(tells_token_ids=False)) as server:
        result = run(server.url, tmp_path / "logs", "offline", "--loadgen-mode", "accuracy")
    assert result.exit_code == 1
    assert "return_token_ids" in result.stderr


def _spoken(reference: Mapping[str, Any]) -> str:
    calls = [call["function"] for call in reference.get("tool_calls", ())]
    texts = [
        f'<tool_call>{{"name": "{each["name"]}", "arguments": {each["arguments"]}}}</tool_call>'
        for each in calls
    ]
    return reference["content"] or "".join(texts)


@pytest.mark.parametrize(("wrong", "score"), [(False, "100.0%"), (True, "0.0%")])
def test_tasks_are_judged_by_the_accuracy_log(tmp_path: Path, wrong: bool, score: str) -> None:
    suite = next(each for each in SUITES if each.name == "arithmetic")
    tasks = make_tasks(suite, 24, 0, scaled_counter(1.0))
    answers = {str(task.messages[-1]["content"]): _spoken(task.reference) for task in tasks}

    def reply(messages: list[dict[str, Any]]) -> str:
        return "Answer: none" if wrong else answers[messages[-1]["content"]]

    with ScriptedServer(Script(reply=reply)) as server:
        flags = ["--loadgen-mode", "accuracy", "--loadgen-tasks", "arithmetic"]
        result = run(server.url, tmp_path / "logs", "offline", *flags)
    assert result.exit_code == 0, result.output
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("arithmetic")]
    assert row.split()[1:3] == ["24", score]


def test_ctrl_c_ends_it_and_leaves_no_result(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    flags = [*SMALL, *BOUNDS, "--rate", "50", "--min-duration-s", "600"]
    flags += ["--loadgen", "server", "--loadgen-logs", str(folder)]
    with ScriptedServer(Script(token_gap_s=30.0)) as server:
        command = [sys.executable, "-m", "tandem", "bench", "--url", server.url, *flags]
        # A shell that runs tests in the background has them ignore the signal.
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        until(lambda: len(server.bodies) > 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted" in errors and "Traceback" not in errors
    assert "Result is" not in (folder / "mlperf_log_summary.txt").read_text()
