"""Adapters on a cluster: prefill here and decode there, through either gateway, while a worker dies
and while adapters come and go, the answers are those of one process."""

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import httpx2
import openai
import pytest

from tandem.config.environment import BUNDLED_MODEL
from tandem.models.configuration import read_model_spec
from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.serving import run_here, serving
from tests.journeys.test_adapters import OPERATOR_KEY
from tests.models.adapter_files import write_adapter
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
gateways: 2
serve:
  port: 0
  max-num-seqs: 16
  kv-cache-memory: 64MiB
  threads: 1
  arithmetic: float32
  enable_lora: true
  lora_modules: ["red={folder}/red", "green={folder}/green"]
  max_lora_rank: 32
  operator_key_file: ["{folder}/operators"]
  encoder_models: ["vectors=tandem-mini"]
pools:
  - {{name: prefill, role: prefill, device: cpu}}
  - {{name: decode, role: decode, device: cpu, count: 2}}
policies: {{dispatch: remote, transfer: push}}
"""
NAMES = ("tandem-mini", "red", "green", "blue")
# Whose numbers gateways compute themselves.
ENCODER = ("--encoder-models", "vectors=tandem-mini")
PROMPT = "A story about a lighthouse, its keeper and the very long winter that they had. " * 3
# Connections of one client may end at either gateway; this many find both.
CONNECTIONS = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder, spec = tmp_path_factory.mktemp("adapters"), read_model_spec(BUNDLED_MODEL)
    for seed, name in enumerate(NAMES[1:]):
        write_adapter(folder / name, spec, rank=8 << seed, seed=seed, strength=0.15)
    (folder / "operators").write_text(f"{OPERATOR_KEY}\n")
    return folder


def answer(client: openai.OpenAI, model: str, **changed) -> tuple:
    asked = {"prompt": PROMPT, "max_tokens": 24, "seed": 5, "extra_body": {"logprobs": 1}}
    told = client.completions.create(model=model, temperature=0.8, **(asked | changed))
    scores = told.choices[0].logprobs
    return told.choices[0].text, tuple(scores.tokens), tuple(scores.token_logprobs)


def embedding(url: str) -> tuple[float, ...]:
    """Over a connection of its own."""
    body = {"model": "vectors", "input": PROMPT}
    answer = httpx2.post(f"{url}/v1/embeddings", json=body, timeout=60).json()
    return tuple(answer["data"][0]["embedding"])


@pytest.fixture(scope="module")
def expected(folder) -> dict[str, tuple]:
    modules = [f"{name}={folder / name}" for name in NAMES[1:]]
    options = ("--enable-lora", "--lora-modules", *modules, "--max-lora-rank", "32")
    # What tensor ranks add in another order differs in the last digits, in this arithmetic.
    options += ("--threads", "1", "--arithmetic", "float32")
    with serving(*options, *ENCODER) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        found = {name: answer(client, name) for name in NAMES}
        found["vectors"] = embedding(server.url)
    assert len(set(found.values())) == len(NAMES) + 1
    return found


def operate(running: ClusterProcess, verb: str, **body: str) -> httpx2.Response:
    headers = {"Authorization": f"Bearer {OPERATOR_KEY}"}
    return httpx2.post(f"{running.url}/v1/{verb}_lora_adapter", json=body, headers=headers)


def everywhere(running: ClusterProcess, model: str) -> list[int]:
    """The status of a call for this model, over a connection each."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 1}
    return [
        httpx2.post(f"{running.url}/v1/completions", json=body, timeout=60).status_code
        for _ in range(CONNECTIONS)
    ]


def test_nobody_notices_where_they_are_computed(expected, folder, tmp_path):
    with (
        cluster(TEXT.format(folder=folder), tmp_path) as running,
        ThreadPoolExecutor(4) as clients,
    ):
        client = running.client
        assert "adapters: red, green; 8 at once, of rank 32 at most" in running.greeting
        models = ["tandem-mini", "red", "green", "vectors"]
        assert [model.id for model in client.models.list()] == models
        embedded = {embedding(running.url) for _ in range(CONNECTIONS)}
        assert embedded == {expected["vectors"]}
        for name in NAMES[:3]:
            # The second finds a prefix of its own in the cache, and no other's.
            assert [answer(client, name) for _ in range(2)] == [expected[name]] * 2
        assert set(everywhere(running, "blue")) == {404}
        loaded = operate(running, "load", lora_name="blue", lora_path=str(folder / "blue"))
        assert loaded.status_code == 200, loaded.text
        assert set(everywhere(running, "blue")) == {200}
        killed = Event()

        def ask_on(name: str) -> int:
            rounds = 0
            while not killed.is_set() or not rounds:
                assert answer(running.client, name) == expected[name], name
                rounds += 1
            return rounds

        asking = [clients.submit(ask_on, name) for name in NAMES]
        try:
            os.kill(running.pids["decode-1"], signal.SIGKILL)
            running.succeed("flip", "prefill-0", "both")
            running.succeed("drain", "decode-0")
            running.succeed("undrain", "decode-0")
        finally:
            killed.set()
        assert all(each.result() for each in asking)
        assert operate(running, "unload", lora_name="red").status_code == 200
        assert set(everywhere(running, "red")) == {404}
        assert answer(client, "blue") == expected["blue"]
        # Told once a second, by whoever computed something.
        figures = until(
            lambda: next(
                (
                    each["adapters"]["memory"]
                    for each in running.status()["workers"]
                    if each["adapters"] and each["adapters"]["memory"]["held"]
                ),
                None,
            )
        )
        assert figures["held"] <= figures["loads"]
        assert 0 < figures["held_bytes"] <= figures["limit_bytes"]
        assert "running (of 8 at once)" in running.succeed("status")
        assert re.search(r"tandem:lora_loads_total{.*} [1-9]", running.metrics())
        running.assert_nothing_held()


RANKS = """
model: tandem-mini
block_size: 16
serve:
  port: 0
  max-num-seqs: 16
  kv-cache-memory: 64MiB
  threads: 1
  arithmetic: float32
  enable_lora: true
  lora_modules: ["red={folder}/red", "green={folder}/green"]
pools:
  - {{name: prefill, role: prefill, device: cpu, tensor_parallel: 2}}
  - {{name: decode, role: decode, device: cpu, pipeline_parallel: 2}}
policies: {{dispatch: remote}}
"""


def test_every_rank_of_a_worker_has_its_share(expected, folder, tmp_path):
    with cluster(RANKS.format(folder=folder), tmp_path) as running:
        for name in NAMES[:3]:
            text, tokens, scores = answer(running.client, name)
            assert (text, tokens) == expected[name][:2]
            # Tensor ranks add in another order.
            assert scores == pytest.approx(expected[name][2], abs=1e-4)
        running.assert_nothing_held()


def test_what_cannot_be_served_is_said_before_anything_starts(folder, tmp_path):
    text = TEXT.format(folder=folder)
    for before, after, words in (
        ("/red", "/nothing", "nothing is no directory"),
        ("max_lora_rank: 32", "max_lora_rank: 4", "raise max-lora-rank"),
        ("enable_lora: true", "enable_lora: false", "needs enable_lora: true"),
    ):
        file = tmp_path / "cluster.yaml"
        file.write_text(text.replace(before, after))
        failed = run_here("up", str(file), "--state-dir", str(tmp_path / "state"))
        assert failed.returncode == 2
        assert words in failed.stderr
        assert "cluster.yaml, line" in failed.stderr
