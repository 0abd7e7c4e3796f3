"""The flags of `tandem bench --loadgen`: what is refused before LoadGen or a server is needed."""

import sys
from pathlib import Path

import pytest
from typer.testing import Result

from tests.commands.cli import tandem

STREAM, SERVER, OFFLINE = (
    ["--loadgen", scenario, "--loadgen-logs", "x"]
    for scenario in ("single-stream", "server", "offline")
)
ACCURACY = [*OFFLINE, "--loadgen-mode", "accuracy"]


def run(*flags: str) -> Result:
    return tandem("bench", "--url", "http://127.0.0.1:9", *flags)


def test_without_the_library_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlperf_loadgen", None)
    monkeypatch.delitem(sys.modules, "tandem.bench.loadgen.library", raising=False)
    result = run("--loadgen", "offline", "--loadgen-logs", str(tmp_path))
    assert result.exit_code == 2
    assert "pip install tandem[loadgen]" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--loadgen", "server"], "--loadgen-logs"),
        (SERVER, "--rate"),
        ([*SERVER, "--rate", "2"], "--slo"),
        ([*OFFLINE, "--rate", "1,2"], "--rate"),
        ([*OFFLINE, "--turns", "2"], "--turns"),
        ([*OFFLINE, "--slo", "ttft=1s,e2e=2s"], "--slo"),
        ([*OFFLINE, "--output-tokens", "1"], "--output"),
        ([*OFFLINE, "--loadgen-tasks", "a"], "accuracy"),
        ([*ACCURACY, "--loadgen-tasks", "a"], "--loadgen-tasks knows recall-1k"),
        ([*ACCURACY, "--loadgen-tasks", "arithmetic-vote"], "several times"),
        ([*OFFLINE, "--arrival", "constant"], "--arrival"),
        ([*STREAM, "--rate", "2"], "no --rate"),
        ([*OFFLINE, "--loadgen-config", "no"], "no file no"),
        (["--loadgen-tasks", "recall-1k"], "--loadgen-tasks needs --loadgen"),
    ],
)
def test_bad_values_are_one_clear_line(flags: list[str], named: str) -> None:
    result = run(*flags)
    assert result.exit_code == 2
    assert named in result.stderr
    assert len(result.stderr.splitlines()) == 1
