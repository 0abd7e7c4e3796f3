"""Is that process still the one it was? Numbers of processes are used again; the instant of their
start tells them apart."""

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
    it was sent. The number cannot come to mean another process in between."""
    if not hasattr(os, "pidfd_open"):
        if alive(pid, ticks):
            os.kill(pid, number)
            return True
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # What is asked now is asked of the process that the descriptor stands for.
        if not alive(pid, ticks) or Path(f"/proc/{pid}").stat().st_uid != os.geteuid():
            return False
        signal.pidfd_send_signal(descriptor, number)
    except (ProcessLookupError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)
    return True


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
