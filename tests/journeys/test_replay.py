"""A real cluster records what its gateway receives, and `tandem replay` plays it: the same
decisions with the same policies, and a report with others."""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import openai

from tandem.messages.gateway import DrainAsked, PeerGone
from tandem.observe.journal.files import open_journal
from tandem.observe.journal.records import Submitted, Turn, Withdrawn
from tests.journeys.clusters import cluster
from tests.journeys.questions import complete
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
policies: {{dispatch: remote, transfer: push}}
queue: {{prefill_depth: 2}}
"""


# Twice eight calls, three of which want three answers, and two more.
REQUESTS = 2 * (8 + 2 * 3) + 2


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


def test_a_live_run_is_decided_again_as_it_was(tmp_path):
    folder = tmp_path / "journal"
    text = TEXT.format(key=KEY, folder=folder)
    with cluster(text, tmp_path) as running, ThreadPoolExecutor(8) as clients:
        client = running.client.with_options(api_key=KEY)
        pids = running.pids
        asked = [clients.submit(ask, client, number, 400) for number in range(8)]
        leave_early(client)
        stream_some(client)
        os.kill(pids["decode-1"], signal.SIGKILL)
        for each in asked:
            each.result()
        # The dead one is started again.
        until(lambda: len(running.status()["workers"]) == len(pids))
        running.succeed("drain", "decode-0")
        running.succeed("undrain", "decode-0")
        for each in [clients.submit(ask, client, number) for number in range(8)]:
            each.result()

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

    played = succeeded(run_tandem("replay", str(folder)))
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
