"""Kills a server, or a cluster with its workers, with SIGKILL in the middle of a batch, several
times, and looks at its answers:

python -m tests.chaos.batches --requests 1000 --kills 5 [--cluster]

Every answer must be there once, and be what an undisturbed batch says."""

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import openai

from tests.journeys.clusters import TANDEM_UP
from tests.journeys.serving import ServingProcess, started
from tests.waiting import until

PATIENCE_S = 300.0
SERVER = (sys.executable, "-u", "-m", "tandem", "serve", "--port", "0", "--threads", "1")
CLUSTER = """
model: tandem-mini
serve: {{port: 0, max-num-seqs: 8, kv-cache-memory: 64MiB, threads: 1,
  batch-directory: "{directory}", max-batch-requests: {at_once}}}
pools:
  - {{name: both, device: cpu, count: 2}}
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=1000)
    options.add_argument("--kills", type=int, default=5)
    options.add_argument("--cluster", action="store_true")
    chosen = options.parse_args()
    with TemporaryDirectory() as directory:
        kills = [chosen.requests * (n + 1) // (chosen.kills + 1) for n in range(chosen.kills)]
        command = (cluster if chosen.cluster else server)(Path(directory), 16)
        disturbed, undisturbed = killed_batch(command, chosen.requests, kills)
    print(f"{len(disturbed)} answers after kills at {kills}, {len(undisturbed)} undisturbed")
    return 0 if disturbed == undisturbed else 1


def server(directory: Path, at_once: int) -> Sequence[str]:
    """The command of one server with its batches in this folder."""
    return *SERVER, "--batch-directory", str(directory), "--max-batch-requests", str(at_once)


def cluster(directory: Path, at_once: int) -> Sequence[str]:
    """The same of a gateway and two workers."""
    file, state = directory / "cluster.yaml", directory / "state"
    file.write_text(CLUSTER.format(directory=directory / "batches", at_once=at_once))
    return *TANDEM_UP, str(file), "--state-dir", str(state)


def killed_batch(
    command: Sequence[str], requests: int, kills: Sequence[int]
) -> tuple[dict[str, str], dict[str, str]]:
    """What a batch says whose server is killed whenever so many answers are there, and what an
    undisturbed one says."""
    batch_id = ""
    for answers in kills:
        with killable(command) as running, client_of(running) as client:
            batch_id = batch_id or begin(client, requests)
            condition = partial(enough, client, batch_id, answers)
            counts = until(condition, PATIENCE_S, every_s=0.002)
            assert counts.completed < requests, "it had ended already"
    with killable(command) as running, client_of(running) as client:
        disturbed = answers_of(client, batch_id, requests)
        return disturbed, answers_of(client, begin(client, requests), requests)


@contextmanager
def killable(command: Sequence[str]) -> Iterator[ServingProcess]:
    """A process that serves, which is killed in the end with all that it has started."""
    with started(command) as running:
        try:
            yield running
        finally:
            for pid in descendants(running.process.pid):
                # Those of one that is killed end with it.
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            running.process.wait(30)


def descendants(pid: int) -> list[int]:
    """Of a process, and itself, the parents first."""
    listed = ["ps", "-eo", "pid=,ppid="]
    table = subprocess.run(listed, capture_output=True, text=True, check=True).stdout
    children: dict[int, list[int]] = {}
    for row in table.splitlines():
        child, parent = map(int, row.split())
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def client_of(running: ServingProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def begin(client: openai.OpenAI, requests: int) -> str:
    """A batch of short stories, which their seeds decide."""
    lines = [
        json.dumps(
            {
                "custom_id": f"story-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {
                    "prompt": f"Story {number}: once upon",
                    "max_tokens": 1 + number % 4,
                    "temperature": 1.0,
                    "seed": number,
                },
            }
        )
        for number in range(requests)
    ]
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    return batch.id


def enough(client: openai.OpenAI, batch_id: str, answers: int):
    counts = client.batches.retrieve(batch_id).request_counts
    return counts if counts.completed >= answers else None


def answers_of(client: openai.OpenAI, batch_id: str, requests: int) -> dict[str, str]:
    """The texts of a batch once it has ended, by their requests."""
    batch = until(lambda: completed(client, batch_id), PATIENCE_S)
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (requests, requests, 0)
    assert batch.error_file_id is None
    content = client.files.content(batch.output_file_id).text
    found = [json.loads(line) for line in content.splitlines()]
    texts = {each["custom_id"]: each["response"]["body"]["choices"][0]["text"] for each in found}
    assert len(texts) == len(found) == requests
    return texts


def completed(client: openai.OpenAI, batch_id: str):
    batch = client.batches.retrieve(batch_id)
    return batch if batch.status == "completed" else None


if __name__ == "__main__":
    sys.exit(main())
