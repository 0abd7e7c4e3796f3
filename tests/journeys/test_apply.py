"""`tandem apply`: a cluster under load takes another configuration, and no request fails."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import openai
import pytest

from tandem.config.processes import GatewaySetup, WorkerSetup, read_setup
from tests.journeys.clusters import cluster
from tests.journeys.serving import run_tandem, succeeded

TEXT = """
model: tandem-mini
block_size: 16
gateways: 2
serve: {port: 0, max-num-seqs: 16, kv-cache-memory: 64MiB, threads: 1}
tenants:
  - {name: gold, weight: 1, api_keys: [gold-key]}
  - {name: free, weight: 1, api_keys: [free-key]}
pools:
  - {name: prefill, role: prefill, device: cpu}
  - {name: decode, role: decode, device: cpu}
"""
CHANGES = (
    ("tenants:", "policies: {admission: prediction}\nslo: {ttft: 30s}\ntenants:"),
    ("weight: 1, api_keys: [gold-key]", "weight: 5, api_keys: [gold-key, another-key]"),
    ("role: decode, device: cpu", "role: decode, device: cpu, count: 2"),
)
KEYS = ("gold-key", "free-key")


def asks(url: str, key: str) -> openai.OpenAI:
    # Each call has a connection of its own, so that both gateways get some.
    own = {"Connection": "close"}
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=90, default_headers=own
    )


def answer(client: openai.OpenAI) -> str:
    prompt = "Count to five: one, two,"
    done = client.completions.create(
        model="tandem-mini", prompt=prompt, max_tokens=24, temperature=0
    )
    return done.choices[0].text


def test_a_cluster_changes_under_load_and_refuses_what_cannot_be(tmp_path):
    text = f"{TEXT}journal: {{directory: {tmp_path / 'journal'}}}\n"
    with cluster(text, tmp_path) as running, ThreadPoolExecutor(len(KEYS)) as clients:
        changed = Event()
        expected = answer(asks(running.url, "gold-key"))

        def ask_on(key: str) -> int:
            client, rounds = asks(running.url, key), 0
            while not changed.is_set() or not rounds:
                assert answer(client) == expected
                rounds += 1
            return rounds

        other = text
        for old, new in CHANGES:
            other = other.replace(old, new)
        file, old_file = tmp_path / "other.yaml", tmp_path / "cluster.yaml"
        file.write_text(other)
        asking = [clients.submit(ask_on, key) for key in KEYS]
        try:
            shown = running.succeed("apply", str(file), "--dry-run")
            assert "tenants.gold.weight" in shown
            assert "decode-1 starts" in shown
            assert "another-key" not in shown
            done = json.loads(running.succeed("apply", str(file), "--yes", "--json"))
            assert done["applied"]
            taken = {each["name"]: each["text"] for each in done["progress"]}
            assert taken["gateway-0"] == taken["gateway-1"] == "has taken configuration 1"
            assert taken["decode-1"] == "has joined"
            # Whoever starts from now on has it.
            worker = read_setup(WorkerSetup, running.state / "prefill-0.setup.json")
            gateway = read_setup(GatewaySetup, running.state / "gateway-1.setup.json")
            assert worker.cluster.tenants[0].weight == gateway.cluster.tenants[0].weight == 5
            assert gateway.configuration == 1
            newcomer = asks(running.url, "another-key")
            assert [answer(newcomer) for _ in range(4)] == [expected] * 4
            # All or nothing: the weight could change, the size of a block cannot.
            refused = running.operate(
                "apply", str(file), "--yes", "--set", "block_size=32",
                "--set", "tenants.free.weight=9",
            )  # fmt: skip
            assert refused.returncode == 1
            assert "block_size: 16 -> 32 cannot change live" in refused.stdout
            unasked = running.operate("apply", str(old_file))
            assert (unasked.returncode, "--yes" in unasked.stderr) == (2, True)
            # The way back is the old file.
            assert "decode-1 has left" in running.succeed("apply", str(old_file), "--yes")
        finally:
            changed.set()
        assert all(each.result() for each in asking)
        for _ in range(2):
            with pytest.raises(openai.AuthenticationError):
                answer(newcomer)
        workers = running.assert_nothing_held()["workers"]
        assert [worker["worker"] for worker in workers] == ["decode-0", "prefill-0"]
    # What was recorded of the gateways is decided again, changes and all.
    for file in (tmp_path / "journal").iterdir():
        assert "all equal" in succeeded(run_tandem("replay", str(file)))
