"""A process that exports memory, for others to reach it: `python -m tests.kv.exporter NAME BYTES`.

The memory holds `content(bytes)`. One line on standard output describes it; each line
`OFFSET LENGTH` on standard input is answered by a checksum; the end of input is the end.
"""

import binascii
import os
import secrets
import signal
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors.contract import Connector
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.connectors.tcp.connector import DEFAULT_LIMITS, TcpConnector
from tandem.kv.connectors.tcp.handshake import TcpLimits
from tandem.kv.region import SharedRegion

ROOT = Path(__file__).parents[2]
SECRET = b"what only this cluster knows"


def content(bytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng(bytes).integers(0, 256, bytes, dtype=np.uint8)


def make_connector(name: str, limits: TcpLimits = DEFAULT_LIMITS) -> Connector:
    if name == "shm":
        return ShmConnector()
    writable = replace(limits, writable=True)
    return TcpConnector("127.0.0.1", SECRET, entropy=secrets.token_bytes, limits=writable)


class Exporter:
    """The process as its parent sees it. `description` is what its connector tells peers."""

    def __init__(self, name: str, bytes: int) -> None:
        command = [sys.executable, "-m", "tests.kv.exporter", name, str(bytes)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self.name = name
        self.bytes = bytes
        self.content = content(bytes)
        self.description = binascii.unhexlify(self._line().strip())

    def checksum(self, offset: int, length: int) -> int:
        assert self.process.stdin is not None
        print(offset, length, file=self.process.stdin, flush=True)
        return int(self._line())

    def stop(self) -> None:
        """It stands still when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        """Without effect on the dead."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, also of a stopped process."""
        self.process.kill()
        self.process.wait()

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


@contextmanager
def exporting(name: str, bytes: int) -> Iterator[Exporter]:
    exporter = Exporter(name, bytes)
    try:
        yield exporter
    finally:
        exporter.kill()
        for stream in (exporter.process.stdin, exporter.process.stdout):
            assert stream is not None
            stream.close()


def main(name: str, bytes: int) -> None:
    shared = SharedRegion.create(bytes, "exporter")
    shared.view[:] = content(bytes)
    connector = make_connector(name)
    connector.register_region(shared.region, exported=True)
    print(connector.describe_endpoint().hex(), flush=True)
    for line in sys.stdin:
        offset, length = map(int, line.split())
        print(zlib.crc32(shared.view[offset : offset + length]), flush=True)
    connector.close_connector()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
