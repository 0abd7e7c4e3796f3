"""Where a running cluster keeps its files: who runs it, keys, set-ups, logs.

Owns the directory from `claim` to `clear`: one supervisor at a time, by a lock that ends with its
process. Knows nothing of what the files of others mean.
"""

import errno
import fcntl
import os
import shutil
import signal
import stat
from pathlib import Path
from typing import BinaryIO

import msgspec

from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.live.launching.private_directory import (
    NotPrivate,
    check_parents,
    names_in,
    opened_private,
    read_private,
    write_private,
)


def started_ticks(pid: int) -> int:
    """When the process was started, in the kernel's ticks since it booted; 0 for none, or for one
    that has ended and is only waited for."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # Elsewhere than on Linux the number alone must do.
        return int(not Path("/proc/self").exists() and _answers(pid))
    # The name, in brackets, may hold anything.
    state, *rest = line.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(rest[18])


def alive(pid: int, ticks: int) -> bool:
    """Whether the process that began at `ticks` still runs: numbers of processes are used again,
    and the instant of their start tells them apart."""
    return ticks > 0 and started_ticks(pid) == ticks


def send_signal(pid: int, ticks: int, number: signal.Signals) -> bool:
    """A signal for the process that began at `ticks`, if it still runs and is this user's; whether
    it was sent. Where the system has descriptors of processes, and does not forbid them, the number
    cannot come to mean another process in between."""
    try:
        descriptor = _opened(pid)
    except ProcessLookupError:
        return False
    try:
        # What is asked now is asked of the process that the descriptor stands for.
        if not alive(pid, ticks) or not _is_own(pid):
            return False
        _send(pid, descriptor, number)
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return True


def _opened(pid: int) -> int | None:
    """A descriptor of the process; None where there can be none (an old kernel, a sandbox). Raises
    `ProcessLookupError`."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno == errno.ESRCH:
            raise
        return None


def _send(pid: int, descriptor: int | None, number: signal.Signals) -> None:
    """Raises `ProcessLookupError` or `PermissionError`."""
    if descriptor is not None:
        try:
            signal.pidfd_send_signal(descriptor, number)
            return
        except OSError as error:
            if error.errno == errno.ESRCH:
                raise
    os.kill(pid, number)


def _is_own(pid: int) -> bool:
    """Elsewhere than on Linux the system is asked when the signal is sent."""
    proc = Path("/proc")
    return not (proc / "self").exists() or (proc / str(pid)).stat().st_uid == os.geteuid()


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


LOCK = "supervisor.lock"
RECORD = "cluster.json"
# Which adapters the gateways serve now.
ADAPTERS_FILE = "adapters.json"
# A key of an operator over HTTP, for whoever may read the directory.
OPERATOR_KEY_FILE = "operator.key"
# What a supervisor in the background prints; whoever starts it opens it first.
SUPERVISOR_LOG = "supervisor.log"


class ClusterRunning(TandemError):
    """Another supervisor has the directory."""


class ProcessRecord(msgspec.Struct, frozen=True):
    """One process: its number, and when the kernel began it. Whether one on another `host` lives is
    not known here."""

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

    def send(self, number: signal.Signals) -> bool:
        """A signal, if it is still this very process and this user's; whether it was sent."""
        return not self.host and send_signal(self.pid, self.started_ticks, number)


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
        check_parents(self.path)
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.mkdir(mode=0o700, exist_ok=True)
        self._check_owner()
        if not self._lock_file.exists() and any(self.path.iterdir()):
            raise InvalidConfiguration(
                f"{self.path} holds files that are no cluster's; choose another --state-dir"
            )
        self.path.chmod(0o700)
        with opened_private(self.path) as directory:
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(LOCK, flags, 0o600, dir_fd=directory))

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
        """Publish it; readers see the old or the new record, never half of one."""
        self.write_private("cluster.json.new", msgspec.json.encode(record))
        (self.path / "cluster.json.new").replace(self.path / RECORD)

    def read(self) -> ClusterRecord | None:
        """The record of the last supervisor, None where there is none that can be read. Raises
        `InvalidConfiguration` when somebody else may have written it."""
        try:
            return msgspec.json.decode(read_private(self.path / RECORD), type=ClusterRecord)
        except (FileNotFoundError, NotADirectoryError, msgspec.DecodeError):
            return None

    def write_private(self, name: str, content: bytes) -> Path:
        """A file that only its owner reads."""
        file = self.path / name
        write_private(file, content)
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
        found = self.path.lstat()
        # What lies in one that others could write to may be theirs, even if it is closed now.
        open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and any(self.path.iterdir())
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or open_to_others:
            raise NotPrivate(
                f"{self.path} is not this user's own directory; choose another --state-dir"
            )


def running_clusters(parent: Path) -> list[StateDirectory]:
    """Those in `parent` whose supervisor lives, by name. Raises `InvalidConfiguration` when it is
    somebody else's."""
    paths = [parent / name for name in names_in(parent)]
    found = [StateDirectory(path) for path in paths if path.is_dir()]
    return [directory for directory in found if directory.claimed]


def sweep(parent: Path, prefix: str) -> None:
    """Removes what dead supervisors left in directories of `parent` whose name begins so."""
    for name in names_in(parent):
        if not name.startswith(prefix):
            continue
        directory = StateDirectory(parent / name)
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
