"""Whatever the shape of the cluster, the answers are those of one process, and nothing is left."""

import openai
import pytest

from tests.journeys.clusters import cluster
from tests.journeys.questions import QUESTIONS, ask_everything
from tests.journeys.serving import serving

# `exact`: each number comes out of the same additions as in one process. Where a matrix is cut over
# ranks the sums are added in another order, and log-probabilities differ in their last digits; in
# float32, for in bfloat16 the next layer may round what differs there to another neighbour.
HEADER = """
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1, %s}
"""
# The process that they are compared with does not speculate.
ALWAYS = "speculation: %s, speculation-adaptive: false"
SHAPES = {
    "1 prefill + 2 decode, shared memory, pushed": (
        """
pools:
  - {name: prefill, role: prefill, device: cpu}
  - {name: decode, role: decode, device: cpu, count: 2}
transport: {connectors: [shm]}
policies: {dispatch: remote, transfer: push}
""",
        True,
        ALWAYS % "draft" + ", speculation-branches: 3",
    ),
    "tcp, pulled, first token drawn anew": (
        """
pools:
  - {name: prefill, role: prefill, device: cpu}
  - {name: decode, role: decode, device: cpu}
transport: {connectors: [tcp]}
policies: {dispatch: remote, transfer: pull, first_token: recomputed}
""",
        True,
        ALWAYS % "ngram",
    ),
    "nixl, blocks of 32 into blocks of 16": (
        """
pools:
  - {name: prefill, role: prefill, device: cpu, block_size: 32}
  - {name: decode, role: decode, device: cpu}
transport: {connectors: [nixl]}
policies: {dispatch: remote, transfer: push}
""",
        True,
        ALWAYS % "medusa" + ", speculation-branches: 2",
    ),
    "both phases on each of two, and a global queue": (
        """
pools:
  - {name: worker, role: both, device: cpu, count: 2}
policies: {dispatch: queue}
""",
        True,
        "speculation: none",
    ),
    "2 stages of 2 ranks to 1, tcp": (
        """
pools:
  - {name: prefill, role: prefill, device: cpu, tensor_parallel: 2, pipeline_parallel: 2}
  - {name: decode, role: decode, device: cpu}
transport: {connectors: [tcp]}
policies: {dispatch: remote, transfer: pull}
""",
        False,
        "speculation: draft",
    ),
    "one worker of 2 stages of 2 ranks that speculates": (
        """
pools:
  - {name: worker, role: both, device: cpu, tensor_parallel: 2, pipeline_parallel: 2}
""",
        False,
        ALWAYS % "draft" + ", speculation-branches: 2",
    ),
}


@pytest.fixture(scope="module")
def expected(one_process):
    return ask_everything(one_process)


@pytest.fixture(scope="module")
def expected_in_float32():
    with serving("--max-num-seqs", "16", "--threads", "1", "--arithmetic", "float32") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        return ask_everything(client)


@pytest.mark.parametrize("name", SHAPES)
def test_the_answers_are_those_of_one_process(name, tmp_path, request):
    text, exact, speculation = SHAPES[name]
    expected = request.getfixturevalue("expected" if exact else "expected_in_float32")
    options = speculation if exact else f"{speculation}, arithmetic: float32"
    with cluster(HEADER % options + text, tmp_path) as running:
        for _ in range(2):
            answers = ask_everything(running.client)
            for question in QUESTIONS:
                found, wanted = answers[question], expected[question]
                assert (found.texts, found.reasons) == (wanted.texts, wanted.reasons), question
                assert found.output_tokens == wanted.output_tokens, question
                tolerance = 0 if exact else 1e-4
                assert found.logprobs == pytest.approx(wanted.logprobs, abs=tolerance), question
        workers = running.assert_nothing_held()["workers"]
        if any(worker["role"] == "prefill" for worker in workers):
            assert sum(worker["moved_bytes"] for worker in workers) > 0
        assert all(worker["failed_transfers"] == 0 for worker in workers)
        if "false" in speculation:
            assert "speculation: " in running.greeting
            assert sum(worker["drafts"]["accepted_tokens"] for worker in workers) > 0
            assert "tandem:spec_decode_num_accepted_tokens_per_pos_total" in running.metrics()
            assert "draft tokens checked" in running.succeed("status")
