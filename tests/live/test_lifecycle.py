"""What every process begins and ends with: a loop that is not held by what else the interpreter
does, and an end without being taken apart that loses nothing of what it had to do."""

import gc
import subprocess
import sys

import pytest

from tandem.live.processes.lifecycle import SWITCH_S, loop_runner


def test_what_a_process_was_made_of_is_not_looked_through_again():
    pool_books = [[block] for block in range(3)]
    interval_s = sys.getswitchinterval()
    with loop_runner() as runner:
        later = [[0]]
        seen = gc.get_objects()
        assert any(each is later for each in seen)
        assert not any(each is pool_books for each in seen)
        assert runner.run(_interval_s()) <= SWITCH_S
    sys.setswitchinterval(interval_s)


async def _interval_s() -> float:
    return sys.getswitchinterval()


SCRIPT = """
import atexit, sys, threading
from tandem.live.processes.lifecycle import run_to_the_end

class Untidy:
    def __del__(self):
        print("taken apart", flush=True)

kept = Untidy()
release = threading.Event()

def work():
    atexit.register(print, "registered", end=" ")
    sys.stdout.write("written ")
    {end}

run_to_the_end(work)
"""
THREAD = "threading.Thread(target=lambda: release.wait() and print('thread', end=' ')).start()"


def ended(end: str) -> tuple[int, str, str]:
    """Its exit status and what it wrote."""
    command = [sys.executable, "-c", SCRIPT.format(end=end)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("end", "status"), [("return", 0), ("sys.exit()", 0), ("sys.exit(75)", 75)]
)
def test_it_ends_with_its_status_when_all_is_written(end, status):
    assert ended(end) == (status, "written registered", "")


def test_threads_finish_first():
    status, out, _ = ended(f"{THREAD}; threading.Timer(0.1, release.set).start(); sys.exit(3)")
    assert (status, out.split()[:3]) == (3, ["written", "thread", "registered"])


def test_what_goes_wrong_is_printed_as_ever():
    assert ended("sys.exit('no such file')")[::2] == (1, "no such file\n")
    status, out, stderr = ended("raise ValueError('broken')")
    assert status == 1
    assert "registered" in out
    assert stderr.endswith("ValueError: broken\n")


HALF_A_LOOP = """
import asyncio, os, signal
from tandem.live.processes.lifecycle import ended_by_signals, run_ended_by_signals

class Told(asyncio.SelectorEventLoop):
    def __init__(self):
        os.kill(os.getpid(), signal.SIGINT)
        super().__init__()

class Policy(asyncio.DefaultEventLoopPolicy):
    _loop_factory = Told

async def work():
    print("worked")

asyncio.set_event_loop_policy(Policy())
with ended_by_signals():
    run_ended_by_signals(work)
"""


def test_a_signal_while_the_loop_is_made_waits_for_the_whole_of_it():
    command = [sys.executable, "-c", HALF_A_LOOP]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
