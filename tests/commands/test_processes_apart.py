"""A cluster whose processes are started one by one, as on machines of their own: keys, a gateway,
workers that join it, with nothing in common but the cluster file and the keys."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from itertools import islice

import openai
import pytest

from tandem.commands.which_cluster import (
    gateway_endpoints,
    host_names,
    listen_endpoint,
    process_name,
)
from tandem.facts.errors import InvalidConfiguration
from tandem.live.processes.key_files import read_gateway_keys, read_worker_keys
from tests.commands.cli import tandem
from tests.journeys.serving import run_tandem, succeeded
from tests.waiting import until

CLUSTER = """\
name: apart
model: tandem-mini
block_size: 16
listen: 127.0.0.1
serve: {port: 0, max-num-seqs: 8, kv-cache-memory: 16MiB, threads: 1}
health: {heartbeat_timeout: 2s, report_interval: 50ms}
transport: {connectors: [tcp]}
tiers: {remote: {capacity: 32MiB, nodes: 1}}
pools:
  - {name: prefill, role: prefill, device: cpu, count: 40}
  - {name: decode, role: decode, device: cpu}
"""
LIMIT_S = 90
HOST, SECOND = islice(host_names(), 2)


@contextmanager
def running(log, *arguments):
    command = [sys.executable, "-m", "tandem", *map(str, arguments)]
    with (
        log.open("ab") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


def answer_of(port, path):
    """The code of a GET, 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as response:
            return response.status
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0


class Apart:
    """The processes of one cluster, and what is to be known of them."""

    def __init__(self, folder):
        self.folder = folder
        self.file, self.state = folder / "cluster.yaml", folder / "state"
        self.port, self.http_port = free_port(), free_port()
        self.health_port, self.pool_port = free_port(), free_port()
        self.file.write_text(CLUSTER)

    def gateway(self):
        keys = self.folder / "keys/gateway.json"
        return running(
            self.folder / "gateway.log",
            *("gateway", self.file, "--keys", keys, "--name", "gateway-a"),
            *("--listen", f"127.0.0.1:{self.port}", "--set", f"serve.port={self.http_port}"),
            *("--state-dir", self.state),
        )

    def worker(self, *arguments):
        keys = self.folder / "keys/worker.json"
        own = ("--file", self.file, "--keys", keys, "--gateway", f"tcp://localhost:{self.port}")
        return running(self.folder / "members.log", "join", *own, *arguments)

    def workers(self):
        told = run_tandem("status", "--json", "--state-dir", str(self.state))
        workers = json.loads(told.stdout)["workers"] if told.returncode == 0 else []
        return {worker["worker"]: worker for worker in workers}

    @property
    def names(self):
        """Of all that have joined."""
        told = succeeded(run_tandem("status", "--json", "--state-dir", str(self.state)))
        status = json.loads(told)
        pool = [node["node"] for node in status["pool_nodes"]]
        return sorted([worker["worker"] for worker in status["workers"]] + pool)

    @property
    def logs(self):
        return "".join(file.read_text() for file in sorted(self.folder.glob("*.log")))

    def ask(self):
        client = openai.OpenAI(base_url=f"http://127.0.0.1:{self.http_port}/v1", api_key="none")
        told = client.completions.create(
            model="tandem-mini", prompt="The sea is " * 9, max_tokens=8, temperature=0
        )
        return told.choices[0].text


@pytest.fixture(scope="module")
def apart(tmp_path_factory, request):
    cluster = Apart(tmp_path_factory.mktemp("apart"))
    assert tandem("keys", cluster.folder / "keys").exit_code == 0
    with ExitStack() as undo:
        # Workers may come first.
        health = ("--health-port", str(cluster.health_port))
        cluster.prefill = undo.enter_context(cluster.worker("--pool", "prefill", *health))
        cluster.decode = undo.enter_context(cluster.worker("--pool", "decode", "--worker", "d-1"))
        own = ("--shared-pool", "--health-port", str(cluster.pool_port))
        # Of two of this host, which no gateway knows yet, each has a name of its own.
        cluster.pool = undo.enter_context(cluster.worker(*own))
        cluster.first_gateway = undo.enter_context(cluster.gateway())
        until(lambda: answer_of(cluster.http_port, "/ready") == 200, LIMIT_S)
        for port in (cluster.health_port, cluster.pool_port):
            until(lambda port=port: answer_of(port, "/ready") == 200, LIMIT_S)
        yield cluster
    if request.session.testsfailed:
        print(cluster.logs)


def test_keys_are_their_owners_and_new_ones_replace_none(tmp_path):
    folder = tmp_path / "keys"
    assert tandem("keys", folder).exit_code == 0
    for file in folder.iterdir():
        assert not file.stat().st_mode & 0o077
    gateway, worker = folder / "gateway.json", folder / "worker.json"
    assert not read_gateway_keys(gateway).worker_secret
    assert not read_worker_keys(worker).gateway_secret
    with pytest.raises(InvalidConfiguration, match="is for workers; a gateway needs"):
        read_gateway_keys(worker)
    with pytest.raises(InvalidConfiguration, match="is for gateways; a worker needs"):
        read_worker_keys(gateway)
    again = tandem("keys", folder)
    assert (again.exit_code, "is there already" in again.stderr) == (2, True)
    (folder / "other").write_text("{}")
    for name in ("other", "nothing"):
        with pytest.raises(InvalidConfiguration, match=f"--keys .*{name}"):
            read_worker_keys(folder / name)


def test_keys_that_are_spoilt_or_of_another_set_are_no_keys(tmp_path):
    assert tandem("keys", tmp_path / "a").exit_code == tandem("keys", tmp_path / "b").exit_code
    whole, other = (
        json.loads((tmp_path / folder / "worker.json").read_text()) for folder in ("a", "b")
    )
    corrupt = tmp_path / "spoilt.json"
    for change in (
        {"gateway_public": "x"},
        {"worker_secret": whole["worker_secret"][:-1]},
        {"worker_public": '"' * 40},
        {"worker_secret": "é" * 40},
        {"worker_secret": other["worker_secret"]},
    ):
        corrupt.write_text(json.dumps(whole | change))
        with pytest.raises(InvalidConfiguration, match="spoilt, or not made together"):
            read_worker_keys(corrupt)


def test_who_is_not_taken_in_gives_up(tmp_path):
    assert tandem("keys", tmp_path / "keys").exit_code == 0
    (tmp_path / "c.yaml").write_text(CLUSTER)
    told = run_tandem(
        *("join", "--file", str(tmp_path / "c.yaml"), "--pool", "decode", "--worker", "w"),
        *("--keys", str(tmp_path / "keys/worker.json"), "--gateway", f"127.0.0.1:{free_port()}"),
        *("--start-timeout-s", "1"),
    )
    assert told.returncode == 1
    assert "tandem: w has not joined after 1 s" in told.stderr


def test_addresses_and_names_are_read_as_people_write_them():
    assert gateway_endpoints(["tcp://a:9000", "b:9001", "a:9000"]) == (
        "tcp://a:9000",
        "tcp://b:9001",
    )
    for wrong in ("a", "http://a:9000", "a:x", "a:70000", ":9000"):
        with pytest.raises(InvalidConfiguration, match="expected the address of a gateway"):
            gateway_endpoints([wrong])
    assert listen_endpoint("0.0.0.0:9000") == "tcp://0.0.0.0:9000"
    assert listen_endpoint("10.0.0.1") == "tcp://10.0.0.1:0"
    assert process_name("decode-7f9c") == "decode-7f9c"
    assert process_name(None)
    with pytest.raises(InvalidConfiguration, match="up to 64 letters"):
        process_name("no/name")


def test_what_does_not_go_together_is_told_in_one_line(tmp_path):
    (tmp_path / "c.yaml").write_text(CLUSTER)
    file = ("--file", str(tmp_path / "c.yaml"))
    for arguments, words in (
        (file, "--file, --keys and --gateway go together"),
        ((*file, "--keys", "k", "--gateway", "a:1", "--cluster", "x"), "leave out --cluster"),
        ((*file, "--keys", str(tmp_path / "k"), "--gateway", "a:1"), "No such file"),
        (("--gateway", "a:1"), "--file, --keys and --gateway go together"),
    ):
        told = tandem("join", *arguments)
        assert (told.exit_code, words in told.stderr) == (2, True), told.stderr


def test_they_find_each_other_and_answer(apart):
    assert apart.ask() == apart.ask() != ""
    # Each is called after its host, and has the machine for itself whatever the file counts.
    assert apart.names == sorted([HOST, SECOND, "d-1"])
    assert apart.workers()["d-1"]["connectors"] == ["tcp"]
    assert [answer_of(apart.health_port, path) for path in ("/health", "/ready")] == [200, 200]
    assert answer_of(apart.health_port, "/other") == 404
    assert answer_of(apart.pool_port, "/health") == 200


def test_a_name_that_is_taken_is_refused_in_one_line(apart):
    for name in ("d-1", HOST, SECOND):
        with apart.worker("--shared-pool", "--worker", name) as refused:
            assert refused.wait(LIMIT_S) == 2
        told = f"tandem: there is a worker {name} already; choose another --worker"
        assert apart.logs.count(told) == 1


def test_a_worker_that_hangs_is_not_well_until_it_wakes_up(apart):
    (worker,) = [each for name, each in apart.workers().items() if name != "d-1"]
    pid = int(worker["incarnation"].partition("-")[0], 16)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: answer_of(apart.health_port, "/health") == 503, LIMIT_S)
    assert answer_of(apart.health_port, "/ready") == 503
    os.kill(pid, signal.SIGCONT)
    until(lambda: answer_of(apart.health_port, "/ready") == 200, LIMIT_S)
    assert answer_of(apart.health_port, "/health") == 200


def test_a_gateway_that_is_killed_comes_back_to_the_same_workers(apart):
    apart.first_gateway.kill()
    apart.first_gateway.wait()
    until(lambda: answer_of(apart.http_port, "/ready") == 0, LIMIT_S)
    assert answer_of(apart.health_port, "/health") == 200
    with apart.gateway() as second:
        until(lambda: answer_of(apart.http_port, "/ready") == 200, LIMIT_S)
        assert apart.ask()
        until(lambda: answer_of(apart.pool_port, "/ready") == 200, LIMIT_S)
        assert apart.names == sorted([HOST, SECOND, "d-1"])
        for process in (apart.prefill, apart.decode, apart.pool, second):
            process.terminate()
            assert process.wait(LIMIT_S) == 0, apart.logs
    assert all(f"{name} has left" in apart.logs for name in (HOST, "d-1", SECOND))
    assert not apart.state.exists()
