"""The README as a newcomer follows it: its Python runs as it stands, its calls are answered, and
its simulation runs on the trace that comes with it."""

import re
import subprocess
import sys

import pytest

from tests.journeys.serving import run_tandem, serving, succeeded
from tests.pages.commands import ROOT, commands_of

README = ROOT / "README.md"
PYTHON = re.findall(r"(?ms)^```python\n(.*?)^```", README.read_text())
ITS_URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def server():
    with serving("--max-num-seqs", "4") as process:
        yield process


def test_its_python_runs_as_it_stands(server, tmp_path):
    """But for the port, which another server may have here."""
    assert PYTHON
    for code in PYTHON:
        assert ITS_URL in code
        done = subprocess.run(
            [sys.executable, "-c", code.replace(ITS_URL, server.url)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.split()) >= 2


def test_its_calls_are_answered(server):
    calls = [each for each in commands_of(README) if each.program == "curl" and "-sN" in each.words]
    assert calls
    for call in calls:
        words = [word.replace(ITS_URL, server.url) for word in call.words]
        words = [word.replace('"max_tokens": 3000', '"max_tokens": 3') for word in words]
        told = succeeded(subprocess.run(words, capture_output=True, text=True, timeout=60))
        assert told.endswith("data: [DONE]\n\n")


def test_its_commands_for_one_server_work(server):
    ran = []
    for command in commands_of(README):
        if command.program == "tandem" and command.words[1] in ("complete", "chat"):
            words = [*command.words[1:], "--url", server.url]
            told = succeeded(run_tandem(*words, stdin="Hello!\n", own_process=True))
            ran.append(command.words[1])
            assert told.strip()
    assert sorted(ran) == ["chat", "complete"]


def test_its_simulation_of_the_bundled_trace(tmp_path):
    (command,) = [each for each in commands_of(README) if "chats-and-agents" in each.words]
    told = succeeded(run_tandem(*command.words[1:], "--first", "30", "--processes", "1"))
    assert "chats-and-agents" in told
    assert "prefix-first" in told
