"""Where a running cluster keeps its files: who runs it, keys, set-ups, logs.

Owns the directory from `claim` to `clear`: one supervisor at a time, told by a lock that ends with
its process. Knows nothing of what the files of others mean.
"""

import fcntl
import os
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

import msgspec

from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.live.launching.process_identity import alive, started_ticks

LOCK = "supervisor.lock"
RECORD = "cluster.json"
# What a supervisor in the background says; whoever starts it opens it first.
SUPERVISOR_LOG = "supervisor.log"


class ClusterRunning(TandemError):
    """Another supervisor has the directory."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process: its number, and when the kernel says it began. Of one on another `host` nobody
    here knows whether it lives."""

    pid: int
    started_ticks: int
    host: str = ""

    @classmethod
    def of(cls, pid: int) -> "ProcessRecord":
        return cls(pid, started_ticks(pid))

    @classmethod
    def on(cls, host: str, pid: int) -> "ProcessRecord":
        """Of a process on that machine; empty for this one."""
        return cls(pid, 0, host) if host else cls.of(pid)

    @classmethod
    def own(cls) -> "ProcessRecord":
        return cls.of(os.getpid())

    @property
    def alive(self) -> bool:
        return alive(self.pid, self.started_ticks)


class ClusterRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A running cluster for whoever asks: `gateways` are endpoints for operators, by name; it is
    `ready` once every worker has joined."""

    name: str
    version: str
    supervisor: ProcessRecord
    ready: bool = False
    url: str = ""
    model: str | None = None
    gateways: dict[str, str] = {}
    processes: dict[str, ProcessRecord] = {}


class StateDirectory:
    """`path` is of one cluster, and its owner's alone."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None

    def prepare(self) -> None:
        """Have the directory. Raises `InvalidConfiguration` when it is somebody else's or holds
        other things."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._check_owner()
        if not self._lock_file.exists() and any(self.path.iterdir()):
            raise InvalidConfiguration(
                f"{self.path} holds files that are no cluster's; choose another --state-dir"
            )
        self.path.chmod(0o700)
        self._lock_file.touch(mode=0o600)

    def claim(self) -> None:
        """Take the directory, and drop what a dead supervisor left. Raises `ClusterRunning`, or
        `InvalidConfiguration` as `prepare`."""
        self.prepare()
        file = self._lock_file.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ClusterRunning(
                f"a cluster runs in {self.path} already; stop it with `tandem down`, or give this "
                "one another name"
            ) from error
        self._lock = file
        for entry in self.path.iterdir():
            if entry.name not in (LOCK, SUPERVISOR_LOG):
                _remove(entry)

    def clear(self) -> None:
        """Give the directory up, with all that is in it."""
        for entry in self.path.iterdir():
            if entry.name != LOCK:
                _remove(entry)
        self._lock_file.unlink(missing_ok=True)
        self.release()
        # Whoever claims it at this very moment keeps it.
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def release(self) -> None:
        """Give the directory up but leave the files, for whoever looks for what went wrong."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    @property
    def claimed(self) -> bool:
        """Whether a living supervisor has it."""
        record = self.read()
        return record is not None and record.supervisor.alive

    def write(self, record: ClusterRecord) -> None:
        """Tell everybody; readers see the old or the new record, never half of one."""
        self.write_private("cluster.json.new", msgspec.json.encode(record))
        (self.path / "cluster.json.new").replace(self.path / RECORD)

    def read(self) -> ClusterRecord | None:
        """What the last supervisor told, None where there is nothing or nothing readable."""
        try:
            return msgspec.json.decode((self.path / RECORD).read_bytes(), type=ClusterRecord)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    def write_private(self, name: str, content: bytes) -> Path:
        """A file that only its owner reads."""
        file = self.path / name
        file.touch(mode=0o600)
        file.chmod(0o600)
        file.write_bytes(content)
        return file

    def log_file(self, process: str) -> Path:
        return self.path / f"{process}.log"

    @property
    def logs(self) -> list[Path]:
        """Of all processes that ever wrote one."""
        return sorted(self.path.glob("*.log"))

    @property
    def _lock_file(self) -> Path:
        return self.path / LOCK

    def _check_owner(self) -> None:
        found, parent = self.path.lstat(), self.path.parent.stat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        # Whoever owns the folder above could put another one in its place.
        if not ours or parent.st_uid not in (os.getuid(), 0):
            raise InvalidConfiguration(
                f"{self.path} is not this user's own directory; choose another --state-dir"
            )


def running_clusters(parent: Path) -> list[StateDirectory]:
    """Those in `parent` whose supervisor lives, by name."""
    if not parent.is_dir():
        return []
    found = [StateDirectory(path) for path in sorted(parent.iterdir()) if path.is_dir()]
    return [directory for directory in found if directory.claimed]


def sweep(parent: Path, prefix: str) -> None:
    """Removes what dead supervisors left in directories of `parent` whose name begins so."""
    for path in sorted(parent.glob(f"{prefix}*")):
        directory = StateDirectory(path)
        if directory.read() is None or directory.claimed:
            continue
        try:
            directory.claim()
        except ClusterRunning:
            # Somebody else sweeps here, too.
            continue
        directory.clear()


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
