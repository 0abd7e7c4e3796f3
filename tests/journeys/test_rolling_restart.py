"""Workers are started anew, one after the other, or ended, while clients go on reading."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event

import openai
import pytest

from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.questions import complete, joined
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 8, kv-cache-memory: 32MiB, threads: 1}
pools:
  - {name: worker, role: both, device: cpu, count: 3}
"""
# Of two answers, which two of the three workers draw, one at least is where somebody goes.
CLIENTS = 2
STORY_TOKENS = 300


def story(client: openai.OpenAI, seed: int) -> str:
    """A long answer, read as it comes."""
    prompt = "Once upon a time there was a worker. " * 8
    return joined(complete(client, prompt, STORY_TOKENS, temperature=1.0, seed=seed, stream=True))


@contextmanager
def readers(running: ClusterProcess, expected: list[str]) -> Iterator[None]:
    """While the block runs, clients read on; every answer must be the expected one."""
    done, reading = Event(), [Event() for _ in range(CLIENTS)]

    def read_on(seed: int) -> int:
        client, rounds = running.client, 0
        while not done.is_set() or not rounds:
            reading[seed].set()
            assert story(client, seed) == expected[seed]
            rounds += 1
        return rounds

    with ThreadPoolExecutor(CLIENTS) as threads:
        reads = [threads.submit(read_on, seed) for seed in range(CLIENTS)]
        try:
            assert all(each.wait(30) for each in reading)
            yield
        finally:
            done.set()
        assert all(read.result() for read in reads)


def settled(before: dict[str, int], now: dict[str, int]) -> bool:
    return now.keys() == {"worker-1", "worker-2"} and now["worker-1"] != before["worker-1"]


def assert_nothing_held(running: ClusterProcess, workers: int) -> None:
    status = running.assert_nothing_held()
    assert len(status["audit"]["workers"]) == workers


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with cluster(TEXT, tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def expected(running):
    return [story(running.client, seed) for seed in range(CLIENTS)]


def test_workers_are_started_anew_in_turn_and_no_client_can_tell(running, expected):
    before = running.pids
    with readers(running, expected):
        printed = running.succeed("restart", "worker-0", "worker-1")
    assert "2 of 2  worker-1 is back" in printed
    after = running.pids
    assert after.keys() == before.keys()
    assert not {after["worker-0"], after["worker-1"]} & set(before.values())
    # They left in order: nobody died, and nothing had to be begun again.
    (gateway,) = running.status()["gateways"]
    assert not gateway["lost"]
    assert not gateway["takeovers"]
    assert_nothing_held(running, 3)


def test_workers_that_get_a_signal_at_once_leave_their_answers_to_the_last(running, expected):
    before = running.pids
    with readers(running, expected):
        for name in ("worker-0", "worker-1"):
            os.kill(before[name], signal.SIGTERM)
        # One of them has no patience to leave in order.
        os.kill(before["worker-1"], signal.SIGKILL)
        # One has left, the other was killed and is back.
        until(lambda: settled(before, running.pids))
    assert_nothing_held(running, 2)


def test_what_cannot_be_started_anew_is_refused_before_anybody_goes(running):
    for arguments, words in (
        ((), "or say --all"),
        (("--all", "worker-1"), "or say --all"),
        (("worker-9",), "has no worker worker-9"),
    ):
        done = running.operate("restart", *arguments)
        assert done.returncode != 0
        assert words in " ".join((done.stdout + done.stderr).split())
    assert running.operate("drain", "worker-1").returncode == 0
    done = running.operate("restart", "worker-2")
    assert "without worker-2 no worker would take prefill" in " ".join(
        (done.stdout + done.stderr).split()
    )
