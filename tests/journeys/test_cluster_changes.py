"""Workers change their roles, leave, die and come back under load, and no client can tell."""

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
serve: {port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1}
pools:
  - {name: prefill, role: prefill, device: cpu, count: 2}
  - {name: decode, role: decode, device: cpu, count: 2}
policies: {dispatch: remote, transfer: push}
"""
CLIENTS = 4
# Who dies, and who takes over, depends on when: these say nothing about where they were computed.
ASKED = ("greedy", "short", "sampled", "streamed", "stop string", "logprobs", "three answers")


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
                done = running.operate(verb, *arguments)
                assert done.returncode == 0, done.stdout + done.stderr
            pids = {worker["worker"]: worker["pid"] for worker in running.status()["workers"]}
            os.kill(pids["decode-1"], signal.SIGKILL)
            done = running.operate("flip", "prefill-0", "both")
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            changed.set()
        assert all(each.result() for each in asking)
        told = running.status("--audit")
        roles = {worker["worker"]: worker["role"] for worker in told["workers"]}
        assert (roles["prefill-0"], roles["prefill-1"], roles["decode-0"]) == (
            "both",
            "decode",
            "prefill",
        )
        assert not told["audit"]["problem"]
        for audited in told["audit"]["workers"]:
            left = {key: audited[key] for key in audited if key not in ("worker", "cached_blocks")}
            assert not any(left.values()), audited
