"""The one place that reads the machine and the environment variables."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a server may use. Memory in bytes, as it is now; a machine without CUDA has no GPU
    memory."""

    @property
    def has_cuda(self) -> bool:
        return self.gpu_total_bytes > 0

    cores: int
    free_memory_bytes: int
    gpu_total_bytes: int
    gpu_free_bytes: int
    api_keys: tuple[str, ...]


def machine_facts() -> MachineFacts:
    key = os.environ.get("TANDEM_API_KEY", "")
    gpu_free_bytes, gpu_total_bytes = (
        torch.cuda.mem_get_info() if torch.cuda.is_available() else (0, 0)
    )
    return MachineFacts(
        cores=_cores(),
        free_memory_bytes=_free_memory_bytes(),
        gpu_total_bytes=gpu_total_bytes,
        gpu_free_bytes=gpu_free_bytes,
        api_keys=(key,) if key else (),
    )


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
