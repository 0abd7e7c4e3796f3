"""What lies where the disk tier wants its file, put there by somebody else: it is refused in one
line and left as it is."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.kv import BlockFormat
from tandem.kernels.transfer import choose_transfer
from tandem.kv.tiers.disk import DiskConfig, DiskStore
from tests.kv.ending import closing
from tests.kv.tier_blocks import FORMAT, contents, digests, names, rows

DIARY = b"Dear diary, " * 1000
NOBODY = 65_534


def opened(path: Path, format: BlockFormat = FORMAT) -> closing[DiskStore]:
    return closing(DiskStore(DiskConfig(path, 8), format, choose_transfer()))


@pytest.fixture
def folder(tmp_path) -> Path:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def file(folder) -> Path:
    return folder / "w-0.kv"


@pytest.fixture
def diary(tmp_path) -> Path:
    """Somewhere else, of the same user."""
    file = tmp_path / "diary"
    file.write_bytes(DIARY)
    return file


def refused(path: Path, words: str) -> None:
    """In one line that names the file and what to do, with nothing left open."""
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(InvalidConfiguration, match=words) as raised:
        opened(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith("tiers.disk: ")
    assert "left as it is" in message
    assert "name " in message


def test_a_link_is_not_followed(folder, file, diary):
    file.symlink_to(diary)
    refused(file, r"w-0\.kv is a symbolic link")
    assert diary.read_bytes() == DIARY
    # Nor one that leads nowhere yet, where a file would be made.
    (folder / "w-1.kv").symlink_to(folder.parent / "planted")
    refused(folder / "w-1.kv", r"w-1\.kv is a symbolic link")
    assert not (folder.parent / "planted").exists()


def test_a_link_in_place_of_the_folder_is_not_followed(folder, tmp_path):
    (tmp_path / "linked").symlink_to(folder)
    refused(tmp_path / "linked" / "w-0.kv", "linked is a symbolic link.*name the folder")
    assert list(folder.iterdir()) == []


def test_further_up_links_are_the_administrators(tmp_path):
    """As where /var or a home lies on another disk."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "var").symlink_to(tmp_path / "disk")
    with opened(tmp_path / "var" / "kv" / "w-0.kv") as store:
        assert store.put_blocks(names(1), contents(names(1))).digests == digests(names(1))
    assert (tmp_path / "disk" / "kv").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("content", [DIARY, b"\0" * 8192, b"tandem", b"t", b"tandemk" + bytes(9)])
def test_a_file_that_it_does_not_know_is_not_emptied(file, content):
    file.write_bytes(content)
    if b"tandemkv".startswith(content):
        # Its own file, cut short.
        with opened(file) as store:
            assert store.stored_blocks() == ()
        return
    refused(file, "holds something else than KV blocks")
    assert file.read_bytes() == content


def test_its_own_file_of_another_model_is_begun_anew(file):
    with opened(file) as store:
        store.put_blocks(names(3), contents(names(3)))
    with opened(file, BlockFormat(b"x" * 16, FORMAT.block_bytes)) as store:
        assert "begun anew" in store.notes[0]
        assert store.stored_blocks() == ()
        assert store.get_blocks(names(1), rows(1)).blocks == 0


def test_a_second_name_of_a_file_is_not_taken_for_it(file, diary):
    os.link(diary, file)
    refused(file, "has 2 names")
    assert diary.read_bytes() == DIARY


def socket_file(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("no device may be made here")


@pytest.mark.parametrize("make", [os.mkfifo, socket_file, device])
def test_what_is_no_file_is_refused_at_once(file, make: Callable[[Path], None]):
    make(file)
    refused(file, "is no regular file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_refused(file, tmp_path):
    file.touch(mode=0o666)
    os.chown(file, NOBODY, NOBODY)
    refused(file, r"w-0\.kv belongs to another user")
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o777)
    os.chown(theirs, NOBODY, NOBODY)
    refused(theirs / "w-0.kv", "theirs belongs to another user")
    assert list(theirs.iterdir()) == []


def test_a_file_that_others_could_read_is_closed_to_them(file):
    with opened(file) as store:
        store.put_blocks(names(2), contents(names(2)))
    file.chmod(0o664)
    with opened(file) as store:
        assert len(store.stored_blocks()) == 2
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_open_file_mask_opens_nothing(folder, tmp_path):
    before = os.umask(0)
    try:
        opened(tmp_path / "new" / "w-0.kv").thing.close_store()
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new" / "w-0.kv").stat().st_mode & 0o777 == 0o600
