"""Is that process still the one it was? Numbers of processes are used again; the instant of their
start tells them apart."""

import errno
import os
import signal
from pathlib import Path


def started_ticks(pid: int) -> int:
    """When the process was started, in the kernel's ticks since it booted; 0 for none, or for one
    that has ended and is only waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # Elsewhere than on Linux the number alone must do.
        return int(not Path("/proc/self").exists() and _answers(pid))
    # The name, in brackets, may hold anything.
    state, *rest = stat.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(rest[18])


def alive(pid: int, ticks: int) -> bool:
    """Whether the process that began at `ticks` still runs."""
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
