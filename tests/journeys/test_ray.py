"""A cluster whose workers run on the machines of a Ray cluster; one of these loses its power."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest

from tests.journeys.clusters import cluster
from tests.journeys.questions import QUESTIONS, STORY
from tests.journeys.serving import run_tandem, succeeded
from tests.waiting import until

pytest.importorskip("ray")
from tests.journeys.ray_machines import ray_machines

TEXT = """
name: on-ray
model: tandem-mini
block_size: 16
launcher: ray
serve: {port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1}
pools:
  - {name: prefill, role: prefill, device: cpu, resources: {prefill_node: 1}}
  - {name: decode, role: decode, device: cpu, count: 2, resources: {decode_node: 1}}
policies: {dispatch: remote, transfer: push}
transport: {connectors: [tcp]}
"""
PREFILL, FIRST, SECOND = 2, 3, 4
MACHINES = {
    PREFILL: {"CPU": 1, "prefill_node": 1},
    FIRST: {"CPU": 1, "decode_node": 1},
    # Room for one more when the other machine is gone.
    SECOND: {"CPU": 2, "decode_node": 2},
}
ASKED = ("greedy", "sampled", "logprobs", "completion")
STORIES = 4


@pytest.fixture(scope="module")
def machines():
    with ray_machines(MACHINES) as made:
        yield made


@pytest.fixture(scope="module")
def expected(one_process):
    answers = {name: QUESTIONS[name](one_process) for name in ASKED}
    with ThreadPoolExecutor(STORIES) as clients:
        return answers, list(clients.map(partial(story, one_process), range(STORIES)))


def story(client, seed, on_piece=lambda: None):
    text = ""
    for chunk in client.chat.completions.create(
        model="tandem-mini",
        messages=[{"role": "user", "content": STORY}],
        stream=True,
        temperature=0.8,
        seed=seed,
        # It takes a while until a machine has lost its power.
        max_tokens=1500,
        extra_body={"ignore_eos": True},
    ):
        for choice in chunk.choices:
            text += choice.delta.content or ""
        on_piece()
    return text


def processes(running):
    return json.loads((running.state / "cluster.json").read_text())["processes"]


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def at(number):
    return f"127.0.0.{number}"


def test_a_machine_dies_and_nobody_notices(machines, expected, tmp_path):
    answers, stories = expected
    text = f"{TEXT}\nray: {{address: '{machines.address}'}}"
    with cluster(text, tmp_path) as running, ThreadPoolExecutor(STORIES) as clients:
        for name in ASKED:
            assert QUESTIONS[name](running.client) == answers[name], name
        before = processes(running)
        hosts = {name: each["host"] for name, each in before.items()}
        assert hosts.pop("gateway-0") == ""
        assert hosts.pop("prefill-0") == at(PREFILL)
        assert sorted(hosts.values()) == [at(FIRST), at(SECOND)]
        [lost] = [name for name, host in hosts.items() if host == at(FIRST)]

        under_way = [Event() for _ in range(STORIES)]
        answering = [
            clients.submit(story, running.client, seed, begun.set)
            for seed, begun in enumerate(under_way)
        ]
        assert all(begun.wait(60) for begun in under_way)
        machines.pull_the_plug(FIRST)
        assert [each.result() for each in answering] == stories
        [gateway] = running.status()["gateways"]
        assert gateway["takeovers"] > 0

        def is_back():
            now = processes(running).get(lost, {})
            return now.get("host") == at(SECOND)

        until(is_back)
        until(lambda: len(running.status()["workers"]) == 3)
        assert QUESTIONS["greedy"](running.client) == answers["greedy"]
        after = processes(running)
        printed = (running.state / f"{lost}.log").read_text()
        assert printed.count("ready after") >= 2, printed
    left = {name for known in (before, after) for name in known if not is_gone(known[name]["pid"])}
    assert not left


def test_nothing_outlives_a_supervisor_that_is_killed(machines, tmp_path):
    # In a state of its own: this cluster cannot end by itself.
    file, state = tmp_path / "cluster.yaml", tmp_path / "state"
    file.write_text(
        f"{TEXT.split('pools:')[0]}\nray: {{address: '{machines.address}'}}\n"
        "pools: [{name: all, device: cpu, resources: {prefill_node: 1}}]\n"
    )
    up = ("up", str(file), "--detach", "--state-dir", str(state))
    succeeded(run_tandem(*up))
    known = json.loads((state / "cluster.json").read_text())
    assert known["processes"]["all-0"]["host"] == at(PREFILL)
    succeeded(run_tandem("down", "--kill", "--state-dir", str(state)))
    until(lambda: all(is_gone(each["pid"]) for each in known["processes"].values()), 20)


def test_what_no_machine_has_is_reported_within_the_time_given(machines, tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(f"{TEXT}\nray: {{address: '{machines.address}', timeout: 1s}}")
    setting = "pools.prefill.resources.prefil_node=1"
    failed = run_tandem("up", str(file), "--set", setting, "--state-dir", str(tmp_path / "state"))
    assert failed.returncode == 1
    assert "prefill-0 needs 1 CPU, 1 prefill_node, 1 prefil_node" in failed.stderr.replace(
        "\n", " "
    )
