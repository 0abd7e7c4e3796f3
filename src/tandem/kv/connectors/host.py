"""Whether a process named by its number is really the one that was meant."""

from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")
# In /proc/PID/stat after the command's name: the state is field 3, the time of start field 22.
_START_FIELD = 22 - 3


def host_identity() -> str:
    """Equal for two processes exactly when a process number means the same to both: one machine
    since one boot, one namespace of processes. Raises `OSError` where there is no such knowledge.
    """
    return f"{_BOOT.read_text().strip()} {_PROCESSES.readlink()}"


def start_of(process_id: int) -> int:
    """When a process began, in ticks since the boot: numbers are used again, pairs of number and
    start are not. Raises `OSError` when there is no such process."""
    text = Path(f"/proc/{process_id}/stat").read_text()
    # The name is in parentheses and may hold anything.
    return int(text[text.rindex(")") + 1 :].split()[_START_FIELD])
