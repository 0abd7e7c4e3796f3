"""Whatever one client sends, a gateway of the bundled model stays under 1 GiB."""

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.attacks.front_door_process import CONTEXT_TOKENS
from tests.attacks.heavy_bodies import CHAT, COMPLETE, heavy_bodies
from tests.attacks.long_answers import long_answers

CEILING_BYTES = 1 << 30
AT_ONCE = 12
# What becomes the most objects or tokens a byte of body.
KINDS = (
    *("tiny messages", "many calls", "tool of many keys"),
    *("template arguments", "tokenize token_strs"),
)
ANSWERS = ("text and ids, n=64", "no alternatives, n=64", "prompt repeated", "names of tokens")


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, int]]:
    command = [sys.executable, "-m", "tests.attacks.front_door_process"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        yield port, process.pid
        process.kill()


def peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def post(port: int, path: str, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    except OSError:
        # Refused while it was being sent.
        return 413
    finally:
        connection.close()


def test_answers_stay_under_the_ceiling(server):
    port, pid = server
    heavy = long_answers(CONTEXT_TOKENS)
    attacks = [heavy[kind] for kind in ANSWERS] + [heavy["as much as is kept"]] * 4
    with ThreadPoolExecutor(len(attacks)) as clients:
        statuses = list(clients.map(lambda attack: post(port, *attack), attacks))
    # Each is allowed; together they are too much for some of those that keep most.
    assert statuses[: len(ANSWERS)] == [200] * len(ANSWERS)
    assert set(statuses[len(ANSWERS) :]) == {200, 503}
    assert peak_bytes(pid) < CEILING_BYTES, peak_bytes(pid)


def test_memory_stays_under_the_ceiling(server):
    port, pid = server
    huge = [json.dumps({"prompt": "a" * size}).encode() for size in (8 << 20, 31 << 20)]
    attacks = [(COMPLETE, body) for body in huge]
    heavy = heavy_bodies(CONTEXT_TOKENS)
    attacks += [heavy[kind] for kind in KINDS for _ in range(AT_ONCE // 6)]
    with ThreadPoolExecutor(AT_ONCE) as clients:
        statuses = list(clients.map(lambda attack: post(port, *attack), attacks))
    assert set(statuses) <= {200, 400, 413, 429, 503}
    assert statuses[:2] == [413, 413]
    hello = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
    assert post(port, CHAT, hello) == 200
    assert peak_bytes(pid) < CEILING_BYTES, peak_bytes(pid)
