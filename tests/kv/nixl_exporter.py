"""A process that serves memory over NIXL: `python -m tests.kv.nixl_exporter BYTES`.

The memory holds `content(BYTES)`. One line on standard output describes it; each line
`OFFSET LENGTH` on standard input is answered by a checksum; the end of input is the end.
"""

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors.nixl import NixlConnector
from tandem.kv.region import SharedRegion

ROOT = Path(__file__).parents[2]


def content(size: int) -> NDArray[np.uint8]:
    return np.random.default_rng(size).integers(1, 256, size, dtype=np.uint8)


class Exporter:
    """The process as its parent sees it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.content = content(size)
        self._start()

    def start_if_dead(self) -> None:
        """Another process in its place, with the same memory."""
        if self.process.poll() is not None:
            self.close()
            self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kv.nixl_exporter", str(self.size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # UCX's own messages would go to standard output.
            env=os.environ | {"UCX_LOG_FILE": "stderr"},
        )
        self.description = bytes.fromhex(self.answer())

    def checksum(self, offset: int, length: int) -> int:
        assert self.process.stdin is not None
        print(offset, length, file=self.process.stdin, flush=True)
        return int(self.answer())

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self) -> None:
        """Returns when it surely does nothing more."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@contextmanager
def exporting(size: int) -> Iterator[Exporter]:
    exporter = Exporter(size)
    try:
        yield exporter
    finally:
        exporter.close()


def main(size: int) -> None:
    shared = SharedRegion.create(size, "exporter")
    shared.view[:] = content(size)
    connector = NixlConnector(f"exporter-{os.getpid()}")
    connector.register_region(shared.region, exported=True)
    print(connector.describe_endpoint().hex(), flush=True)
    for line in sys.stdin:
        offset, length = map(int, line.split())
        print(zlib.crc32(shared.view[offset : offset + length]), flush=True)
    connector.close_connector()


if __name__ == "__main__":
    main(int(sys.argv[1]))
