"""Structured output, speculation, an adapter, streaming and a death at once: the real client parses
a pydantic model out of an answer whose worker was killed halfway, and it is what one plain process
says. The call is one trace over all of its workers, and every process logs it as JSON."""

import json
import os
import re
import signal
import time
from typing import Literal

import openai
import pytest
from pydantic import BaseModel, Field

from tandem.config.environment import BUNDLED_MODEL
from tandem.models.configuration import read_model_spec
from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.serving import serving
from tests.live.otlp_receiver import Receiver, receiving
from tests.models.adapter_files import write_adapter
from tests.waiting import until

TEXT = """
model: tandem-mini
block_size: 16
serve:
  port: 0
  max-num-seqs: 8
  kv-cache-memory: 64MiB
  threads: 1
  enable_lora: true
  lora_modules: ["red={folder}/red"]
  speculation: {proposer}
  speculation-branches: {branches}
  speculation-adaptive: false
  otlp-traces-endpoint: "{receiver}"
  log-format: json
pools:
  - {{name: prefill, role: prefill, device: cpu}}
  - {{name: decode, role: decode, device: cpu, count: 2}}
policies: {{dispatch: remote, transfer: push}}
"""
PIECES = 48
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}


class Piece(BaseModel):
    colour: Literal["copper", "silver", "gold"]
    count: int = Field(ge=10, le=99)


class Hoard(BaseModel):
    keeper: str = Field(max_length=12)
    pieces: list[Piece] = Field(min_length=PIECES, max_length=PIECES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    write_adapter(folder / "red", read_model_spec(BUNDLED_MODEL), rank=8, seed=3, strength=0.15)
    return folder


def hoard(client: openai.OpenAI, halfway=lambda: None) -> tuple[Hoard, str]:
    """What the client makes of the answer, and its text; `halfway` is called in the middle."""
    told = ""
    with client.chat.completions.stream(
        model="red",
        messages=[{"role": "user", "content": "What does the dragon hoard?"}],
        temperature=0.9,
        seed=11,
        max_tokens=3000,
        frequency_penalty=0.2,
        response_format=Hoard,
        extra_headers=PARENT,
    ) as stream:
        for event in stream:
            if event.type == "content.delta":
                told += event.delta
                if told.count("{") > PIECES // 8:
                    halfway()
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "stop"
    assert choice.message.content == told
    return choice.message.parsed, told


def kill_who_answers(running: ClusterProcess, pids: dict[str, int]) -> str:
    """The decode worker that has the one running request."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = re.findall(
            r'num_requests_running\{[^}]*worker="(decode-\d)"[^}]*\} 1\.0', running.metrics()
        )
        if found:
            os.kill(pids[found[0]], signal.SIGKILL)
            return found[0]
    raise AssertionError("nobody decodes")


@pytest.fixture(scope="module")
def expected(folder) -> tuple[Hoard, str]:
    with serving("--threads", "1", "--enable-lora", "--lora-modules", f"red={folder}/red") as plain:
        return hoard(openai.OpenAI(base_url=f"{plain.url}/v1", api_key="none", max_retries=0))


@pytest.mark.parametrize(("proposer", "branches"), [("draft", 1), ("eagle", 3)])
def test_a_parsed_answer_outlives_its_worker(proposer, branches, expected, folder, tmp_path):
    options = {"folder": folder, "proposer": proposer, "branches": branches}
    with (
        receiving() as receiver,
        cluster(TEXT.format(receiver=receiver.url, **options), tmp_path) as running,
    ):
        pids, killed = running.pids, []

        def halfway() -> None:
            if not killed:
                killed.append(kill_who_answers(running, pids))

        found = hoard(running.client, halfway)
        assert killed
        assert found == expected
        assert len(found[0].pieces) == PIECES
        status = running.status()
        (gateway,) = status["gateways"]
        assert gateway["takeovers"] == 1
        drafts = [worker["drafts"] for worker in status["workers"] if worker["drafts"]]
        assert any(each["accepted_tokens"] for each in drafts)
        (lost,) = killed
        every_process_logs_objects(running)
        until(lambda: receiver.named("POST /v1/chat/completions"))
    assert_one_trace(receiver, lost)


def every_process_logs_objects(running: ClusterProcess) -> None:
    logged = {}
    for file in running.state.glob("*.log"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        logged[file.stem] = {line["process"] for line in lines}
    assert logged == {name: {name} for name in ("gateway-0", "prefill-0", "decode-0", "decode-1")}


def assert_one_trace(receiver: Receiver, lost: str) -> None:
    """Of the call whose worker was `lost`."""
    (call,) = receiver.named("POST /v1/chat/completions")
    assert call.trace_id == TRACE
    (whole,) = receiver.below(call)
    (failover,) = receiver.named("failover")
    parts = receiver.below(whole)
    taken = ({"decode-0", "decode-1"} - {lost}).pop()

    def workers(name: str) -> list[object]:
        return [part.attributes["tandem.worker"] for part in parts if part.name == name]

    assert workers("prefill") == ["prefill-0", "prefill-0"]
    assert workers("decode") == [lost, taken]
    targets = [part.attributes["tandem.target"] for part in receiver.named("kv_transfer")]
    assert targets == [lost, taken]
    assert failover.attributes["tandem.lost_worker"] == lost
    again = failover.attributes
    assert again["tandem.recomputed_tokens"] > 0
    assert 0 < again["tandem.output_tokens"] < whole.attributes["gen_ai.usage.output_tokens"]
    receiver.assert_nested()
