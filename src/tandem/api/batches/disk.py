"""What the store of batches does to the disk, so that a process that is killed at any moment leaves
a state to go on from: records that appear whole or not at all, journals of whole lines, a lock."""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration

_HALF = ".half"


def write_record(path: Path, data: bytes) -> None:
    """Whole, and on the disk when this returns. Raises `OSError`."""
    half = path.with_name(path.name + _HALF)
    try:
        with open(half, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    except OSError:
        with suppress(OSError):
            remove(half)
        raise
    sync_directory(path.parent)


def remove_halves(directory: Path) -> None:
    """Of records that were being written when a process ended."""
    for half in directory.glob(f"*{_HALF}"):
        remove(half)


def write_all(descriptor: int, data: bytes) -> None:
    """At the end of what was written so far."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def remove(path: Path) -> None:
    """It need not be there."""
    with suppress(FileNotFoundError):
        path.unlink()


def sync_directory(path: Path) -> None:
    """Names of its files are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class Journal:
    """A file of lines that grows at its end. Opening it cuts off what was not written whole, from
    the first line on that `accept` refuses. Use it from one thread at a time."""

    def __init__(self, path: Path, accept: Callable[[bytes], bool]) -> None:
        """Raises `OSError`."""
        is_new = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Whether something may stand behind the last whole line.
        self._is_torn = True
        try:
            self.size_bytes = self._whole_bytes(accept)
            self._cut()
            if is_new:
                sync_directory(path.parent)
        except OSError:
            os.close(self._descriptor)
            raise

    def _whole_bytes(self, accept: Callable[[bytes], bool]) -> int:
        whole = 0
        with open(self._descriptor, "rb", closefd=False) as lines:
            for line in lines:
                if not line.endswith(b"\n") or not accept(line):
                    break
                whole += len(line)
        return whole

    def append(self, lines: bytes) -> None:
        """On the disk when this returns; of what raises `OSError` nothing is there."""
        self._cut()
        self._is_torn = True
        try:
            view, end = memoryview(lines), self.size_bytes + len(lines)
            while view:
                view = view[os.pwrite(self._descriptor, view, end - len(view)) :]
            os.fsync(self._descriptor)
        except OSError:
            # A disk that is full may still be cut; if not, it is before the next lines.
            with suppress(OSError):
                self._cut()
            raise
        self.size_bytes += len(lines)
        self._is_torn = False

    def _cut(self) -> None:
        if self._is_torn:
            os.ftruncate(self._descriptor, self.size_bytes)
            self._is_torn = False

    def close(self) -> None:
        """Once."""
        os.close(self._descriptor)


class DirectoryLock:
    """That of one process on a directory, until it ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        """Raises `InvalidConfiguration` where another has it, and `OSError`."""
        self._descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise InvalidConfiguration(
                f"batch-directory: another server (process {owner or 'unknown'}) uses {directory}; "
                "end it, or choose another folder"
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)
