"""Memory of a GPU, or what stands in for it, and a process that exports some:
`python -m tests.device.gpu_memory BYTES [LIBRARY]`.

One line on standard output describes the memory; the end of input is the end.
"""

import ctypes
import mmap
import os
import sys

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.kv.connectors.cuda_driver import LIBRARY
from tandem.kv.connectors.cuda_ipc import CudaIpcConnector
from tandem.kv.region import Region
from tests.kv.exporter import Child, content

# Something else lies before the memory in its allocation.
BEFORE = 4096


class GpuMemory:
    """`size` bytes of "cuda:0", all zeros at first."""

    def __init__(self, size: int, library: str) -> None:
        if library == LIBRARY:
            whole = torch.zeros(BEFORE + size, dtype=torch.uint8, device="cuda:0")
        else:
            # Who opens memory of a GPU may write to it.
            descriptor = os.memfd_create("stand-in")
            os.ftruncate(descriptor, BEFORE + size)
            self._shared = np.frombuffer(mmap.mmap(descriptor, BEFORE + size), dtype=np.uint8)
            tell = ctypes.CDLL(library).stand_in_memory
            tell.argtypes = (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)
            tell(self._shared.ctypes.data, BEFORE + size, descriptor)
            whole = torch.from_numpy(self._shared)
        self._bytes = whole[BEFORE:]
        self.region = Region(self._bytes.data_ptr(), size, device="cuda:0")

    def put(self, values: NDArray[np.uint8]) -> None:
        self._bytes.copy_(torch.from_numpy(values))
        if self._bytes.is_cuda:
            torch.cuda.synchronize()

    def get(self) -> NDArray[np.uint8]:
        values: NDArray[np.uint8] = self._bytes.cpu().numpy().copy()
        return values


class Exporter(Child):
    """The process as its parent sees it."""

    def __init__(self, size: int, library: str) -> None:
        super().__init__("tests.device.gpu_memory", size, library)
        self.description = bytes.fromhex(self.first_line)


def main(size: int, library: str) -> None:
    memory = GpuMemory(size, library)
    memory.put(content(size))
    connector = CudaIpcConnector(0, library)
    connector.register_region(memory.region, exported=True)
    print(connector.describe_endpoint().hex(), flush=True)
    sys.stdin.read()
    connector.close_connector()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
