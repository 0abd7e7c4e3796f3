"""The one place that reads the environment variables and asks the system what this machine has."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostFacts:
    """What processes on this machine may use. Memory in bytes, as it is now."""

    cores: int
    free_memory_bytes: int
    api_keys: tuple[str, ...]


def host_facts() -> HostFacts:
    key = os.environ.get("TANDEM_API_KEY", "")
    return HostFacts(_cores(), _free_memory_bytes(), (key,) if key else ())


def may_have_gpu() -> bool:
    """False only where there surely is none; torch knows more, after seconds."""
    return any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))


def runtime_directory() -> Path:
    """Where this user's processes keep files while they run."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if given and Path(given).is_dir() and os.access(given, os.W_OK):
        return Path(given) / "tandem"
    return Path(f"/tmp/tandem-{os.getuid()}")


def cache_directory() -> Path:
    """Where this user's processes keep files that are of use to the next start."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if given else Path.home() / ".cache") / "tandem"


def child_environment(**changed: str) -> dict[str, str]:
    """The environment of a process that this one starts."""
    return {**os.environ, **changed}


def _cores() -> int:
    """Cores this process may run on; a container's quota of processor time counts as well."""
    allowed = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if allowed else os.cpu_count() or 1
    quota = _control_group("cpu.max")
    return min(cores, max(1, quota[0] // quota[1])) if quota else cores


def _free_memory_bytes() -> int:
    """Free memory, or the control group's limit when that is smaller (a container)."""
    free_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free_bytes = int(line.split()[1]) * 1024
    limit_bytes, used_bytes = _control_group("memory.max"), _control_group("memory.current")
    if limit_bytes:
        spare_bytes = limit_bytes[0] - (used_bytes[0] if used_bytes else 0)
        free_bytes = min(free_bytes, max(0, spare_bytes))
    return free_bytes


def _control_group(name: str) -> list[int]:
    """The numbers of a file of this process's control group; none without such a limit."""
    file = Path("/sys/fs/cgroup") / name
    words = file.read_text().split() if file.exists() else []
    return [int(word) for word in words] if all(word.isdigit() for word in words) else []
