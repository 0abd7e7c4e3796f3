"""Tiers of a live cluster: what a file may say of them, and what each process is told."""

from pathlib import Path

import pytest

from tandem.config.cluster.live import checked
from tandem.config.cluster.tiers import (
    disk_folder,
    has_tiers,
    memory_bytes,
    pool_node_bytes,
    pool_nodes,
    process_names,
    refused_sizes,
    tenant_shares,
    worker_tier_bytes,
)
from tandem.config.cluster.tree import parse
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Tier
from tandem.live.processes.setups import Setups

POOLS = """\
model: tandem-mini
block_size: 16
pools:
  - {name: w, role: both, device: cpu, count: 2}
"""
MIB = 1 << 20


def read(text):
    return checked(parse(POOLS + text, "c.yaml"), Path()).cluster


def test_every_process_is_told_its_part():
    cluster = read(
        """\
name: lab
tiers:
  host: {capacity: 8MiB}
  disk: {capacity: 64MiB, path: /data/kv}
  remote: {capacity: 32MiB, nodes: 2, replicas: 1, disk: {capacity: 128MiB}}
  pin_sessions: 2m
policies: {eviction: arc}
tenants: [{name: a, kv_share: 0.25}, {name: b}]
"""
    )
    setups = Setups(cluster)
    worker = setups.worker(cluster.pools[0], "w-0", ("tcp://127.0.0.1:1",))
    tiers = worker.cluster.tiers
    assert worker_tier_bytes(tiers) == {Tier.HOST: 8 * MIB, Tier.DISK: 64 * MIB}
    assert tiers.disk is not None
    assert tiers.disk.path == "/data/kv"
    assert (worker.cluster.policies.eviction.name, tenant_shares(worker.cluster)) == (
        "arc", {"a": 0.25},
    )  # fmt: skip
    assert pool_nodes(cluster) == ("pool-0", "pool-1")
    assert list(process_names(cluster)) == ["w-0", "w-1", "pool-0", "pool-1"]
    node = setups.pool_node("pool-1", ("tcp://127.0.0.1:1",))
    remote = node.cluster.tiers.remote
    assert remote is not None
    assert pool_node_bytes(remote) == {Tier.HOST: 16 * MIB, Tier.DISK: 64 * MIB}
    assert remote.replicas == 1
    assert node.shared_format == worker.shared_format == setups.block_format()
    assert remote.disk is not None
    assert remote.disk.path == str(disk_folder(cluster, None))
    assert remote.disk.path.endswith("tandem/lab/kv")
    assert not node.keys.gateway_secret
    # Two workers' host tiers, and the pool's.
    assert memory_bytes(cluster) == 48 * MIB


def test_without_tiers_nobody_is_told_of_any():
    cluster = read("")
    worker = Setups(cluster).worker(cluster.pools[0], "w-0", ())
    assert not has_tiers(worker.cluster)
    assert worker.shared_format is None
    assert pool_nodes(cluster) == ()


def test_content_of_the_disk_lies_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert disk_folder(read("name: lab\n"), None) == tmp_path / "tandem" / "lab" / "kv"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("policies: {eviction: lfu}", "line 5: a live worker evicts the block used longest ago"),
        (
            "tiers: {host: {capacity: 1GiB}}\npolicies: {eviction: {name: lfu, k: 2}}",
            "line 6: eviction lfu takes no parameters",
        ),
        ("tiers: {disk: {capacity: 1GiB, path: kv}}", "line 5: tiers.disk: kv is no absolute path"),
        ("tiers: {disk: {capacity: 1GiB, path: /etc/passwd}}", "/etc/passwd is no folder"),
        (
            "tiers: {remote: {capacity: 1GiB, redis: 'redis://h', redis_capacity: 1GiB, "
            "disk: {capacity: 1GiB}}}",
            "line 5: tiers.remote: what its memory does not hold goes to a disk or to Redis",
        ),
        (
            "tiers: {remote: {capacity: 1GiB, redis: 'redis://h'}}",
            "line 5: tiers.remote: how much may the server hold?",
        ),
        (
            "tiers: {remote: {capacity: 1GiB, redis: 'http://:key@h', redis_capacity: 1GiB}}",
            "line 5: tiers.remote: no URL of a server; expected redis://",
        ),
        ("tiers: {remote: {capacity: 1GiB, nodes: 0}}", "nodes"),
        ("tiers: {hots: {capacity: 1GiB}}", "unknown key hots; did you mean host?"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(text, told):
    with pytest.raises(InvalidConfiguration) as caught:
        read(text)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("pool", "told"),
    [
        ("{name: w, device: cpu, tensor_parallel: 2}", "pool w: tiers are for workers of one rank"),
        ("{name: w, device: cpu, pipeline_parallel: 2}", "write pipeline_parallel: 1, or leave"),
        ("{name: pool, device: cpu}", "the processes of the remote tier are called pool-0, pool-1"),
    ],
)
def test_a_pool_that_does_not_go_with_tiers_is_told(pool, told):
    text = f"model: tandem-mini\npools:\n  - {pool}\ntiers: {{remote: {{capacity: 1GiB}}}}\n"
    with pytest.raises(InvalidConfiguration) as caught:
        checked(parse(text, "c.yaml"), Path())
    assert "c.yaml, line 3" in str(caught.value)
    assert told in str(caught.value)


def test_room_for_less_than_a_block_is_refused():
    cluster = read("tiers: {host: {capacity: 1MiB}, remote: {capacity: 64KiB, nodes: 2}}")
    found = dict(refused_sizes(cluster, 64 << 10))
    assert list(found) == ["tiers.remote"]
    assert "a block of this model has 65,536 bytes" in found["tiers.remote"]
