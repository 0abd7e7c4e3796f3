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
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _all_cores(),
        free_memory_bytes=_free_memory_bytes(),
        gpu_total_bytes=gpu_total_bytes,
        gpu_free_bytes=gpu_free_bytes,
        api_keys=(key,) if key else (),
    )


def _all_cores() -> int:
    return os.cpu_count() or 1


def _free_memory_bytes() -> int:
    """Free memory, or the control group's limit when that is smaller (a container)."""
    free_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free_bytes = int(line.split()[1]) * 1024
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text().strip()).isdigit():
        free_bytes = min(free_bytes, int(text))
    return free_bytes
