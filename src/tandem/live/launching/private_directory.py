"""Files that belong to one user: nothing is read or written in a directory unless nobody else can
have put it there; and a secret that outlives clusters (`secret_of`), made once.

Directories under a shared one, such as `/tmp/tandem-1000`, may have been made by anybody. All goes
through a descriptor of the directory that was looked at, so that none can take its place later.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tandem.facts.errors import InvalidConfiguration
from tandem.live.channels.keys import make_pair

# How the numbers of users here are those of the system.
UID_MAP = Path("/proc/self/uid_map")
OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotPrivate(InvalidConfiguration):
    """Somebody else may have put what lies there."""


def why_not_private(found: os.stat_result) -> str:
    """Why what these facts are of could be somebody else's; empty if it cannot."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to another user (uid {found.st_uid})"
    if found.st_mode & OTHERS_WRITE:
        return f"may be written to by others (mode {stat.S_IMODE(found.st_mode):o})"
    return ""


def check_parents(path: Path) -> None:
    """Raises `NotPrivate` when folders above `path`, or links on the way to it, are neither this
    user's nor root's, or this user's and open to everybody: somebody else could put another one
    there. Root is believed to know what it opens (a volume of a container, say)."""
    own, stand_in = os.geteuid(), _stand_in_of_root()
    for parent in path.absolute().parents:
        with suppress(FileNotFoundError):
            found = parent.lstat()
            replaceable = _is_open(found) and not found.st_mode & stat.S_ISVTX
            if found.st_uid == 0 or (found.st_uid == own and not replaceable):
                continue
            # Any other user may look like root here, but makes things in open folders only.
            if found.st_uid == stand_in and not replaceable and not _is_open(parent.parent.lstat()):
                continue
            raise NotPrivate(
                f"{path} is not this user's own directory: {parent} {why_not_private(found)}; "
                "choose another --state-dir"
            )


def _is_open(found: os.stat_result) -> bool:
    """Whether everybody can make things in there."""
    return bool(stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_IWOTH)


def _stand_in_of_root() -> int | None:
    """Whose things root's seem to be in a user namespace that does not know root; None where it is
    known."""
    try:
        ranges = [line.split() for line in UID_MAP.read_text().splitlines()]
        if any(int(first) == 0 for first, _, _ in ranges):
            return None
        return int(OVERFLOW_UID.read_text())
    except (OSError, ValueError):
        return None


def names_in(path: Path) -> list[str]:
    """What lies in the directory, in order; nothing if there is none. Raises `NotPrivate`."""
    try:
        with opened_private(path) as directory, os.scandir(directory) as entries:
            return sorted(entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return []


@contextmanager
def opened_private(path: Path) -> Iterator[int]:
    """A descriptor of the directory. Raises `NotPrivate`, or `FileNotFoundError` and
    `NotADirectoryError` where there is none."""
    check_parents(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError:
        if path.is_symlink():
            raise NotPrivate(
                f"{path} is not this user's own directory but a link; choose another --state-dir"
            ) from None
        raise
    try:
        if problem := why_not_private(os.fstat(descriptor)):
            raise NotPrivate(
                f"{path} is not this user's own directory: it {problem}; choose another --state-dir"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def read_private(path: Path) -> bytes:
    """A file in such a directory. Raises as `opened_private`."""
    # Of what is no file (a pipe that nobody writes to) nothing is waited for.
    flags = os.O_RDONLY | os.O_NONBLOCK
    with (
        opened_private(path.parent) as directory,
        os.fdopen(_opened(path, flags, directory), "rb") as file,
    ):
        found = os.fstat(file.fileno())
        problem = why_not_private(found)
        if problem or not stat.S_ISREG(found.st_mode):
            raise NotPrivate(f"{path} {problem or 'is no file'}")
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """A file that only its owner reads, whatever was there. Raises as `opened_private`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    with (
        opened_private(path.parent) as directory,
        os.fdopen(_opened(path, flags, directory), "wb") as file,
    ):
        os.fchmod(file.fileno(), 0o600)
        file.write(content)


def _opened(path: Path, flags: int, directory: int) -> int:
    try:
        return os.open(path.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotPrivate(f"{path} is a link, and was not followed") from error
        raise


_MOST_BYTES: Final = 256


def secret_of(file: Path) -> str:
    """What the file holds; where there is none, it is made. Raises `InvalidConfiguration` where the
    file is another user's, or readable by others, or no file at all."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.path.lexists(file):
            _make(file)
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
            state = os.fstat(opened.fileno())
            theirs = state.st_uid != os.geteuid() or state.st_mode & 0o077
            if theirs or not stat.S_ISREG(state.st_mode):
                raise InvalidConfiguration(
                    f"{file} is to be a file of this user that nobody else reads; remove it"
                )
            secret = opened.read(_MOST_BYTES).decode("ascii", "replace").strip()
    except OSError as error:
        raise InvalidConfiguration(f"{file}: {error.strerror}") from error
    if len(secret) < len(make_pair().secret):
        raise InvalidConfiguration(
            f"{file} holds no whole secret; remove it, and a new one is made"
        )
    return secret


def _make(file: Path) -> None:
    """It appears whole; of several at the same moment the first one's stays. Raises `OSError`."""
    # For this user alone.
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    half = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as made:
            made.write(make_pair().secret.encode())
        with suppress(FileExistsError):
            file.hardlink_to(half)
    finally:
        half.unlink()
