"""Processes of the shared pool: real sockets, real disks, a real Redis, real ends."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tandem.facts.fleet import Tier
from tandem.facts.kv import placement
from tandem.kv.tiers.pool.client import PoolClient
from tandem.messages.cluster import Drain, PinBlocks
from tests.kv.tier_blocks import FORMAT, contents, digests, name, names, redis_server, rows, whole
from tests.live.ends import PATIENCE_S
from tests.live.pool_nodes import PoolNodes, pool_nodes

BLOCK = FORMAT.block_bytes


@pytest.fixture
def nodes(tmp_path) -> Iterator[PoolNodes]:
    with pool_nodes(tmp_path) as nodes:
        yield nodes


def put_all(client: PoolClient, blocks) -> None:
    kept = client.put_blocks(blocks, contents(blocks))
    assert set(kept.digests) == set(digests(blocks)), kept.problem


def read_all(client: PoolClient, blocks) -> None:
    into = rows(len(blocks))
    found = client.get_blocks(blocks, into)
    assert found.blocks == len(blocks), found
    assert whole(blocks, into)


def chains_of(nodes: tuple[str, ...], owner: str, count: int) -> list[int]:
    """Numbers of chains that belong to a node."""
    found = (n for n in range(1000) if placement(name(0, n).first, nodes)[0] == owner)
    return [next(found) for _ in range(count)]


def test_two_nodes_one_of_which_is_killed_hangs_and_comes_back(nodes):
    both = ("pool-0", "pool-1")
    for node in both:
        nodes.start(node)
    side = nodes.side
    with nodes.client(*both) as client:
        firsts = [names(6, chain) for chain in chains_of(both, "pool-0", 3)]
        others = [names(6, chain) for chain in chains_of(both, "pool-1", 3)]
        for chain in (*firsts, *others):
            put_all(client, chain)
            read_all(client, chain)
        mine = {digest for chain in firsts for digest in digests(chain)}
        theirs = {digest for chain in others for digest in digests(chain)}
        side.until(lambda: (side.held["pool-0"], side.held["pool-1"]) == (mine, theirs))
        # Read twice, a chain goes to the other one too, and outlives its own.
        read_all(client, firsts[0])
        side.until(lambda: side.held["pool-1"] == theirs | set(digests(firsts[0])))
        for node in both:
            assert side.audit(node).problem == ""
        nodes.end("pool-0", signal.SIGKILL)
        side.until(lambda: "pool-0" not in side.registered)
        read_all(client, firsts[0])
        assert client.get_blocks(firsts[1], rows(6)).blocks == 0
        # New blocks go to who is there, and back when it is there again.
        fresh = names(4, firsts[1][0].digest[0] + 2000)
        put_all(client, fresh)
        nodes.start("pool-0")
        nodes.join(client, "pool-0")
        put_all(client, firsts[1])
        side.until(lambda: side.held["pool-0"] >= set(digests(firsts[1])))
        # One that hangs costs its time, once.
        os.kill(nodes.processes["pool-0"].pid, signal.SIGSTOP)
        began_s = time.monotonic()
        assert client.get_blocks(firsts[1], rows(6)).problem
        read_all(client, firsts[0])
        assert time.monotonic() - began_s < 10.0
        os.kill(nodes.processes["pool-0"].pid, signal.SIGCONT)
        deadline_s = time.monotonic() + PATIENCE_S
        while client.get_blocks(firsts[1], rows(6)).blocks < 6:
            assert time.monotonic() < deadline_s


def test_what_was_on_disk_is_found_again(nodes, tmp_path):
    place = {"disk": str(tmp_path / "disk"), "disk_bytes": 2000 * BLOCK}
    (tmp_path / "disk").mkdir()
    survive(nodes, place)


def test_what_was_in_redis_is_found_again(nodes, tmp_path):
    with redis_server(tmp_path) as server:
        place = {"redis": server.url, "redis_bytes": 2000 * BLOCK}
        survive(nodes, place)
        with nodes.client("pool-0") as client:
            late = names(20, chain=500)
            put_all(client, late)
            below = names(100, chain=0)
            # When the server hangs, or is gone, what lies in memory is still there.
            assert server.process is not None
            server.process.send_signal(signal.SIGSTOP)
            began_s = time.monotonic()
            assert client.get_blocks(below, rows(100)).blocks < 100
            read_all(client, late)
            assert time.monotonic() - began_s < 10.0
            server.kill()
            assert client.get_blocks(below, rows(100)).blocks < 100
            read_all(client, late)
            assert nodes.side.audit("pool-0").problem == ""


def survive(nodes: PoolNodes, place: dict) -> None:
    """More than fits into memory; then the process is killed."""
    side = nodes.side
    changes = {"capacity_bytes": 512 * BLOCK, **place}
    nodes.start("pool-0", **changes)
    chains = [names(100, chain) for chain in range(8)]
    everything: set[bytes] = set()
    with nodes.client("pool-0") as client:
        for chain in chains:
            put_all(client, chain)
            everything |= set(digests(chain))
            side.until_settled("pool-0", everything)
        for chain in chains:
            read_all(client, chain)
        assert side.audit("pool-0").problem == ""
        nodes.end("pool-0", signal.SIGKILL)
        side.until(lambda: "pool-0" not in side.registered)
        nodes.start("pool-0", **changes)
        nodes.join(client, "pool-0")
        again = set(side.held["pool-0"])
        assert again <= everything
        assert len(again) >= len(everything) - 512
        found = [chain for chain in chains if set(digests(chain)) <= again]
        assert len(found) >= 2
        for chain in found:
            read_all(client, chain)
        # What was lost may come anew.
        put_all(client, chains[-1])
        side.until(lambda: side.held["pool-0"] >= set(digests(chains[-1])))


def test_pins_and_quotas_decide_what_goes_first(nodes):
    side = nodes.side
    nodes.start("pool-0", capacity_bytes=100 * BLOCK, quotas={"greedy": 0.2})
    with nodes.client("pool-0") as client:
        pinned = names(30, chain=1)
        put_all(client, pinned)
        side.send("pool-0", PinBlocks(digests(pinned), 60_000_000_000))
        # What was sent before is known once this is answered.
        side.audit("pool-0")
        greedy = names(40, chain=2, tenant="greedy")
        client.put_blocks(greedy, contents(greedy))
        for chain in range(3, 9):
            put_all(client, names(30, chain))
        side.audit("pool-0")
        held = side.held["pool-0"]
        assert set(digests(pinned)) <= held
        assert len(set(digests(greedy)) & held) <= 20
        assert len(held) == 100
        read_all(client, pinned)
    side.send("pool-0", Drain(leave=True))
    assert nodes.processes["pool-0"].wait(PATIENCE_S) == 0


def test_a_disk_block_that_is_corrupt_is_given_up(nodes, tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    nodes.start("pool-0", capacity_bytes=512 * BLOCK, disk=str(folder), disk_bytes=999 * BLOCK)
    side = nodes.side
    with nodes.client("pool-0") as client:
        everything: set[bytes] = set()
        for chain in range(30):
            put_all(client, names(20, chain))
            everything |= set(digests(names(20, chain)))
            side.until_held("pool-0", everything)
        (file,) = [file for file in folder.iterdir() if file.stat().st_size > 20 * BLOCK]
        text = bytearray(file.read_bytes())
        some = contents(names(20, 0))[7].tobytes()
        at = text.index(some)
        with file.open("r+b") as corrupting:
            corrupting.seek(at + 1000)
            corrupting.write(bytes([text[at + 1000] ^ 1]))
        into = rows(20)
        found = client.get_blocks(names(20, 0), into)
        assert found.blocks == 7
        assert whole(names(7, 0), into[:7])
        gone = names(20, 0)[7].digest
        side.until_held("pool-0", everything - {gone})
        side.until(lambda: _of(side.figures["pool-0"].tiers, Tier.DISK).corrupt_blocks == 1)
    assert nodes.end("pool-0", signal.SIGTERM) == 0


def _of(figures, tier):
    return next(each for each in figures if each.tier is tier)
