"""Whoever can write to the cluster's Redis, or answers in place of a process of the shared pool,
brings other blocks than were asked for: none of them is taken."""

import time

import numpy as np
import pytest
import redis

from tandem.facts.kv import BlockFormat
from tandem.kv.tiers.block_records import TAG_BYTES, BlockHeader, BlockTags, HeaderCodec
from tandem.kv.tiers.redis import RedisStore
from tandem.kv.tiers.redis_client import RedisConfig
from tests.kv.ending import closing
from tests.kv.pool_coordinator import PATIENT, SECRET, TRANSFER, client_of, served
from tests.kv.tier_blocks import (
    FORMAT,
    contents,
    digests,
    names,
    redis_server,
    rows,
    whole,
)

CHAIN = names(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        yield running


@pytest.fixture
def attacker(server):
    """Somebody with the password of the server, and without the secret of the cluster."""
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


def opened(server, secret=SECRET):
    config = RedisConfig(f"redis://127.0.0.1:{server.port}/0", 20)
    return closing(RedisStore(config, FORMAT, TRANSFER, time.monotonic_ns, secret=secret))


def filled(server, attacker):
    """The keys of the chain, as the attacker sees them."""
    with opened(server) as store:
        assert store.put_blocks(CHAIN, contents(CHAIN)).digests == digests(CHAIN)
    found = {key[-32:]: key for key in attacker.scan_iter()}
    return [found[name.digest.hex().encode()] for name in CHAIN]


def forged(name, content):
    """As a value would be if a checksum were enough: everybody knows all that goes into it."""
    checksum = TRANSFER.checksum_runs(content.ctypes.data, np.zeros(1, np.int64), len(content))[0]
    header = BlockHeader(name, int(checksum), 1)
    return HeaderCodec(FORMAT).packed(header) + content.tobytes()


@pytest.mark.parametrize(
    "attack", ["swap", "bytes of another", "one bit", "forged", "another cluster"]
)
def test_what_somebody_put_into_redis_is_never_taken(server, attacker, attack):
    keys = filled(server, attacker)
    one, other = attacker.mget(keys[0], keys[1])
    match attack:
        case "swap":
            attacker.mset({keys[0]: other, keys[1]: one})
        case "bytes of another":
            attacker.set(keys[0], one[:256] + other[256:])
        case "one bit":
            attacker.set(keys[0], one[:-1] + bytes([one[-1] ^ 1]))
        case "forged":
            attacker.set(keys[0], forged(CHAIN[0], contents(CHAIN)[1]))
        case "another cluster":
            with opened(server, secret=b"the attacker's own") as store:
                store.put_blocks(CHAIN[:1], contents(CHAIN)[1:2])
            (theirs,) = set(attacker.keys(b"*" + keys[0][-32:])) - set(keys)
            assert attacker.get(theirs) != one
            attacker.rename(theirs, keys[0])
    with opened(server) as store:
        found = store.get_blocks(CHAIN, rows(3))
        assert (found.blocks, found.corrupt) == (0, digests(CHAIN[:1]))
        # It is gone, and what nobody touched is as good as before.
        assert attacker.get(keys[0]) is None
        into = rows(1)
        assert store.get_blocks(CHAIN[2:], into).blocks == 1
        assert whole(CHAIN[2:], into)


def test_forged_headers_are_not_listed_and_older_versions_are_not_seen(server, attacker):
    key = filled(server, attacker)[0]
    attacker.flushall()
    value = forged(CHAIN[0], contents(CHAIN)[0])
    attacker.set(key, value)
    older = f"tandem:{FORMAT.root.hex()}-{FORMAT.block_bytes}:".encode() + key[-32:]
    attacker.set(older, value)
    with opened(server) as store:
        assert store.stored_blocks() == ()
        assert store.get_blocks(CHAIN[:1], rows(1)).blocks == 0
    assert attacker.get(older) == value


@pytest.fixture(scope="module")
def node():
    with served() as running:
        yield running


def as_array(tag: bytes):
    return np.frombuffer(tag, dtype=np.uint8)


@pytest.mark.parametrize("answer", ["all", "the bytes", "the tag", "the bytes, tagged"])
def test_a_process_of_the_pool_that_answers_with_another_block_is_not_believed(
    node, answer, monkeypatch
):
    with client_of(node) as client:
        assert client.put_blocks(CHAIN, contents(CHAIN)).digests == digests(CHAIN)
        honest = node.coordinator.read_blocks

        def read(wanted, into):
            count = honest(wanted, into)
            match answer:
                case "all":
                    into[0][:] = into[1]
                case "the bytes":
                    into[0][:-TAG_BYTES] = into[1][:-TAG_BYTES]
                case "the tag":
                    into[0][-TAG_BYTES:] = into[1][-TAG_BYTES:]
                case "the bytes, tagged":
                    # With what it wants to be believed, as in a cluster of its own.
                    other = np.ascontiguousarray(into[1][:-TAG_BYTES])
                    tags = BlockTags(b"the attacker's own", FORMAT, TRANSFER)
                    into[0][:-TAG_BYTES] = other
                    into[0][-TAG_BYTES:] = as_array(tags.of(CHAIN[:1], [other])[0])
            return count

        monkeypatch.setattr(node.coordinator, "read_blocks", read)
        found = client.get_blocks(CHAIN, rows(3))
        assert (found.blocks, found.corrupt) == (0, digests(CHAIN[:1]))
        monkeypatch.undo()
        into = rows(3)
        assert client.get_blocks(CHAIN, into).blocks == 3
        assert whole(CHAIN, into)


def test_a_client_cannot_bring_a_block_under_the_name_of_another(node):
    """As one does that mixes up its rows, or knows the port and not the secret of the blocks."""
    chain = names(2, chain=5)
    stored = BlockTags(SECRET, FORMAT, TRANSFER)
    bad, good = contents(chain)[1], contents(chain)[0]
    tagged = [np.concatenate([bad, as_array(tag)]) for tag in stored.of(chain[:1], [good])]
    assert stored.stored_misfits(chain[:1], tagged) == [0]
    with client_of(node, limits=PATIENT) as client:
        link = client._nodes[node.name].writing
        link._tagged = True
        assert client.put_blocks(chain[:1], tagged).digests == ()
    assert chain[0].digest not in node.coordinator.held


def test_tags_depend_on_everything_that_they_bind():
    block = contents(CHAIN)[:1]
    other_format = BlockFormat(bytes(16), FORMAT.block_bytes)
    tags = {
        BlockTags(secret, block_format, TRANSFER).of([name], block)[0]
        for secret in (SECRET, b"another")
        for block_format in (FORMAT, other_format)
        for name in CHAIN[:2]
    }
    assert len(tags) == 8
