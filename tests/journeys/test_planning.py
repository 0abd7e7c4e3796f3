"""A planner starts a worker under load and sends it away when there is none, and leaves alone what
an operator has drained; no client can tell."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import openai

from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.live.gateway.operators import Operators
from tandem.messages.gateway import ClusterStatus
from tandem.messages.planning import PlanningStatus
from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.questions import complete
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 2, kv-cache-memory: 32MiB, threads: 1}
pools:
  - {name: prefill, role: prefill, device: cpu, count: 1, startup: 5s}
  - {name: decode, role: decode, device: cpu, count: 1, min_count: 1, max_count: 2, startup: 5s}
policies:
  dispatch: remote
  transfer: push
  planning: {name: utilisation, threshold: 60%, interval_s: 500ms}
"""
FIRST = {"prefill-0", "decode-0"}
# More than a worker has slots: whatever an answer's way takes beside its decode, another one waits.
CLIENTS = 6
PATIENCE_S = 60


def story(client: openai.OpenAI, seed: int) -> str:
    prompt = "Once upon a time there was a planner."
    return complete(client, prompt, 200, temperature=1.0, seed=seed).choices[0].text


@contextmanager
def load(running: ClusterProcess) -> Iterator[None]:
    """While the block runs, all slots of one worker are taken; nobody's answer ever changes."""
    done = Event()

    def ask_on(seed: int) -> None:
        client = running.client
        expected = story(client, seed)
        while not done.is_set():
            assert story(client, seed) == expected

    with ThreadPoolExecutor(CLIENTS) as threads:
        asking = [threads.submit(ask_on, seed) for seed in range(CLIENTS)]
        try:
            yield
        finally:
            done.set()
        for each in asking:
            each.result()


class Watch:
    """What the gateway knows, and orders to it, from this process: a command takes a second to
    import."""

    def __init__(self, running: ClusterProcess) -> None:
        found = find_running(WhichCluster(state_dir=running.state))
        self.operators = Operators(found.endpoints, found.keys, PATIENCE_S)

    @property
    def status(self) -> ClusterStatus:
        (status,) = asyncio.run(self.operators.statuses())
        return status

    @property
    def planning(self) -> PlanningStatus:
        planning = self.status.planning
        assert planning is not None
        return planning

    @property
    def serving(self) -> set[str]:
        return {worker.worker for worker in self.status.workers if worker.accepting}


def printed(running: ClusterProcess, words: str) -> str:
    """The next line that `tandem up` prints with these words in it."""
    assert running.process.stdout is not None
    return next(line for line in running.process.stdout if words in line)


def test_a_planner_scales_a_running_cluster(tmp_path):
    with cluster(TEXT, tmp_path) as running:
        watch = Watch(running)
        with load(running):
            until(lambda: "decode-1" in watch.serving)
            assert "decode: decode-1 starts as decode" in printed(running, "planner")
            asyncio.run(watch.operators.drain("decode-1", None, leave=False))
            # Two ticks that would want it.
            time.sleep(1.2)
            assert watch.serving == FIRST
        shown = running.operate("status").stdout
        assert "planner utilisation: 1 started" in shown
        assert "left alone, changed by hand: decode-1 (drained, until it is undrained)" in shown
        assert {worker.worker for worker in watch.status.workers} == FIRST | {"decode-1"}
        asyncio.run(watch.operators.undrain("decode-1"))
        # Without load nobody needs it, and it is the planner's again.
        until(lambda: {worker.worker for worker in watch.status.workers} == FIRST)
        assert "decode-1 has left" in printed(running, "decode-1 has left")
        # Its name stays the planner's, and nobody takes its end for a death.
        refused = running.operate("join", "--pool", "decode", "--worker", "decode-1")
        assert refused.returncode != 0
        assert "decode-1 is for the cluster's planner to start" in refused.stderr + refused.stdout
        time.sleep(1)
        assert watch.serving == FIRST
        planning = watch.planning
        assert (planning.starts, planning.stops, planning.failed_starts) == (1, 1, 0)
        assert (planning.starting, planning.held) == ((), ())
