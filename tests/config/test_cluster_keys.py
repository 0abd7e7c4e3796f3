"""Declarations of the keys of a cluster file: what is printed of them, who is told a secret."""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from tandem.config.cluster.file import Cluster, bundled_clusters, read_cluster
from tandem.config.cluster.keys import GATEWAY, SHARED_POOL, WORKER, Choice
from tandem.config.cluster.live import checked, handed_to
from tandem.config.cluster.reference import reference
from tandem.config.cluster.tree import parse
from tandem.config.processes import (
    GatewaySetup,
    PoolNodeSetup,
    WorkerSetup,
    read_setup,
    write_setup,
)
from tandem.live.processes.setups import Setups

PAGE = Path(__file__).parents[2] / "docs" / "cluster-keys.md"
SECRETS = """\
model: tandem-mini
block_size: 16
serve: {port: 0, api-key: [secret-master], allow-client-priority: true}
pools:
  - {name: w, role: both, device: cpu, max_num_seqs: 8}
tenants:
  - {name: acme, api_keys: [secret-acme], kv_share: 0.5}
policies: {eviction: arc, admission: {name: prediction, longest_retry_after_s: 30}}
faults: [{at: 3s, crash: w-0}]
tiers:
  disk: {capacity: 64MiB}
  remote: {capacity: 64MiB, redis: "redis://:secret-redis@host:1", redis_capacity: 1GiB}
"""


def sections(shape=Cluster, path="cluster"):
    """Every section that a cluster file may have, with where it stands."""
    yield path, shape
    for entry in fields(shape):
        parts = [get_type_hints(shape)[entry.name]]
        while parts:
            part = parts.pop()
            if is_dataclass(part) and part is not Choice:
                yield from sections(part, f"{path}.{entry.name}")
            else:
                parts += [each for each in get_args(part) if each is not ...]


def test_every_key_says_what_it_means():
    silent = [
        f"{path}.{entry.name}"
        for path, shape in sections()
        for entry in fields(shape)
        if not entry.metadata.get("meaning")
    ]
    assert not silent


def test_the_page_of_all_keys_is_the_declarations():
    assert PAGE.read_text() == reference(), "python -m tandem.config.cluster.reference"
    row = "| `heartbeat_timeout` | time | 10 s | no | A silent worker counts as dead after it. |"
    assert row in reference()


@pytest.mark.parametrize("name", bundled_clusters())
def test_a_cluster_travels_to_a_process_as_it_was_read(name):
    cluster = read_cluster(name)
    assert msgspec.json.decode(msgspec.json.encode(cluster), type=Cluster) == cluster


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return checked(parse(SECRETS, "c.yaml"), Path()).cluster


@pytest.mark.parametrize(
    ("process", "told"),
    [
        (GATEWAY, {"secret-master", "secret-acme"}),
        (SHARED_POOL, {"secret-redis"}),
        (WORKER, set()),
    ],
)
def test_a_secret_is_handed_to_those_who_need_it(cluster, process, told):
    text = repr(handed_to(cluster, process))
    assert {name for name in ("secret-master", "secret-acme", "secret-redis") if name in text} == (
        told
    )


def test_all_else_is_handed_on_as_it_is(cluster, tmp_path):
    handed = handed_to(cluster, WORKER)
    assert handed.pools == cluster.pools
    assert handed.policies == cluster.policies
    assert handed.tenants == (replace(cluster.tenants[0], api_keys=()),)
    assert handed.serve == {"port": 0, "allow-client-priority": True}
    # What only this machine knows is written out, and faults are the simulator's.
    assert handed.tiers.disk is not None
    assert handed.tiers.disk.path == str(tmp_path / "tandem" / "default" / "kv")
    assert (handed.transport.connectors, handed.faults) == (("shm", "tcp"), ())


def test_set_ups_of_all_processes_come_back_from_their_files(cluster, tmp_path):
    made, here = Setups(cluster), ("tcp://127.0.0.1:1",)
    worker = made.worker(cluster.pools[0], "w-0", here)
    node = made.pool_node("pool-0", here)
    gateway = made.gateway(0, tmp_path, here[0])
    for kind, setup in ((WorkerSetup, worker), (PoolNodeSetup, node)):
        write_setup(setup, tmp_path / "setup.json")
        assert read_setup(kind, tmp_path / "setup.json") == setup
    write_setup(gateway, tmp_path / "setup.json")
    again = read_setup(GatewaySetup, tmp_path / "setup.json")
    assert (again.options, again.cluster.tenants) == (gateway.options, cluster.tenants)
    assert b"secret-" not in msgspec.json.encode(worker)
    assert again.cluster.model == str(made.checkpoint)
