"""MLPerf's LoadGen through `tandem bench`: its scenarios, its verdict, and its log of answers."""

import subprocess
import sys
import tempfile
from pathlib import Path

from outcomes import URL, check, not_offered, report

# settings
COMMAND = f"""
tandem bench --url {URL} --model tandem-mini --loadgen offline --rate 1000
  --input-tokens 64 --output-tokens 16 --num-prompts 24 --warmup 0
  --min-queries 24 --min-duration-s 0 --loadgen-logs logs
"""
# end of settings

_folder = tempfile.TemporaryDirectory()


def run(command: str) -> str:
    """In the project's own environment. It succeeds, or what it said last is told."""
    _, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", "tandem", *arguments],
        cwd=_folder.name,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.stderr or done.stdout)[-2000:]
    return done.stdout


@check("stream")
def single_stream():
    one_by_one = COMMAND.replace("offline --rate 1000", "single-stream")
    said = run(one_by_one.replace("--min-queries 24", "--min-queries 64"))
    assert "LoadGen's verdict: VALID" in said, said


@check("stream")
def offline():
    said = run(COMMAND)
    assert "LoadGen's verdict: VALID" in said, said


@check("accuracy log")
def accuracy():
    run(COMMAND + "--loadgen-mode accuracy")
    assert Path(_folder.name, "logs", "mlperf_log_accuracy.json").stat().st_size > 1000


@check("errors")
def errors():
    try:
        run(COMMAND.replace("tandem-mini", "another"))
    except AssertionError as failure:
        assert "another" in str(failure), failure
    else:
        raise AssertionError("nothing was refused")


not_offered("text", "it measures streams")
for feature in ("tools", "structured output", "cancellation"):
    not_offered(feature, "it measures")

report("mlcommons-loadgen")
