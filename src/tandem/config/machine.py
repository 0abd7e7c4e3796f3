"""The machine with its GPUs, as torch sees them."""

from dataclasses import dataclass

import torch

from tandem.config.environment import host_facts


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a server may use. Memory in bytes, as it is now; a machine without CUDA has no GPU
    memory. `gpus` are the GPUs' names."""

    @property
    def has_cuda(self) -> bool:
        return self.gpu_total_bytes > 0

    cores: int
    free_memory_bytes: int
    gpu_total_bytes: int
    gpu_free_bytes: int
    api_keys: tuple[str, ...]
    gpus: tuple[str, ...] = ()


def machine_facts() -> MachineFacts:
    host = host_facts()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpu_free_bytes, gpu_total_bytes = torch.cuda.mem_get_info() if gpus else (0, 0)
    return MachineFacts(
        cores=host.cores,
        free_memory_bytes=host.free_memory_bytes,
        gpu_total_bytes=gpu_total_bytes,
        gpu_free_bytes=gpu_free_bytes,
        api_keys=host.api_keys,
        gpus=tuple(torch.cuda.get_device_name(index) for index in range(gpus)),
    )
