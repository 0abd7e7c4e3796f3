"""Starts the real `tandem up` in a process of its own, from the text of a cluster file."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from tests.journeys.serving import run_tandem, started


@dataclass
class ClusterProcess:
    """A cluster that said it is ready, and all that it printed until then."""

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

    def status(self, *arguments: str) -> Any:
        told = self.operate("status", "--json", *arguments)
        assert told.returncode == 0, told.stdout + told.stderr
        return json.loads(told.stdout)


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
