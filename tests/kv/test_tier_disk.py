"""What a file of blocks survives: restarts, kills, other sizes, damage, a full disk."""

import itertools
import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.kv.tiers.contract import Found, Kept
from tandem.kv.tiers.disk import DiskConfig, DiskStore
from tandem.kv.tiers.disk_file import MAGIC, SUPERBLOCK_BYTES, DiskLayout
from tests.kv.ending import closing
from tests.kv.tier_blocks import FORMAT, contents, digests, name, names, rows, whole

CAPACITY = 8
LAYOUT = DiskLayout(FORMAT.block_bytes, CAPACITY)


def opened(path: Path, capacity: int = CAPACITY, format: BlockFormat = FORMAT, spare: int = 0):
    config = DiskConfig(path, capacity, spare)
    return closing(DiskStore(config, format, choose_transfer()))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "folder" / "worker-0.kv"


@pytest.fixture
def filled(path) -> Path:
    """A file that holds blocks 0 to 5."""
    with opened(path) as store:
        store.put_blocks(names(6), contents(names(6)))
    return path


def held(store: DiskStore) -> list[int]:
    """Which blocks a store gives back whole, of the first twenty."""
    found = []
    for number in range(20):
        room = rows(1)
        if store.get_blocks([name(number)], room) == Found(1):
            assert whole([name(number)], room)
            found.append(number)
    return found


def test_blocks_are_found_again_in_the_order_they_were_stored(path):
    order = [name(5, tenant="A"), name(2), name(7), name(0)]
    with opened(path) as store:
        assert store.stored_blocks() == ()
        assert store.notes == ()
        store.put_blocks(order, contents(order))
        store.forget_blocks([name(2).digest])
        store.put_blocks([name(9), name(2)], contents([name(9), name(2)]))
    with opened(path) as store:
        assert store.stored_blocks() == (order[0], name(7), name(0), name(9), name(2))
        assert held(store) == [0, 2, 5, 7, 9]
        assert store.notes == ()
        store.put_blocks([name(1)], contents([name(1)]))
    with opened(path) as store:
        assert store.stored_blocks()[-2:] == (name(2), name(1))


def test_the_file_takes_only_the_room_of_what_was_written_and_is_nobody_elses(path):
    with opened(path, 100_000) as store:
        store.put_blocks(names(2), contents(names(2)))
    assert path.stat().st_size > 300e6
    assert path.stat().st_blocks * 512 < 200_000
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("capacity", [1, 3, 5, 9, 200])
def test_another_capacity_keeps_what_fits(filled, capacity):
    with opened(filled, capacity) as store:
        kept = held(store)
        assert kept == list(range(6))[: min(capacity, 6)]
        assert len(store.stored_blocks()) == len(kept)
        more = names(capacity - len(kept), chain=1)
        assert store.put_blocks(more, contents(more)) == Kept(digests(more))
    with opened(filled, 300) as store:
        assert held(store) == kept
        assert len(store.stored_blocks()) == capacity
    assert filled.stat().st_size == DiskLayout(FORMAT.block_bytes, 300).bytes


def test_of_what_lies_there_the_newest_fits_the_capacity(path):
    """Spare places hold evicted blocks that were not forgotten yet when the process died."""
    with opened(path, 4, spare=3) as store:
        store.put_blocks(names(7), contents(names(7)))
    with opened(path, 4, spare=3) as store:
        assert store.stored_blocks() == tuple(names(7)[3:])
        assert held(store) == [3, 4, 5, 6]


@pytest.mark.parametrize("other", [BlockFormat(b"x" * 16, 3_000), BlockFormat(FORMAT.root, 4_096)])
def test_a_file_of_another_format_is_begun_anew(filled, other):
    with opened(filled, format=other) as store:
        assert "begun anew" in store.notes[0]
        assert store.stored_blocks() == ()
        assert store.get_blocks(names(1), rows(1, other.block_bytes)).blocks == 0
    with opened(filled) as store:
        assert held(store) == []


def test_a_file_that_is_something_else_is_left_as_it_is(path):
    path.parent.mkdir()
    path.write_bytes(b"Dear diary, " * 1000)
    with pytest.raises(InvalidConfiguration, match=r"holds something else.*move it away"):
        opened(path)
    assert path.read_bytes() == b"Dear diary, " * 1000


def test_one_process_at_a_time(filled):
    with opened(filled):
        with pytest.raises(InvalidConfiguration, match="in use by another process"):
            opened(filled)
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        with pytest.raises(InvalidConfiguration):
            opened(filled)
        assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    with opened(filled) as store:
        assert len(held(store)) == 6


def test_a_place_where_no_file_can_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidConfiguration, match=r"tiers\.disk: .*Not a directory|exists"):
        opened(tmp_path / "file" / "worker-0.kv")
    with pytest.raises(InvalidConfiguration, match="Is a directory"):
        opened(tmp_path)


def test_a_disk_that_is_too_small_is_reported(path):
    size = os.statvfs(path.parent.parent)
    large = BlockFormat(FORMAT.root, size.f_blocks * size.f_frsize // 10)
    with opened(path, 20, format=large) as store:
        assert "the tier will hold less than its capacity" in store.notes[0]


def places(layout: DiskLayout = LAYOUT) -> list[int]:
    """Somewhere in every part of a file, and at its borders."""
    chosen = random.Random(1)
    borders = [0, SUPERBLOCK_BYTES, layout.headers_offset, layout.bytes]
    near = [b + d for b in borders for d in (-1, 0, 1, 8, 17) if 0 <= b + d < layout.bytes]
    slots = [layout.slot_offset(3) + d for d in (-1, 0, 1_500, 2_999, 3_000)]
    headers = [layout.header_offset(2) + d for d in (0, 8, 16, 24, 28, 60, 200, 255)]
    return [*near, *slots, *headers, *(chosen.randrange(layout.bytes) for _ in range(60))]


@pytest.mark.parametrize("while_open", [False, True])
def test_no_flipped_bit_comes_out(filled, while_open):
    truth = filled.read_bytes()
    for place in places():
        filled.write_bytes(truth)
        store = opened(filled).thing if while_open else None
        with filled.open("r+b") as file:
            file.seek(place)
            file.write(bytes([truth[place] ^ 1 << place % 8]))
        if place < len(MAGIC) and not while_open:
            # Nobody can know whose file that is.
            with pytest.raises(InvalidConfiguration, match="holds something else"):
                opened(filled)
            continue
        with closing(store or opened(filled).thing) as store:
            kept = held(store)  # compares every byte
            assert set(kept) <= set(range(6))
            # Damage to one block or header costs no other; to the superblock it may cost all.
            assert len(kept) >= 5 or (place < SUPERBLOCK_BYTES and kept == [])
            more = names(2, chain=1)
            assert store.put_blocks(more, contents(more)) == Kept(digests(more))


@pytest.mark.parametrize("while_open", [False, True])
def test_a_shorter_file_gives_what_is_left(filled, while_open):
    truth = filled.read_bytes()
    for length in sorted({0, 5, *range(1_000, LAYOUT.bytes, 1_777)}):
        filled.write_bytes(truth)
        store = opened(filled).thing if while_open else None
        os.truncate(filled, length)
        with closing(store or opened(filled).thing) as store:
            # Headers are known to whoever has read them; blocks are there while their bytes are.
            ends = [LAYOUT.slot_offset(i) + LAYOUT.block_bytes for i in range(6)]
            if not while_open:
                ends = [LAYOUT.header_offset(i + 1) for i in range(6)]
            assert held(store) == [i for i, end in enumerate(ends) if end <= length]
            more = names(2, chain=1)
            assert store.put_blocks(more, contents(more)) == Kept(digests(more))
            assert store.get_blocks(more, rows(2)) == Found(2)


def test_a_corrupt_block_is_dropped_and_named(filled):
    with opened(filled) as store:
        with filled.open("r+b") as file:
            file.seek(LAYOUT.slot_offset(2) + 100)
            file.write(b"damage")
        room = rows(6)
        assert store.get_blocks(names(6), room) == Found(2, corrupt=(name(2).digest,))
        assert whole(names(2), room[:2])
        assert store.get_blocks(names(6), room) == Found(2, missing=(name(2).digest,))
        assert store.put_blocks([name(2)], contents([name(2)])) == Kept((name(2).digest,))
        assert store.get_blocks(names(6), room) == Found(6)


def write_for_ever(path: Path, begun: int) -> None:
    with opened(path) as store:
        os.write(begun, b"!")
        for turn in itertools.count():
            store.forget_blocks(digests([name((turn + i) % 20) for i in range(8, 12)]))
            blocks = [name((turn + i) % 20) for i in range(4)]
            store.put_blocks(blocks, contents(blocks))


def test_a_writer_killed_at_any_time(path):
    """Only its own blocks are found again, whole, and the store goes on."""
    chosen = random.Random(7)
    for _ in range(25):
        ended, begun = os.pipe()
        writer = os.fork()
        if not writer:
            try:
                write_for_ever(path, begun)
            finally:
                os._exit(1)
        os.close(begun)
        assert os.read(ended, 1) == b"!"
        # Not to wait for something: to be early or late.
        time.sleep(chosen.uniform(0.0, 0.03))
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        os.close(ended)
        with opened(path) as store:
            assert len(held(store)) == len(store.stored_blocks()) <= CAPACITY
            assert store.notes == ()
    assert len(store.stored_blocks()) > 0


def test_a_full_disk_refuses_what_does_not_fit(path):
    """The limit of a process's files is one way of being full that needs no disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with opened(path) as store:
        assert store.put_blocks(names(2), contents(names(2))) == Kept(digests(names(2)))
        resource.setrlimit(resource.RLIMIT_FSIZE, (LAYOUT.slot_offset(2) + 5_000, before[1]))
        try:
            kept = store.put_blocks(names(5), contents(names(5)))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert kept.digests == digests(names(2))
        assert "File too large" in kept.problem
        assert held(store) == [0, 1]
        assert store.put_blocks(names(5), contents(names(5))) == Kept(digests(names(5)))
        assert held(store) == [0, 1, 2, 3, 4]


def test_a_disk_without_room_refuses_and_recovers(tmp_path):
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        with opened(tmp_path / "worker-0.kv", 40) as store:
            assert "room for" in store.notes[0]
            blocks = names(30)
            kept = [store.put_blocks([block], contents([block])) for block in blocks]
            stored = [b for b, k in zip(blocks, kept, strict=True) if k.digests]
            assert 8 < len(stored) < 20
            assert all("No space left" in k.problem for k in kept if not k.digests)
            assert store.get_blocks(stored, room := rows(len(stored))) == Found(len(stored))
            assert whole(stored, room)
            # What is forgotten is written over, where the disk has given room already.
            store.forget_blocks(digests(stored[:4]))
            assert store.put_blocks(names(3, chain=1), contents(names(3, chain=1))).problem == ""
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_disk_that_fails_loses_blocks_and_nothing_else(filled):
    store = opened(filled).thing
    # Reading and writing fail from here on, as they do when a device has gone.
    unreadable = os.open(filled, os.O_PATH)
    descriptor = store._file._descriptor
    saved = os.dup(descriptor)
    os.dup2(unreadable, descriptor)
    try:
        found = store.get_blocks(names(3), rows(3))
        assert (found.blocks, found.corrupt) == (0, (name(0).digest,))
        assert "Bad file descriptor" in found.problem
        kept = store.put_blocks([name(9)], contents([name(9)]))
        assert (kept.digests, bool(kept.problem)) == ((), True)
        store.forget_blocks([name(1).digest])
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)
        os.close(unreadable)
    assert held(store) == [2, 3, 4, 5]
    store.close_store()
