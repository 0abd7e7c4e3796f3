"""Workers that speculate change their roles, leave, die and come back under load, and no client can
tell: the answers are those of a process that does not speculate."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import openai
import pytest

from tests.journeys.clusters import cluster
from tests.journeys.questions import QUESTIONS

TEXT = """
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1, speculation: draft,
        speculation-adaptive: false, speculation-branches: 2}
pools:
  - {name: prefill, role: prefill, device: cpu, count: 2}
  - {name: decode, role: decode, device: cpu, count: 2}
policies: {dispatch: remote, transfer: push}
"""
CLIENTS = 4
# Who dies, and who takes over, depends on when: these say nothing about where they were computed.
ASKED = (
    "greedy",
    "short",
    "sampled",
    "streamed",
    "stop string",
    "logprobs",
    "three answers",
    "two of a schema",
    "streamed, of a regular expression",
)


@pytest.fixture(scope="module")
def expected(one_process):
    return {name: QUESTIONS[name](one_process) for name in ASKED}


def test_nobody_notices(expected, tmp_path):
    with cluster(TEXT, tmp_path) as running, ThreadPoolExecutor(CLIENTS) as clients:
        changed = Event()

        def ask_on(client: openai.OpenAI) -> int:
            rounds = 0
            while not changed.is_set() or not rounds:
                for name in ASKED:
                    assert QUESTIONS[name](client) == expected[name], name
                rounds += 1
            return rounds

        asking = [clients.submit(ask_on, running.client) for _ in range(CLIENTS)]
        try:
            for verb, *arguments in (
                ("flip", "prefill-1", "decode"),
                ("flip", "decode-0", "prefill"),
                ("drain", "decode-1"),
                ("undrain", "decode-1"),
            ):
                running.succeed(verb, *arguments)
            os.kill(running.pids["decode-1"], signal.SIGKILL)
            running.succeed("flip", "prefill-0", "both")
        finally:
            changed.set()
        assert all(each.result() for each in asking)
        workers = running.assert_nothing_held()["workers"]
        roles = {worker["worker"]: worker["role"] for worker in workers}
        flipped = {"prefill-0": "both", "prefill-1": "decode", "decode-0": "prefill"}
        assert roles == roles | flipped
