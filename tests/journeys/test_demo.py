"""`tandem demo` shows what it promises, with the figures of its own clients, and Ctrl-C ends all
of its processes."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from tandem.live.launching.state_directory import StateDirectory
from tests.waiting import until

TOUR = (sys.executable, "-u", "-m", "tandem", "demo", "--seconds", "3", "--no-browser")
DEMO = (*TOUR, "--overload")


def figures(printed: str, service_class: str) -> list[tuple[int, int, int, int, int]]:
    """Sent, admitted, rejected, failed, and % of the admitted that kept the SLO, in each act."""
    row = rf"^{service_class} +(\d+) +(\d+) +(\d+) +(\d+) +(\d+)%"
    return [tuple(map(int, found)) for found in re.findall(row, printed, re.MULTILINE)]


def test_the_demo_protects_premium_flips_a_worker_and_explains(tmp_path: Path) -> None:
    directory = StateDirectory(tmp_path / "state")
    command = [*DEMO, "--keep", "--state-dir", str(directory.path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        assert demo.stdout is not None
        printed = ""
        for line in demo.stdout:
            printed += line
            if "Ctrl-C stops" in line and "What to try next" in printed:
                break
        record = directory.read()
        demo.send_signal(signal.SIGINT)
        printed += demo.stdout.read()
        assert demo.wait(60) == 0, printed

    premium, free = figures(printed, "premium")[-1], figures(printed, "free")[-1]
    sent, admitted, _, failed, kept = premium
    assert not failed
    assert admitted * kept >= 90 * sent, printed
    _, _, rejected, failed, _ = free
    assert not failed
    # How many depends on how fast the machine is.
    assert rejected, printed
    assert re.search(r"^  Retry-After: \d+ s$", printed, re.MULTILINE)

    assert re.search(r"s after the load changed: prefill-\d becomes decode", printed), printed
    told = printed.partition("4. Why")[2]
    assert re.search(r"tenant acme, class premium\nfinished: .*\nTTFT predicted", told), told
    assert re.search(r"tenant hobby, class free\nrejected: ", told), told
    assert record is not None
    assert len(record.processes) == 4
    until(lambda: not any(process.alive for process in record.processes.values()))


def test_the_tour_kills_a_worker_and_no_stream_breaks(tmp_path: Path) -> None:
    command = [*TOUR, "--state-dir", str(tmp_path / "s")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = ended.stdout
    assert re.search(r"http://127.0.0.1:\d+/#/cluster&key=operator-\w+", told), told
    assert re.search(r"kill -9 \d+: decode-\d is dead, with [1-6] streams under way", told), told
    found = re.search(r"(\d+) streams ended, 0 broke. (\d+) went on at another worker", told)
    assert found is not None, told
    assert int(found[1]) >= 6
    assert int(found[2]) >= 1
    assert "letter by letter the same" in told.replace("\n", " ")
    assert "tandem top --url" in told


def test_a_story_goes_on_when_the_worker_that_tells_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tandem", "demo", "--kill", "--state-dir", str(tmp_path / "s")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r">>> decode-\d, process \d+, is killed <<<", ended.stdout)
    found = re.search(r"the same: (\d+) tokens before the worker died, (\d+)", ended.stdout)
    assert found is not None, ended.stdout
    assert min(map(int, found.groups())) > 0
