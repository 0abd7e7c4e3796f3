"""Workers that speculate change their roles, leave, die and come back under load, and no client can
tell: the answers are those of a process that does not speculate. So are the scores of a prompt
whose worker is killed in the middle of it."""

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import openai
import pytest

from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.questions import FACTS, QUESTIONS
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1, speculation: draft,
        speculation-adaptive: false, speculation-branches: 2}
pools:
  - {name: prefill, role: prefill, device: cpu, count: 2, max_num_seqs: 16,
     max_num_batched_tokens: 128}
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
# Of many steps, so that there is a middle.
SCORED = f"{FACTS}\n" * 4


@pytest.fixture(scope="module")
def expected(one_process):
    return {name: QUESTIONS[name](one_process) for name in ASKED}


@pytest.fixture(scope="module")
def expected_scores(one_process):
    return score(one_process).choices[0].prompt_logprobs


def score(client: openai.OpenAI):
    return client.completions.create(
        model="tandem-mini",
        prompt=SCORED,
        max_tokens=1,
        temperature=0,
        extra_body={"prompt_logprobs": 2},
    )


def kill_who_computes_the_first_prompt(running: ClusterProcess, pids: dict[str, int]) -> str:
    """The prefill worker that is the first to hold KV."""
    used = r'kv_cache_usage_perc\{[^}]*worker="(prefill-\d)"[^}]*\} (?!0\.0$)'
    busy = until(lambda: re.search(used, running.metrics(), re.MULTILINE))[1]
    os.kill(pids[busy], signal.SIGKILL)
    return busy


def a_prompt_is_scored_whose_worker_dies(running: ClusterProcess, expected_scores: list) -> None:
    """On an idle cluster that has computed nothing yet."""
    pids = running.pids
    with ThreadPoolExecutor(1) as client:
        asked = client.submit(score, running.client)
        killed = kill_who_computes_the_first_prompt(running, pids)
        answer = asked.result()
    assert answer.choices[0].prompt_logprobs == expected_scores
    (history,) = json.loads(running.succeed("explain", answer.id, "--json"))
    first, second = (each for each in history["events"] if each["kind"] == "routing")
    assert f"prefill on {killed}" in first["text"]
    assert f"prefill on {killed}" not in second["text"]
    assert second["after_ns"] < history["first_token_ns"]
    until(lambda: running.pids.keys() == pids.keys())


def test_nobody_notices(expected, expected_scores, tmp_path):
    with cluster(TEXT, tmp_path) as running, ThreadPoolExecutor(CLIENTS) as clients:
        a_prompt_is_scored_whose_worker_dies(running, expected_scores)
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
