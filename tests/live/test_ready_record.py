"""Whoever waits for a cluster to be ready reads what it printed until then: all of it."""

import asyncio
import sys

from tandem.commands.which_cluster import state_directory
from tandem.config.cluster.live import read_live_cluster
from tandem.live.http_server import PATIENCE_S
from tandem.live.launching.launcher import Program
from tandem.live.launching.state_directory import started_ticks
from tandem.live.processes.cluster import ClusterRun, RunLimits, View
from tests.waiting import until

CLUSTER = """\
name: ready
model: tandem-mini
pools: [{name: w, role: both, device: cpu}]
"""


class Started(ClusterRun):
    """A run whose processes are there at once, for there are none."""

    async def _bring_up(self):
        return "all are there"

    async def _look_after(self):
        self.then = self.directory.read().ready


def test_it_is_recorded_as_ready_when_the_greeting_is_out(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    directory = state_directory("ready", tmp_path / "state")
    directory.prepare()
    directory.claim()
    greeted = []

    def greet(run, status) -> None:
        greeted.append(directory.read().ready)

    view = View(lambda _: None, lambda _: None, greet)

    async def from_start_to_end() -> Started:
        run = Started(read_live_cluster(str(file), ()), directory, view)
        await run.run(asyncio.Event())
        return run

    run = asyncio.run(from_start_to_end())
    directory.clear()
    assert greeted == [False]
    assert run.then


# Heeds no signal but the last one.
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True)"
)


class Stubborn(ClusterRun):
    """A run with a gateway that does not end by itself."""

    async def _bring_up(self):
        log = self.directory.path / "gateway-0.log"
        command = (sys.executable, "-c", f"{STUBBORN}; time.sleep(60)")
        await self._supervisor.start(Program("gateway-0", command, log=log))
        await asyncio.to_thread(until, lambda: log.exists() and log.read_text(), 20)
        return "it runs"

    async def _look_after(self):
        await asyncio.Event().wait()


def test_the_end_says_what_it_waits_for_and_a_second_wish_ends_it_at_once(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(CLUSTER)
    directory = state_directory("ready", tmp_path / "state")
    directory.prepare()
    directory.claim()

    async def from_start_to_end() -> int:
        ready, ending = asyncio.Event(), asyncio.Event()
        told = []

        def end(*figures) -> None:
            told.append(figures)
            ending.set()

        view = View(lambda _: None, lambda _: None, lambda *_: ready.set(), end)
        limits = RunLimits(answers_s=600.0, kill_s=600.0)
        run = Stubborn(read_live_cluster(str(file), ()), directory, view, limits=limits)
        stop = asyncio.Event()
        running = asyncio.create_task(run.run(stop))
        await ready.wait()
        pid = run._supervisor.pids["gateway-0"]
        stop.set()
        await ending.wait()
        assert told == [(0, PATIENCE_S)]
        assert not running.done()
        run.end_now()
        await asyncio.wait_for(running, 20)
        return pid

    pid = asyncio.run(from_start_to_end())
    directory.clear()
    assert not started_ticks(pid)
