"""What every store promises, whatever it keeps its blocks in."""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import REFERENCE, choose_transfer
from tandem.kv.tiers.contract import BlockStore, Found, Kept
from tandem.kv.tiers.disk import DiskConfig, DiskStore
from tandem.kv.tiers.host import HostStore
from tandem.kv.tiers.redis import RedisStore
from tandem.kv.tiers.redis_client import RedisConfig
from tests.kv.tier_blocks import FORMAT, contents, digests, name, names, redis_server, rows, whole

CAPACITY = 12


class Stores:
    """Makes empty stores of one kind, closed at the end."""

    def __init__(self, kind: str, folder: Path, url: str, stack: ExitStack) -> None:
        self.kind = kind
        self._folder = folder
        self._url = url
        self._stack = stack
        self._numbers = itertools.count()

    def make(self, transfer=None) -> BlockStore:
        store = self._made(transfer or choose_transfer(), next(self._numbers))
        self._stack.callback(store.close_store)
        return store

    def _made(self, transfer, number: int) -> BlockStore:
        if self.kind == "host":
            return HostStore(FORMAT, CAPACITY, transfer)
        if self.kind == "disk":
            config = DiskConfig(self._folder / f"{number}.kv", CAPACITY)
            return DiskStore(config, FORMAT, transfer)
        config = RedisConfig(self._url, CAPACITY, owner=f"test-{number}", trip_bytes=7_000)
        return RedisStore(config, FORMAT, transfer, time.monotonic_ns, secret=b"cluster")


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture(params=["host", "disk", "redis"], scope="module")
def stores(request, tmp_path_factory, redis_url) -> Iterator[Stores]:
    with ExitStack() as stack:
        yield Stores(request.param, tmp_path_factory.mktemp("disk"), redis_url, stack)


@pytest.mark.parametrize("transfer", [choose_transfer(), REFERENCE], ids=lambda t: t.name)
def test_what_was_put_comes_back(stores, transfer):
    store, blocks, room = stores.make(transfer), names(9, tenant="Zürich"), rows(9)
    assert store.put_blocks(blocks, contents(blocks)) == Kept(digests(blocks))
    assert store.get_blocks(blocks, room) == Found(9)
    assert whole(blocks, room)


def test_nothing_is_behind_the_first_that_is_missing(stores):
    store, blocks, room = stores.make(), names(6), rows(6)
    kept = [blocks[index] for index in (0, 1, 3, 4)]
    store.put_blocks(kept, contents(kept))
    assert store.get_blocks(blocks, room) == Found(2, missing=(blocks[2].digest,))
    assert whole(blocks[:2], room[:2])
    assert (room[2] == 0xEE).all()
    assert store.get_blocks([], []) == Found(0)


def test_what_was_forgotten_is_missing_and_makes_room(stores):
    store, blocks = stores.make(), names(CAPACITY)
    store.put_blocks(blocks, contents(blocks))
    store.forget_blocks([*digests(blocks[3:7]), b"unknown", blocks[3].digest])
    assert store.get_blocks(blocks, rows(CAPACITY)).missing == (blocks[3].digest,)
    others, room = names(4, chain=1), rows(4)
    assert store.put_blocks(others, contents(others)) == Kept(digests(others))
    assert store.get_blocks(others, room) == Found(4)
    assert whole(others, room)
    assert store.get_blocks(blocks[7:], rows(CAPACITY - 7)) == Found(CAPACITY - 7)


def test_the_same_again_is_kept_already(stores):
    store, blocks = stores.make(), names(5)
    store.put_blocks(blocks[:3], contents(blocks[:3]))
    assert store.put_blocks(blocks, contents(blocks)) == Kept(digests(blocks))
    assert store.put_blocks([], []) == Kept(())


# A server of Redis bounds itself.
@pytest.mark.parametrize("stores", ["host", "disk"], indirect=True)
def test_a_full_store_reports_that_and_keeps_what_fits(stores):
    store, blocks, room = stores.make(), names(CAPACITY + 3), rows(CAPACITY)
    kept = store.put_blocks(blocks, contents(blocks))
    assert kept.digests == digests(blocks[:CAPACITY])
    assert "no room is left" in kept.problem
    assert store.get_blocks(blocks[:CAPACITY], room) == Found(CAPACITY)
    assert whole(blocks[:CAPACITY], room)


# Memory needs no headers.
@pytest.mark.parametrize("stores", ["disk", "redis"], indirect=True)
def test_names_that_no_header_holds_are_refused(stores):
    store = stores.make()
    unfit, fit = name(0, tenant="x" * 129), name(1)
    kept = store.put_blocks([unfit, fit], contents([unfit, fit]))
    assert kept.digests == (fit.digest,)
    assert "tenant is longer than 128 bytes" in kept.problem


def test_memory_that_changed_is_not_given_back():
    store, blocks, room = HostStore(FORMAT, CAPACITY, choose_transfer()), names(6), rows(6)
    store.put_blocks(blocks, contents(blocks))
    for slot in (2, 4):
        store._rows[slot][1_234] ^= 4
    damaged = (blocks[2].digest, blocks[4].digest)
    assert store.get_blocks(blocks, room) == Found(2, corrupt=damaged)
    assert whole(blocks[:2], room[:2])
    assert store.get_blocks(blocks, room) == Found(2, missing=damaged[:1])
    assert store.put_blocks(blocks, contents(blocks)) == Kept(digests(blocks))
    assert store.get_blocks(blocks, room) == Found(6)


def test_memory_that_no_machine_has():
    with pytest.raises(InvalidConfiguration, match="GiB of memory cannot be had"):
        HostStore(BlockFormat(FORMAT.root, 1 << 40), 1 << 20, choose_transfer())


numbers = st.lists(st.integers(0, 15), max_size=8, unique=True)


@settings(max_examples=30)
@given(calls=st.lists(st.tuples(st.sampled_from(["put", "get", "forget"]), numbers), max_size=20))
def test_a_store_is_a_bounded_dictionary(stores, calls):
    """Held to the plainest store there is; room is made before it is taken, as owners do."""
    store, held = stores.make(), set()
    for verb, some in calls:
        blocks = [name(number) for number in some]
        if verb == "put":
            blocks = [b for b in blocks if b in held or len(held | set(blocks)) <= CAPACITY]
            assert store.put_blocks(blocks, contents(blocks)) == Kept(digests(blocks))
            held |= set(blocks)
        elif verb == "forget":
            store.forget_blocks(digests(blocks))
            held -= set(blocks)
        else:
            room = rows(len(blocks))
            have = next((i for i, b in enumerate(blocks) if b not in held), len(blocks))
            missing = digests(blocks[have : have + 1])
            assert store.get_blocks(blocks, room) == Found(have, missing=missing)
            assert whole(blocks[:have], room[:have])
