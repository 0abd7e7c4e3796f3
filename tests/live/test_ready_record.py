"""Whoever waits for a cluster to be ready reads what it printed until then: all of it."""

import asyncio

from tandem.commands.which_cluster import state_directory
from tandem.config.cluster.live import read_live_cluster
from tandem.live.processes.cluster import ClusterRun, View

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
