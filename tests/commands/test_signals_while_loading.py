"""A process that is told to end while it loads ends at once, with the status 0 and no traceback."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands.cli import tandem
from tests.waiting import until

BOTH = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
LIMIT_S = 60
CLUSTER = """\
model: tandem-mini
listen: 127.0.0.1
serve: {port: 0, kv-cache-memory: 16MiB, threads: 1}
pools: [{name: worker, device: cpu}]
"""


@contextmanager
def loading(*words):
    """`tandem WORDS`, in a process that has just been started."""
    command = [sys.executable, "-u", "-m", "tandem", *map(str, words)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told_to_end(process, number):
    """All that it has printed until then and at its end."""
    process.send_signal(number)
    printed, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, printed
    assert "Traceback" not in printed
    return printed


def child_of(process):
    """What it has started, once that is another program."""
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if any(word.endswith("-process") for word in words):
            return int(pid)
    return 0


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The file and the keys of a cluster, whose processes keep their files here."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert tandem("keys", tmp_path / "keys").exit_code == 0
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return tmp_path


@BOTH
def test_a_server_ends_in_the_middle_of_its_imports(number):
    with loading("serve", "--port", "0") as server:
        maps = Path(f"/proc/{server.pid}/maps")
        until(lambda: "libtorch" in maps.read_text(), LIMIT_S)
        assert "Ready" not in told_to_end(server, number)


def joining(cluster, *words):
    keys = ("--file", cluster / "cluster.yaml", "--keys", cluster / "keys/worker.json")
    return loading("join", *keys, *words)


def test_a_worker_that_joins_ends_before_it_is_ready(cluster):
    with joining(cluster, "--gateway", "127.0.0.1:1", "--worker", "w") as worker:
        child = until(lambda: child_of(worker), LIMIT_S)
        assert "w has ended before it was ready" in told_to_end(worker, signal.SIGTERM)
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)


def test_one_that_looks_for_its_gateway_ends_as_well(cluster):
    with joining(cluster, "--gateway", "gateway.invalid:9000") as worker:
        # The folder of its set-up: from then on it asks for the name, which nobody knows.
        until(lambda: list(cluster.glob("tandem-*")), LIMIT_S)
        told_to_end(worker, signal.SIGINT)


@BOTH
def test_a_gateway_ends_before_it_listens(number, cluster):
    keys, state = cluster / "keys/gateway.json", cluster / "state"
    own = ("--keys", keys, "--name", "g", "--state-dir", state)
    with loading("gateway", cluster / "cluster.yaml", *own) as gateway:
        until(lambda: child_of(gateway), LIMIT_S)
        assert "g has ended before it was ready" in told_to_end(gateway, number)
    assert not state.exists()
