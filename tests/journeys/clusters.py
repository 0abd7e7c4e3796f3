"""Starts the real `tandem up` in a process of its own, from the text of a cluster file."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from tests.journeys.serving import run_tandem, started, succeeded

# What an audit tells besides: who it is, and what is only cached.
NOT_HELD = {"worker", "cached_blocks"}


@dataclass
class ClusterProcess:
    """A cluster that is ready, and all that it printed until then."""

    process: subprocess.Popen
    url: str
    greeting: str
    state: Path

    @property
    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=90)

    def operate(self, verb: str, *arguments: str) -> subprocess.CompletedProcess:
        """`tandem VERB …` against this cluster."""
        return run_tandem(verb, *arguments, "--state-dir", str(self.state))

    def succeed(self, verb: str, *arguments: str) -> str:
        """`tandem VERB …`, which succeeds. Gives what it prints."""
        return succeeded(self.operate(verb, *arguments))

    def status(self, *arguments: str) -> Any:
        return json.loads(self.succeed("status", "--json", *arguments))

    def metrics(self) -> str:
        return urllib.request.urlopen(f"{self.url}/metrics", timeout=30).read().decode()

    @property
    def pids(self) -> dict[str, int]:
        """Of the workers."""
        return {worker["worker"]: worker["pid"] for worker in self.status()["workers"]}

    def assert_nothing_held(self) -> Any:
        """No process holds anything for a request. Gives the status with the audit."""
        status = self.status("--audit")
        assert not status["audit"]["problem"]
        for audited in status["audit"]["workers"]:
            held = {key: audited[key] for key in audited if key not in NOT_HELD}
            assert not any(held.values()), audited
        return status


TANDEM_UP = (sys.executable, "-u", "-m", "tandem", "up")


@contextmanager
def cluster(text: str, folder: Path, up: Sequence[str] = TANDEM_UP) -> Iterator[ClusterProcess]:
    """`tandem up` on this cluster file until the block ends; then nothing of it may be left."""
    file = folder / "cluster.yaml"
    file.write_text(text)
    state = folder / "state"
    with started([*up, str(file), "--state-dir", str(state)]) as server:
        process = server.process
        yield ClusterProcess(process, server.url, server.greeting, state)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stdout.read()
