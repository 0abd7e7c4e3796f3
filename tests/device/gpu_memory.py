"""Memory of a GPU, or what stands in for it, and a process that exports some:
`python -m tests.device.gpu_memory BYTES [LIBRARY]`.

One line on standard output describes the memory; each line on standard input is answered by a
checksum of all of it; the end of input is the end.
"""

import ctypes
import mmap
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tandem.kv.connectors.cuda_driver import LIBRARY
from tandem.kv.connectors.cuda_ipc import CudaIpcConnector
from tandem.kv.region import Region

# Something else lies before the memory in its allocation.
BEFORE = 4096


def content(size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)


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


class Exporter:
    """The process as its parent sees it."""

    def __init__(self, size: int, library: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.device.gpu_memory", str(size), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self.description = bytes.fromhex(self._answer())

    def checksum(self) -> int:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return int(self._answer())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def main(size: int, library: str) -> None:
    memory = GpuMemory(size, library)
    memory.put(content(size))
    connector = CudaIpcConnector(0, library)
    connector.register_region(memory.region, exported=True)
    print(connector.describe_endpoint().hex(), flush=True)
    for _ in sys.stdin:
        print(zlib.crc32(memory.get()), flush=True)
    connector.close_connector()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
