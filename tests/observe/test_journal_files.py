"""Files of journals: what was written is read, whatever happened to the end of a file or to the
disk, and no more of it is kept than was said."""

import resource
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidConfiguration
from tandem.messages.cluster import Registered
from tandem.messages.gateway import PeerGone, TimePassed
from tandem.observe.journal.files import FileLimits, JournalFiles, is_journal, open_journal
from tandem.observe.journal.records import Head, Lost, PeerMessage, Reconfigured, Turn, encode

HEAD = Head(
    version="0",
    gateway="gateway-0",
    incarnation="65f0-1",
    number=0,
    turns_before=0,
    started_ns=1,
    wall_clock_s=2,
    cluster="model: tandem-mini",
    files={"config.json": "{}"},
    root=CacheRoot("model", "exact", b"layout"),
    block_size=16,
    terms=Registered("gateway-0", 1, 2, 3),
    model="model",
    revision="main",
    block_format=None,
)
UNLIMITED = resource.RLIM_INFINITY


def turn(number: int) -> Turn:
    # Nothing that compresses well.
    reason = Random(number).randbytes(200).hex()
    return Turn(number, (TimePassed(), PeerGone("w", reason, True)), (), ("w: NotNeeded", 3))


def written(folder: Path, count: int, limits: FileLimits, at_once: int = 1) -> list[Turn]:
    turns = [turn(number) for number in range(count)]
    files = JournalFiles(folder, HEAD, limits)
    for start in range(0, count, at_once):
        some = [encode(each) for each in turns[start : start + at_once]]
        files.append(some, len(some), ())
    files.end_file()
    return turns


def test_what_is_written_is_read(tmp_path):
    turns = written(tmp_path / "made", 20, FileLimits(), at_once=7)
    run = open_journal(tmp_path / "made")
    assert list(run.records()) == turns
    assert run.head == HEAD
    assert run.whole
    assert not run.others
    assert list(open_journal(run.files[0].path).records()) == turns
    assert run.files[0].path.stat().st_mode & 0o777 == 0o600


def test_files_end_at_their_size_and_only_the_newest_stay(tmp_path):
    turns = written(tmp_path, 60, FileLimits(file_bytes=2000, keep=1000))
    run = open_journal(tmp_path)
    assert len(run.files) > 5
    assert list(run.records()) == turns
    assert all(file.path.stat().st_size < 3000 for file in run.files)
    other = tmp_path / "other"
    written(other, 60, FileLimits(file_bytes=2000, keep=3))
    kept = open_journal(other)
    assert len(kept.files) == 3
    assert not kept.whole
    assert kept.head.turns_before > 40
    assert list(kept.records()) == turns[kept.head.turns_before :]


def test_files_begin_with_the_configuration_that_they_go_on_with(tmp_path):
    files = JournalFiles(tmp_path, HEAD, FileLimits(file_bytes=1, keep=2))
    applied = Reconfigured(1, "model: other", {}, True)
    for number, configured in enumerate((None, applied, applied)):
        files.append([encode(turn(number))], 1, (), configured)
    head = open_journal(tmp_path).head
    assert (head.number, head.cluster, head.files, head.plans) == (1, "model: other", {}, True)


def test_older_starts_of_a_gateway_count_to_what_is_kept(tmp_path):
    files = JournalFiles(tmp_path, HEAD, FileLimits(keep=2))
    files.append([encode(turn(1))], 1, ())
    for incarnation in ("65f1-7", "65f2-3"):
        later = JournalFiles(tmp_path, _head(incarnation=incarnation), FileLimits(keep=2))
        later.append([encode(turn(2))], 1, ())
    elsewhere = JournalFiles(tmp_path, _head(gateway="gateway-1"), FileLimits(keep=2))
    elsewhere.append([encode(turn(3))], 1, ())
    names = {path.name.rsplit(".", 2)[0] for path in tmp_path.iterdir()}
    assert names == {"gateway-0.65f1-7", "gateway-0.65f2-3", "gateway-1.65f0-1"}
    newest = open_journal(tmp_path)
    assert newest.name == "gateway-0.65f2-3"
    assert list(newest.others) == ["gateway-1.65f0-1", "gateway-0.65f1-7"]


def _head(**changed) -> Head:
    values = {name: getattr(HEAD, name) for name in HEAD.__struct_fields__}
    return Head(**(values | changed))


def test_a_last_chunk_that_was_cut_off_is_no_error(tmp_path):
    turns = written(tmp_path, 12, FileLimits(), at_once=3)
    (file,) = open_journal(tmp_path).files
    data = file.path.read_bytes()
    lengths = set()
    for size in range(len(data), 0, -1):
        file.path.write_bytes(data[:size])
        try:
            run = open_journal(tmp_path)
        except InvalidConfiguration:
            # Not even its head is whole.
            lengths.add("no head")
            continue
        read = list(run.records())
        assert read == turns[: len(read)]
        lengths.add(len(read))
    assert lengths == {"no head", 0, 3, 6, 9, 12}


def test_damage_is_a_gap_and_what_comes_after_it_is_read(tmp_path):
    turns = written(tmp_path, 40, FileLimits(file_bytes=2000, keep=1000))
    files = open_journal(tmp_path).files
    second = files[1].path
    data = bytearray(second.read_bytes())
    data[-20] ^= 0xFF
    second.write_bytes(bytes(data))
    read = list(open_journal(tmp_path).records())
    gaps = [place for place, each in enumerate(read) if isinstance(each, Lost)]
    assert gaps
    assert read[: gaps[0]] == turns[: gaps[0]]
    assert read[gaps[-1] + 1 :] == turns[-len(read[gaps[-1] + 1 :]) :]
    files[3].path.unlink()
    again = list(open_journal(tmp_path).records())
    assert any(isinstance(each, Lost) and each.turns > 0 for each in again)


def test_any_byte_that_is_bent_gives_no_wrong_turn(tmp_path):
    turns = written(tmp_path, 6, FileLimits(), at_once=2)
    (file,) = open_journal(tmp_path).files
    data = file.path.read_bytes()
    for place in range(0, len(data), 3):
        bent = bytearray(data)
        bent[place] ^= 0x55
        file.path.write_bytes(bytes(bent))
        try:
            read = list(open_journal(tmp_path).records())
        except InvalidConfiguration:
            continue
        kept = [each for each in read if isinstance(each, Turn)]
        assert kept == turns[: len(kept)]


@contextmanager
def no_file_beyond(size_bytes: int):
    """As on a full disk: a write beyond so many bytes of a file fails, its first part is done."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, UNLIMITED))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))


def test_nothing_of_a_chunk_stays_that_the_disk_would_not_take(tmp_path):
    files = JournalFiles(tmp_path, HEAD, FileLimits())
    files.append([encode(turn(1))], 1, ())
    size = next(tmp_path.iterdir()).stat().st_size
    with no_file_beyond(size + 40), pytest.raises(OSError, match="too large"):
        files.append([encode(turn(2))], 1, ())
    assert next(tmp_path.iterdir()).stat().st_size == size
    files.append([encode(Lost(1)), encode(turn(3))], 1, ())
    assert list(open_journal(tmp_path).records()) == [turn(1), Lost(1), turn(3)]


def test_a_file_that_has_no_room_for_its_head_is_none(tmp_path):
    files = JournalFiles(tmp_path, HEAD, FileLimits())
    with no_file_beyond(50), pytest.raises(OSError, match="too large"):
        files.append([encode(turn(1))], 1, ())
    assert list(tmp_path.iterdir()) == []
    files.append([encode(turn(2))], 1, ())
    run = open_journal(tmp_path)
    assert run.whole
    assert list(run.records()) == [turn(2)]


def test_what_is_no_journal_is_told(tmp_path):
    plain = tmp_path / "trace.jsonl"
    plain.write_text("{}")
    named = tmp_path / "g.1-1.000000.journal"
    named.write_text("something else")
    assert not is_journal(plain)
    assert is_journal(named)
    for path, problem in (
        (plain, "is no journal"),
        (tmp_path / "nowhere", "there is no journal"),
        (named, "is no journal, or nothing of it was written"),
    ):
        with pytest.raises(InvalidConfiguration, match=problem):
            open_journal(path)


def test_a_journal_of_another_format_is_refused(tmp_path):
    JournalFiles(tmp_path, _head(format=99), FileLimits()).append([encode(turn(1))], 1, ())
    with pytest.raises(InvalidConfiguration, match="format 99"):
        open_journal(tmp_path)
    other = tmp_path / "other"
    JournalFiles(other, _head(protocol=99), FileLimits()).append([encode(turn(1))], 1, ())
    with pytest.raises(InvalidConfiguration, match="protocol 99"):
        open_journal(other)


def test_who_is_there_stands_at_the_head_of_each_file(tmp_path):
    files = JournalFiles(tmp_path, HEAD, FileLimits(file_bytes=1))
    for number in range(3):
        files.append([encode(turn(number))], 1, (PeerMessage(f"w{number}", b"hello"),) * number)
    run = open_journal(tmp_path)
    heads = [open_journal(file.path).head for file in run.files[:1]]
    assert [head.members for head in heads] == [()]
    run.files[0].path.unlink()
    assert open_journal(tmp_path).head.members == (PeerMessage("w1", b"hello"),)
