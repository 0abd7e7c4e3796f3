"""Writes the access log beside the event loop: lines wait in memory, and a thread appends them to
their file. Where that is too slow or full, lines are lost and counted, and calls go on.

A file that was moved (by logrotate, say) is made anew, so nobody need be told that it was. Several
gateways may share one: what is appended at once stays together.
"""

import logging
import os
from pathlib import Path
from threading import Event, Lock

import msgspec

from tandem.facts.errors import InvalidConfiguration
from tandem.kv.threads import SupervisedThread

logger = logging.getLogger(__name__)

STANDARD_OUTPUT = "-"
# So much waits at most; it is written this often, and at the end for so long.
QUEUED_BYTES = 8 << 20
FLUSH_S = 0.2
LINGER_S = 2.0


class LostLines(msgspec.Struct, frozen=True):
    """Stands in the log where so many lines are missing."""

    lost_lines: int


class AccessLogWriter:
    """The `LineSink` of a process, from `start` to `stop_writing`. `path` is a file, which is made
    readable for its owner alone, or `-` for the standard output. Raises `InvalidConfiguration` for
    one that cannot be written."""

    def __init__(self, path: str, queued_bytes: int = QUEUED_BYTES) -> None:
        self._path = None if path == STANDARD_OUTPUT else Path(path).expanduser().absolute()
        self._queued_bytes = queued_bytes
        self.lost_lines = 0
        try:
            self._descriptor = self._opened()
        except OSError as error:
            raise InvalidConfiguration(
                f"access-log: cannot write {path}: {error.strerror}; choose another file"
            ) from error
        self._lock = Lock()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._refused = 0
        self._wanted = Event()
        self._ending = self._failed = False
        self._thread = SupervisedThread("access log", self._write_on, self._writing_failed)
        # Of the thread: lost since the log was last written.
        self._unsaid = 0
        self._warned = False

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def write(self, line: bytes) -> None:
        """See `LineSink`."""
        with self._lock:
            if self._failed or self._waiting_bytes + len(line) > self._queued_bytes:
                self._refused += 1
                return
            self._waiting.append(line)
            self._waiting_bytes += len(line)

    def stop_writing(self) -> None:
        """Write what waits, for a moment at most."""
        self._ending = True
        self._wanted.set()
        if self._thread.alive:
            self._thread.join(LINGER_S)

    def _opened(self) -> int:
        if self._path is None:
            return os.dup(1)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        return os.open(self._path, flags, 0o600)

    def _write_on(self) -> None:
        while not self._ending:
            self._wanted.wait(FLUSH_S)
            self._write_waiting()
        self._write_waiting()
        os.close(self._descriptor)

    def _write_waiting(self) -> None:
        with self._lock:
            lines, self._waiting, self._waiting_bytes = self._waiting, [], 0
            refused, self._refused = self._refused, 0
        if not lines and not refused:
            return
        if self._unsaid:
            lines.insert(0, msgspec.json.encode(LostLines(self._unsaid)) + b"\n")
        try:
            self._reopen_if_moved()
            _write_all(self._descriptor, b"".join(lines))
        except OSError as error:
            self._warn(f"it cannot be written: {error}")
            refused += len(lines) - bool(self._unsaid)
        else:
            self._unsaid, self._warned = 0, bool(refused) and self._warned
        if refused:
            self._warn("calls end faster than it is written")
        # What was refused came after what waited: the next lines say it.
        self._unsaid += refused
        self.lost_lines += refused

    def _warn(self, why: str) -> None:
        """Once, until it is written again."""
        if not self._warned:
            logger.warning("the access log misses lines: %s", why)
        self._warned = True

    def _reopen_if_moved(self) -> None:
        if self._path is None:
            return
        here = os.fstat(self._descriptor)
        try:
            there = self._path.stat()
        except FileNotFoundError:
            there = None
        if there is not None and (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            return
        moved, self._descriptor = self._descriptor, self._opened()
        os.close(moved)

    def _writing_failed(self, failure: Exception) -> None:
        """Calls go on without."""
        self._failed = True
        logger.error("the access log ends here: %s", failure)


def access_log(path: str) -> AccessLogWriter | None:
    """The log of the option `access-log`, which may be empty. Raises `InvalidConfiguration`."""
    return AccessLogWriter(path) if path else None


def _write_all(descriptor: int, data: bytes) -> None:
    """A file takes all at once, a pipe perhaps not."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
