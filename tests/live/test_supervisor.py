"""Real processes that are started, die, hang and end. One that hangs is killed only when it worked,
everybody gave it up, and its process still runs."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tandem.live.launching.launcher import ExitCode, LocalLauncher, Program, tail
from tandem.live.launching.state_directory import alive, started_ticks
from tandem.live.launching.supervisor import LOOKS, RestartConfig, Restarts, Supervisor, Vanished
from tandem.messages.gateway import ClusterStatus
from tests.live.statuses import worker_status

# Prints that it runs, then waits for a signal.
WAITS = """
import pathlib, signal, sys, time
runs = pathlib.Path(sys.argv[1])
{prepare}
runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
print("it runs", flush=True)
{then}
while True:
    time.sleep(60)
"""
QUICK = RestartConfig(first_delay_s=0.01, longest_delay_s=0.02, most_in_a_row=3)
LIMIT_S = 20


class Bed:
    """A supervisor with its notices, and programs whose starts can be counted."""

    def __init__(self, folder, config=QUICK):
        self.folder = folder
        self.launcher = LocalLauncher()
        self.notices = []
        self.supervisor = Supervisor(self.launcher, self.notices.append, config)

    def program(self, name, prepare="", then=""):
        script = WAITS.format(prepare=prepare, then=then)
        command = (sys.executable, "-c", script, str(self.folder / f"{name}.runs"))
        return Program(name, command, log=self.folder / f"{name}.log")

    def starts(self, name):
        runs = self.folder / f"{name}.runs"
        return len(runs.read_text()) if runs.exists() else 0

    async def work(self, name, **script):
        """Start one, which is seen at work."""
        await self.supervisor.start(self.program(name, **script))
        await self.until_started(name)
        self.supervisor.confirm(name)

    async def until_started(self, name, times=1):
        async with asyncio.timeout(LIMIT_S):
            while self.starts(name) < times or name not in self.launcher.pids:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def bed(folder, config=QUICK):
    made = Bed(folder, config)
    try:
        yield made
    finally:
        await made.supervisor.stop(list(made.launcher.pids), 0.1, 5)
        await made.supervisor.close()
        assert not made.launcher.pids


async def test_what_leaves_to_be_started_anew_starts_at_once_and_is_no_failure(tmp_path):
    # Only so many deaths in a row are forgiven: leaving like this is none of them.
    async with bed(tmp_path, replace(QUICK, most_in_a_row=1)) as made:
        leaves = f"signal.signal(signal.SIGTERM, lambda *_: sys.exit({ExitCode.AGAIN:d}))"
        await made.supervisor.start(made.program("w", prepare=leaves))
        for times in range(1, 5):
            await made.until_started("w", times)
            made.supervisor.confirm("w")
            made.launcher.send("w", signal.SIGTERM)
        await made.until_started("w", 5)
        assert {notice.text for notice in made.notices} == {"has left and starts again in 0 s"}


async def test_what_died_starts_again_and_the_rest_is_left_alone(tmp_path):
    async with bed(tmp_path) as made:
        for name in ("a", "b"):
            await made.work(name)
        before = dict(made.supervisor.pids)
        os.kill(before["a"], signal.SIGKILL)
        await made.until_started("a", 2)
        assert made.supervisor.pids["a"] != before["a"]
        assert made.supervisor.pids["b"] == before["b"]
        assert "was killed by SIGKILL" in made.notices[0].text


async def test_what_cannot_be_started_for_now_is_tried_again(tmp_path):
    async with bed(tmp_path) as made:
        python = tmp_path / "python"
        python.symlink_to(sys.executable)
        program = made.program("a")
        await made.supervisor.start(replace(program, command=(str(python), *program.command[1:])))
        await made.until_started("a")
        made.supervisor.confirm("a")
        python.unlink()
        made.launcher.send("a", signal.SIGKILL)
        async with asyncio.timeout(LIMIT_S):
            while not any("cannot be started" in notice.text for notice in made.notices):
                await asyncio.sleep(0)
        python.symlink_to(sys.executable)
        await made.until_started("a", 2)


async def test_what_dies_before_it_worked_is_given_up_with_the_end_of_its_log(tmp_path):
    async with bed(tmp_path) as made:
        then = "print('no such model'); sys.exit(2)"
        await made.supervisor.start(made.program("a", then=then))
        failure = await made.supervisor.failed()
        assert (failure.name, failure.how) == ("a", "ended with status 2")
        assert failure.log_tail.endswith("no such model")
        assert made.starts("a") == 1


async def test_what_keeps_dying_is_given_up_after_a_bounded_number_of_starts(tmp_path):
    async with bed(tmp_path) as made:
        await made.supervisor.start(made.program("a", then="sys.exit(1)"))
        made.supervisor.confirm("a")
        await made.supervisor.failed()
        assert made.starts("a") == 1 + QUICK.most_in_a_row


@pytest.mark.parametrize(("status", "starts"), [(0, 1), (3, 1)])
async def test_what_left_or_is_not_wanted_does_not_start_again(tmp_path, status, starts):
    async with bed(tmp_path) as made:
        await made.supervisor.start(made.program("a", then=f"sys.exit({status})"))
        made.supervisor.confirm("a")
        if status:
            assert (await made.supervisor.failed()).how == f"ended with status {status}"
        while made.supervisor.pids:
            await made.supervisor.changed()
        assert made.starts("a") == starts


async def test_what_hangs_is_killed_and_starts_again(tmp_path):
    async with bed(tmp_path) as made:
        # Only the first, so that the end of the test waits for nobody.
        ignore = "runs.exists() or signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        await made.work("a", prepare=ignore)
        os.kill(made.supervisor.pids["a"], signal.SIGSTOP)
        made.supervisor.kill("a", "it is silent")
        await made.until_started("a", 2)


async def test_stopping_asks_twice_and_then_kills(tmp_path):
    asked = "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))"
    async with bed(tmp_path) as made:
        for name, prepare in (("polite", ""), ("deaf", asked)):
            await made.work(name, prepare=prepare)
        await made.supervisor.stop(["polite", "deaf"], 0.3, 0.3)
        assert not made.supervisor.pids
        assert made.starts("polite") == made.starts("deaf") == 1
        assert tail(tmp_path / "deaf.log").count("asked") == 2


def test_delays_grow_and_a_steady_run_begins_anew():
    book = Restarts(RestartConfig(1.0, 5.0, most_in_a_row=4, steady_s=60))
    assert [book.delay_s("a", 1, 0.1) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, None]
    assert book.delay_s("b", 1, 0.1) == 1.0
    assert book.delay_s("a", 1, 61) == 1.0
    assert book.delay_s("a", 1, 0.1) == 2.0
    assert book.delay_s("b", 2, 100) is None


def test_restarts_of_many_are_spread_and_never_later_than_configured():
    book = Restarts(RestartConfig(1.0, 8.0))
    delays_s = [book.delay_s(str(chance), 1, 0.1, chance=chance) for chance in (1.0, 0.5, 0.0)]
    assert delays_s == pytest.approx([1, 0.75, 0.5])
    assert book.last_resort_s(chance=0.5) == pytest.approx(6)


def test_a_process_is_known_by_its_number_and_its_start():
    ticks = started_ticks(os.getpid())
    assert alive(os.getpid(), ticks)
    assert not alive(os.getpid(), ticks + 1)
    assert started_ticks(1 << 22) == 0
    assert not alive(1 << 22, 0)


def test_a_log_that_is_not_there_has_no_end(tmp_path):
    assert tail(tmp_path / "none") == ""


PIDS = {"w-0": 10, "w-1": 11}


def status(*workers, lost=()):
    return ClusterStatus("g", 1.0, tuple(map(worker_status, workers)), 0, 0, 0, 0, tuple(lost))


BOTH = status("w-0", "w-1")
WITHOUT = status("w-1", lost=[("w-0", "silent for 10 s")])


def test_who_is_lost_though_the_process_runs_is_found_once():
    vanished = Vanished()
    assert vanished.look(PIDS, [BOTH]) == []
    found = [vanished.look(PIDS, [WITHOUT]) for _ in range(LOOKS + 2)]
    assert found == [[]] * (LOOKS - 1) + [[("w-0", "silent for 10 s")]] + [[]] * 2


def test_who_still_loads_or_is_not_in_anybodys_list_is_left_alone():
    vanished = Vanished()
    for _ in range(2 * LOOKS):
        # Lost before, and now starting again under another number; a gateway that is new.
        assert vanished.look(PIDS, [WITHOUT]) == []
    vanished.look(PIDS, [BOTH])
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS, [status()]) == []
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS | {"w-0": 20}, [WITHOUT]) == []


def test_one_gateway_that_knows_a_worker_is_enough():
    vanished = Vanished()
    vanished.look(PIDS, [BOTH])
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS, [WITHOUT, BOTH]) == []


def test_who_comes_back_begins_anew():
    vanished = Vanished()
    vanished.look(PIDS, [BOTH])
    for _ in range(3):
        for _ in range(LOOKS - 1):
            assert vanished.look(PIDS, [WITHOUT]) == []
        assert vanished.look(PIDS, [BOTH]) == []


def test_who_left_after_it_once_was_lost_is_left_alone():
    vanished = Vanished()
    old = ("w-0", "silent for 10 s")
    vanished.look(PIDS, [status("w-0", "w-1", lost=[old])])
    for _ in range(2 * LOOKS):
        assert vanished.look(PIDS, [status("w-1", lost=[old])]) == []
    again = [vanished.look(PIDS, [status("w-1", lost=[old, ("w-0", "x")])]) for _ in range(LOOKS)]
    assert again[-1] == [("w-0", "x")]
