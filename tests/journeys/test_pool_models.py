"""A cluster of two models: whoever names the smaller one, or finds no room at the larger one, gets
its answer and no other, also when its worker is killed in the middle."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.questions import SOURCES, STORY, complete, joined, teller
from tests.journeys.serving import run_tandem, serving, succeeded
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
serve: {{port: 0, kv-cache-memory: 64MiB, threads: 1}}
journal: {{directory: "{journal}"}}
pools:
  - {{name: main, device: cpu, max_num_seqs: 2}}
  - {{name: small, device: cpu, count: 2, model: tandem-mini-draft}}
policies: {{admission: prediction}}
classes:
  - {{name: usual, default: true, degrade: {{service_class: economy}}}}
  - {{name: economy, pools: [small], headers: {{x-tier: economy}}}}
"""
ECONOMY = {"x-tier": "economy"}
TOKENS = 1500


@pytest.fixture(scope="module")
def wanted(one_process) -> dict[str, str]:
    """The story as either model tells it alone."""
    with serving("tandem-mini-draft", "--threads", "1") as server:
        small = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        model = small.models.list().data[0].id
        told = small.completions.create(
            model=model, prompt=STORY, max_tokens=TOKENS, extra_body={"ignore_eos": True}
        )
        return {
            "small": told.choices[0].text,
            "main": complete(one_process, STORY, TOKENS).choices[0].text,
        }


def test_two_models_answer_and_nobody_mixes_them(wanted, tmp_path):
    assert wanted["small"] != wanted["main"]
    journal = tmp_path / "journal"
    with cluster(TEXT.format(journal=journal), tmp_path) as running:
        client = running.client
        assert complete(client, STORY, TOKENS).choices[0].text == wanted["main"]
        told = client.completions.with_raw_response.create(
            model="tandem-mini",
            prompt=STORY,
            max_tokens=TOKENS,
            extra_body={"ignore_eos": True},
            extra_headers=ECONOMY,
        )
        assert told.parse().choices[0].text == wanted["small"]
        assert "X-Tandem-Degraded" not in told.headers
        the_worker_of_a_story_is_killed(running, wanted["small"])
        who_finds_no_room_is_answered_by_the_smaller_model(running, wanted)
        running.assert_nothing_held()
    assert "all equal" in succeeded(run_tandem("replay", str(journal)))


def the_worker_of_a_story_is_killed(running: ClusterProcess, expected: str) -> None:
    pids, asked = running.pids, {"extra_headers": ECONOMY, "extra_body": SOURCES}
    chunks = iter(complete(running.client, STORY, TOKENS, stream=True, **asked))
    first = next(chunks)
    os.kill(pids[teller(first)], signal.SIGKILL)
    assert first.choices[0].text + joined(chunks) == expected
    until(lambda: len(running.pids) == 3)


def who_finds_no_room_is_answered_by_the_smaller_model(
    running: ClusterProcess, wanted: dict[str, str]
) -> None:
    def ask(_: int) -> tuple[str, str]:
        answer = running.client.completions.with_raw_response.create(
            model="tandem-mini", prompt=STORY, max_tokens=TOKENS, extra_body={"ignore_eos": True}
        )
        degraded = answer.headers.get("X-Tandem-Degraded", "")
        if degraded:
            story = running.succeed("explain", answer.headers["x-request-id"])
            assert "admitted with class=economy: worker main-0 takes 2 sequences" in story
        return degraded, answer.parse().choices[0].text

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, range(6)))
    assert {degraded for degraded, _ in answers} == {"", "class=economy"}
    for degraded, text in answers:
        assert text == wanted["small" if degraded else "main"]
