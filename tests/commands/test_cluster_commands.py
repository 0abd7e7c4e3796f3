"""A user's cluster, from `tandem up` to `tandem down`: the real commands and real processes."""

import asyncio
import json
import os
import pty
import select
import signal
import subprocess
import sys
from contextlib import suppress

import openai
import pytest

from tandem.commands.cluster_view import together
from tandem.commands.which_cluster import WhichCluster, find_running
from tandem.live.gateway.operators import Operators
from tandem.live.launching.state_directory import started_ticks
from tandem.live.processes.setups import TANDEM
from tests.journeys.serving import run_here, run_tandem
from tests.waiting import until

CLUSTER = """\
name: tried
model: tandem-mini
block_size: 16
serve: {port: 0, max-num-seqs: 8, kv-cache-memory: 16MiB, threads: 1}
health: {heartbeat_timeout: 2s, report_interval: 50ms}
pools:
  - {name: prefill, role: prefill, device: cpu}
  - {name: decode, role: decode, device: cpu}
"""
LIMIT_S = 90
TEXT = "Tell me about the sea and the mountains, please."


class Cluster:
    """The commands of one cluster."""

    def __init__(self, folder):
        self.folder = folder
        self.state = folder / "state"

    def tandem(self, verb, *arguments):
        return run_tandem(verb, *arguments, "--state-dir", str(self.state))

    def done(self, verb, *arguments):
        told = self.tandem(verb, *arguments)
        assert told.returncode == 0, told.stdout + told.stderr
        return told.stdout

    def status(self, *arguments):
        return json.loads(self.done("status", "--json", *arguments))

    def workers(self):
        """What `status` would show of them, without a process for it."""
        running = find_running(WhichCluster(state_dir=self.state))
        told = asyncio.run(Operators(running.endpoints, running.keys).statuses())
        return {worker.worker: worker for worker in together(told)}

    def pid(self, process):
        return find_running(WhichCluster(state_dir=self.state)).record.processes[process].pid

    def ask(self, **options):
        url = find_running(WhichCluster(state_dir=self.state)).record.url
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=60)
        messages = [{"role": "user", "content": TEXT}]
        answer = client.chat.completions.create(
            model="tandem-mini", messages=messages, temperature=0, max_tokens=12, **options
        )
        return answer.choices[0].message.content

    def until(self, is_so):
        """The first status of the workers that satisfies."""

        def satisfying():
            workers = self.workers()
            return workers if is_so(workers) else None

        return until(satisfying, LIMIT_S, every_s=0.05)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "cluster.yaml").write_text(CLUSTER)
    made = Cluster(folder)
    made.greeting = made.done("up", str(folder / "cluster.yaml"), "--detach")
    try:
        yield made
    finally:
        if made.state.exists():
            made.tandem("down", "--kill")


@pytest.fixture(scope="module")
def answer(cluster):
    return cluster.ask()


def test_it_greets_with_its_workers_and_how_to_go_on(cluster):
    assert "tandem-mini is served on http://127.0.0.1:" in cluster.greeting
    assert "tandem chat" in cluster.greeting
    assert "`tandem down` stops the cluster" in cluster.greeting
    for worker in ("prefill-0", "decode-0"):
        assert worker in cluster.greeting


def test_a_second_one_in_the_same_place_is_refused(cluster):
    told = cluster.tandem("up", str(cluster.folder / "cluster.yaml"))
    assert told.returncode == 1
    assert "a cluster runs in" in told.stderr
    assert len(cluster.workers()) == 2


def test_kv_moves_and_status_counts_it(cluster, answer):
    assert len(answer.split()) > 3
    assert cluster.ask() == answer
    cluster.until(lambda workers: workers["decode-0"].transfers >= 2)
    told = cluster.status("--audit")
    decode, prefill = told["workers"]
    assert (decode["worker"], prefill["worker"]) == ("decode-0", "prefill-0")
    assert decode["moved_bytes"] == prefill["sent_bytes"] > 0
    assert decode["failed_transfers"] == 0
    assert decode["connectors"] == ["shm"]
    assert (prefill["prompts"], decode["prompts"]) == (2, 0)
    assert {each["worker"] for each in told["audit"]["workers"]} == {"prefill-0", "decode-0"}
    assert all(each["owned_blocks"] == 0 for each in told["audit"]["workers"])
    shown = cluster.done("status", "--audit")
    assert "decode-0" in shown
    assert "books agree" in shown


def test_status_is_shown_anew_until_ctrl_c(cluster):
    screen, terminal = pty.openpty()
    watching = subprocess.Popen(
        [*TANDEM, "status", "--watch", "0.1", "--state-dir", str(cluster.state)],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal)
    shown = b""
    try:
        while shown.count(b"decode-0") < 3:
            assert select.select([screen], [], [], LIMIT_S)[0], shown
            shown += os.read(screen, 4096)
        watching.send_signal(signal.SIGINT)
        # Somebody must read its last words, or it waits with them; the terminal ends with it.
        with suppress(OSError):
            while os.read(screen, 4096):
                pass
        assert watching.wait(LIMIT_S) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(screen)
    both = cluster.tandem("status", "--watch", "1", "--json")
    assert both.returncode == 2
    assert "--watch shows the table only" in both.stderr


def test_secrets_are_in_no_output_and_their_owners_alone(cluster, answer):
    keys = json.loads((cluster.state / "keys.json").read_text())
    assert not keys["gateway_secret"]
    shown = cluster.done("status", "--json") + cluster.greeting
    for log in cluster.state.glob("*.log"):
        shown += log.read_text()
    setup = json.loads((cluster.state / "gateway-0.setup.json").read_text())
    assert not setup["keys"]["worker_secret"]
    secrets = (keys["worker_secret"], keys["operator_secret"], keys["transfer_secret"])
    for secret in (setup["keys"]["gateway_secret"], *secrets):
        assert secret
        assert secret not in shown
    for file in cluster.state.iterdir():
        if "key" in file.name or "setup" in file.name:
            assert not file.stat().st_mode & 0o077, file


def test_what_cannot_be_is_said_in_one_line(cluster):
    for arguments, words in (
        (("drain", "decode-7"), "there is no worker decode-7; did you mean decode-0?"),
        (("drain", "decode-0"), "without decode-0 no worker would take decode"),
        (("join", "--pool", "decod"), "no such pool; did you mean decode?"),
        (("join",), "say which pool it joins, as --pool prefill"),
    ):
        told = run_here(*arguments, "--state-dir", str(cluster.state))
        assert words in told.stderr, told.stderr
        assert told.returncode in (1, 2)
        assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("worker", "number"), [("decode-0", signal.SIGKILL), ("prefill-0", signal.SIGSTOP)]
)
def test_a_worker_that_is_killed_or_hangs_starts_again_and_is_used(cluster, answer, worker, number):
    before = cluster.workers()[worker]
    os.kill(cluster.pid(worker), number)
    cluster.until(
        lambda workers: worker in workers and workers[worker].incarnation != before.incarnation
    )
    assert cluster.ask() == answer


def test_a_worker_joins_and_takes_the_place_of_another_that_flips_and_drains(cluster, answer):
    command = [sys.executable, "-m", "tandem", "join", "--pool", "decode"]
    command += ["--state-dir", str(cluster.state)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as joining:
        try:
            cluster.until(lambda workers: "decode-1" in workers)
            assert "now takes both" in cluster.done("flip", "decode-0", "both")
            assert cluster.workers()["decode-0"].role == "both"
            assert cluster.ask() == answer
            assert "is empty" in cluster.done("drain", "decode-0")
            assert not cluster.workers()["decode-0"].accepting
            assert cluster.ask() == answer
            assert cluster.workers()["decode-1"].output_tokens > 0
            assert "takes requests again" in cluster.done("undrain", "decode-0")
            assert cluster.workers()["decode-0"].accepting
            assert "has left" in cluster.done("drain", "decode-1", "--leave")
            assert joining.wait(30) == 0
            assert "decode-1" not in cluster.workers()
        finally:
            joining.kill()


def test_in_the_end_nothing_is_left(cluster, answer):
    record = json.loads((cluster.state / "cluster.json").read_text())
    everybody = [record["supervisor"], *record["processes"].values()]
    assert all(started_ticks(process["pid"]) for process in everybody)
    assert "is stopped" in cluster.done("down")
    assert not any(
        started_ticks(process["pid"]) == process["started_ticks"] for process in everybody
    )
    assert not cluster.state.exists()
    told = cluster.tandem("status")
    assert (told.returncode, "no cluster runs" in told.stderr) == (1, True)
