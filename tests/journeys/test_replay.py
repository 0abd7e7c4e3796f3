"""A real cluster records what its gateway receives, one of its workers is killed: `tandem explain`
shows the story of a request that went on elsewhere, and `tandem replay` plays the journal: the same
decisions with the same policies, and a report with others. Its KV crosses the wire narrowed."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

import openai

from tandem.messages.gateway import DrainAsked, PeerGone
from tandem.observe.journal.files import open_journal
from tandem.observe.journal.records import Submitted, Turn, Withdrawn
from tests.journeys.clusters import ClusterProcess, cluster
from tests.journeys.questions import QUESTIONS, complete
from tests.journeys.serving import run_tandem, succeeded
from tests.waiting import until

KEY = "sk-xylophone-0123456789abcdef"
WORD = "xylophone"
TEXT = """
model: tandem-mini
block_size: 16
serve: {{port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1, api-key: [{key}]}}
journal: {{directory: "{folder}", file_size: 64KiB, keep: 100}}
pools:
  - {{name: prefill, role: prefill, device: cpu, count: 1}}
  - {{name: decode, role: decode, device: cpu, count: 2}}
transport: {{connectors: [tcp], wire_dtype: int8}}
policies: {{dispatch: remote, transfer: push}}
queue: {{prefill_depth: 2}}
"""


# Twice eight calls, three of which want three answers, and five more.
REQUESTS = 2 * (8 + 2 * 3) + 5
# Some seconds of work: it runs when its worker is killed.
TOKENS = 2500


def ask(client: openai.OpenAI, number: int, tokens: int = 60) -> None:
    """Some share a prompt, some want three answers; whose worker dies is served all the same."""
    about = f"A story about the {WORD} number {number % 4} and how it came to be so very loud. " * 3
    complete(client, about, tokens, n=3 if number % 3 == 0 else 1)


def leave_early(client: openai.OpenAI) -> None:
    stream = complete(client, "Never mind", 900, stream=True)
    with suppress(StopIteration):
        next(iter(stream))
    stream.close()


def stream_some(client: openai.OpenAI) -> None:
    """By then the others decode, too."""
    assert list(complete(client, "And then?", 30, stream=True))


def check_narrowed(running: ClusterProcess, client: openai.OpenAI) -> None:
    """Of the first request on this cluster."""
    answer = QUESTIONS["greedy"](client)
    workers = running.status()["workers"]
    assert answer.output_tokens > 0
    assert not any(worker["failed_transfers"] for worker in workers)
    # 4 layers, keys and values, 4 heads of 32 values, 4 bytes each.
    stored_bytes = answer.prompt_tokens * 4 * 2 * 4 * 32 * 4
    assert 0 < sum(worker["moved_bytes"] for worker in workers) < 0.5 * stored_bytes


def explained(running: ClusterProcess, request: str) -> dict:
    (history,) = json.loads(running.succeed("explain", request, "--json"))
    return history


def routes_of(history: dict) -> list[str]:
    return [each["text"] for each in history["events"] if each["kind"] == "routing"]


def kill_who_streams(running: ClusterProcess, client: openai.OpenAI) -> None:
    """The story of a request whose worker is killed tells why it went on elsewhere."""
    about = "Tell me about bread, and leave nothing out that a baker may want to know. " * 2
    stream = complete(client, about, TOKENS, seed=3, stream=True)
    # By then it has drawn blocks of its own after those of its prompt.
    first, *_ = islice(stream, 40)
    history = explained(running, first.id)
    assert history["ending"] == ""
    busy = routes_of(history)[0].rpartition(" ")[2]
    os.kill(running.pids[busy], signal.SIGKILL)
    for _ in stream:
        pass
    history = explained(running, first.id)
    routes = routes_of(history)
    assert len(routes) == 2
    assert f"decode on {busy}" in routes[0]
    assert f"decode on {busy}" not in routes[1]
    assert (history["ending"], history["emitted_tokens"]) == ("finished", TOKENS)
    shown = running.succeed("explain", first.id)
    assert "measured" in shown
    for text in ("finished: length", "prefill prefill-0: score", "first token", *routes):
        assert text in shown


def stop_at_a_string(running: ClusterProcess, client: openai.OpenAI) -> None:
    """It ends the work early, which is no leaving of a client."""
    raw = complete(client.with_raw_response, "Tell me about bread.", TOKENS, stop=[" "])
    history = explained(running, raw.headers["x-request-id"])
    assert (history["ending"], history["reason"]) == ("finished", "stop")
    assert history["request_id"].endswith(f"{raw.parse().id}-0")
    refused = running.operate("explain", "nobody")
    assert refused.returncode == 2
    assert "nobody: no gateway knows it" in refused.stderr


def test_a_live_run_is_explained_and_decided_again_as_it_was(tmp_path):
    folder = tmp_path / "journal"
    text = TEXT.format(key=KEY, folder=folder)
    with cluster(text, tmp_path) as running, ThreadPoolExecutor(8) as clients:
        client = running.client.with_options(api_key=KEY)
        check_narrowed(running, client)
        workers = len(running.pids)
        asked = [clients.submit(ask, client, number, 400) for number in range(8)]
        leave_early(client)
        stream_some(client)
        kill_who_streams(running, client)
        for each in asked:
            each.result()
        # The dead one is started again.
        until(lambda: len(running.status()["workers"]) == workers)
        running.succeed("drain", "decode-0")
        running.succeed("undrain", "decode-0")
        for each in [clients.submit(ask, client, number) for number in range(8)]:
            each.result()
        stop_at_a_string(running, client)

    run = open_journal(folder)
    turns = [each for each in run.records() if isinstance(each, Turn)]
    events = [event for turn in turns for event in turn.events]
    assert len(turns) == len(list(run.records()))
    assert sum(isinstance(event, Submitted) for event in events) == REQUESTS
    for kind in (Withdrawn, PeerGone, DrainAsked):
        assert any(isinstance(event, kind) for event in events), kind
    # Some were taken up again, with the hashes of what they had drawn by then.
    taken_up = [each for turn in turns for each in turn.decisions if "~1" in str(each)]
    assert taken_up
    assert any(hashed.known for turn in turns for hashed in turn.hashed)

    played = succeeded(run_tandem("replay", str(folder), own_process=True))
    assert f"{REQUESTS} requests (0 rejected)" in played
    assert "all equal" in played

    written = b"".join(path.read_bytes() for path in folder.iterdir())
    shown = repr((run.head, list(run.records())))
    for secret in (KEY, WORD):
        assert secret.encode() not in written
        assert secret not in shown.replace(str(tmp_path), "")

    report = tmp_path / "report.json"
    policies = ("--routing", "round-robin", "--admission", "none,threshold")
    output = ("--json", str(report), "--plot", str(tmp_path / "chart.html"))
    succeeded(run_tandem("replay", str(folder), *policies, *output))
    runs = json.loads(report.read_text())["runs"]
    labels = [each["label"] for each in runs]
    assert labels == ["recorded", "cost none", "round-robin none", "round-robin threshold"]
    recorded, *simulated = (each["summary"] for each in runs)
    assert recorded["requests"] == simulated[0]["requests"] == REQUESTS
    assert recorded["latencies"]["ttft"]["count"] >= REQUESTS - 1
    assert simulated[0]["endings"]["finished"] == REQUESTS
    assert (tmp_path / "chart.html").stat().st_size > 1000
    for verb, *options in (
        ("hits", str(folder)),
        ("simulate", "mooncake-16", "--trace", str(folder)),
    ):
        succeeded(run_tandem(verb, *options))
