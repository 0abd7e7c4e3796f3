"""A process that exports memory, for others to reach it: `python -m tests.kv.exporter NAME BYTES`;
and a connector of the test's process that reads it.

The memory holds `content(bytes)`. One line on standard output describes it; the end of input is the
end.
"""

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.transfer import Transfer, choose_transfer
from tandem.kv.connectors.contract import Connector, ConnectorError, Spans
from tandem.kv.connectors.nixl import NixlConnector
from tandem.kv.connectors.shm import ShmConnector
from tandem.kv.connectors.tcp.connector import DEFAULT_LIMITS, TcpConnector
from tandem.kv.connectors.tcp.stream import TcpLimits
from tandem.kv.region import SharedRegion
from tests.kv.ending import closing

ROOT = Path(__file__).parents[2]
SECRET = b"what only this cluster knows"
END_S = 20.0


def content(bytes: int) -> NDArray[np.uint8]:
    return np.random.default_rng(bytes).integers(1, 256, bytes, dtype=np.uint8)


def make_connector(name: str, limits: TcpLimits = DEFAULT_LIMITS) -> Connector:
    if name == "shm":
        return ShmConnector()
    if name == "nixl":
        return NixlConnector(f"agent of {os.getpid()}")
    return TcpConnector("127.0.0.1", SECRET, entropy=secrets.token_bytes, limits=limits)


class Child:
    """A process of `python -m MODULE ARGUMENTS`, for as long as the context lasts. `first_line` is
    what it wrote first to standard output; the end of its standard input is its end."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._command = [sys.executable, "-m", module, *map(str, arguments)]
        self._start()

    def start_if_dead(self) -> None:
        """Another process in its place."""
        if self.process.poll() is not None:
            self.close()
            self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            # UCX's own messages would go to standard output.
            env=os.environ | {"UCX_LOG_FILE": "stderr"},
        )
        assert self.process.stdout is not None
        self.first_line = self.process.stdout.readline()

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

    def close(self) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Exporter(Child):
    """The process as its parent sees it. `description` is that of its connector."""

    def __init__(self, name: str, bytes: int) -> None:
        self.name = name
        self.bytes = bytes
        self.content = content(bytes)
        super().__init__("tests.kv.exporter", name, bytes)

    @property
    def description(self) -> bytes:
        return bytes.fromhex(self.first_line)


class Exporting(Protocol):
    """What exports memory, in this process or another; peers get its `description`."""

    name: str
    bytes: int
    content: NDArray[np.uint8]
    description: bytes


class Gate:
    """Copies of shared memory that wait for as long as the gate is shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self._real = choose_transfer()

    def transfer(self) -> Transfer:
        guarded = copy(self._real)
        guarded.copy_spans = self.copy_spans
        return guarded

    def copy_spans(self, target_address: int, source_address: int, **pieces) -> None:
        assert self.open.wait(END_S)
        self._real.copy_spans(target_address, source_address, **pieces)


@dataclass
class Side:
    """A connector of this process, connected to an exporter as "peer". `ended` are the problems
    of all handles that have ended, in the order in which they did."""

    connector: Connector
    exporter: Exporter
    own: SharedRegion
    region_id: int
    gate: Gate = field(default_factory=Gate)
    ended: dict[int, str] = field(default_factory=dict)

    def connect(self) -> None:
        try:
            self.connector.connect_peer("peer", self.exporter.description)
        except ConnectorError:
            # Over TCP, UCX now and then aborts a process whose last reader has left. Nothing here
            # can mend that (docs/cluster.md says what to use instead), nor is it what is tested.
            if self.exporter.name != "nixl":
                raise
            self.exporter.start_if_dead()
            self.connector.connect_peer("peer", self.exporter.description)

    def read(self, spans: Spans, peer: str = "peer") -> int:
        return self.connector.begin_read(peer, spans, self.region_id)

    def until_ended(self, count: int) -> dict[int, str]:
        """All that have ended when so many have."""
        while len(self.ended) < count:
            completions = self.connector.poll_completions(END_S)
            assert completions, f"{count - len(self.ended)} handles did not end"
            for completion in completions:
                assert completion.handle not in self.ended
                self.ended[completion.handle] = completion.problem
        return self.ended

    def ends(self, count: int) -> dict[int, str]:
        """The next that end, exactly so many."""
        before = set(self.ended)
        self.until_ended(len(before) + count)
        assert self.connector.poll_completions(0.0) == []
        assert len(self.ended) == len(before) + count
        return {handle: why for handle, why in self.ended.items() if handle not in before}

    def read_all(self, spans: Spans) -> str:
        handle = self.read(spans)
        return self.ends(1)[handle]

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """No read of more than the system buffers ends in here."""
        self.gate.open.clear()
        self.exporter.stop()
        try:
            yield
        finally:
            self.exporter.go_on()
            self.gate.open.set()


@contextmanager
def connected(exporter: Exporting, connector: Connector | None = None) -> Iterator[Side]:
    gate = Gate()
    if connector is None:
        shm = exporter.name == "shm"
        connector = ShmConnector(gate.transfer()) if shm else make_connector(exporter.name)
    with closing(SharedRegion.create(exporter.bytes, "reader")) as own, closing(connector):
        region_id = connector.register_region(own.region, exported=False)
        side = Side(connector, exporter, own, region_id, gate)
        side.connect()
        yield side


def spans_of(*pieces: tuple[int, int, int]) -> Spans:
    """Pieces as (remote, local, length)."""
    columns = np.array(pieces, dtype=np.int64).reshape(-1, 3).T
    return Spans(*columns)


def whole(bytes: int) -> Spans:
    return spans_of((0, 0, bytes))


def scattered(bytes: int, pieces: int, longest: int) -> Spans:
    """Pieces of any length and alignment; no two overlap at either end."""
    generator = np.random.default_rng(pieces)
    places = bytes // longest
    remote = generator.permutation(places)[:pieces].astype(np.int64) * longest
    local = generator.permutation(places)[:pieces].astype(np.int64) * longest
    lengths = generator.integers(0, longest, pieces)
    return Spans(remote + generator.integers(0, longest - lengths), local, lengths)


def after_copy(spans: Spans, source: NDArray[np.uint8], target: NDArray[np.uint8]) -> NDArray:
    """What a target holds after the pieces were copied into it."""
    found = target.copy()
    for remote, local, length in zip(spans.remote, spans.local, spans.lengths, strict=True):
        found[local : local + length] = source[remote : remote + length]
    return found


def main(name: str, bytes: int) -> None:
    shared = SharedRegion.create(bytes, "exporter")
    shared.view[:] = content(bytes)
    connector = make_connector(name)
    connector.register_region(shared.region, exported=True)
    print(connector.describe_endpoint().hex(), flush=True)
    sys.stdin.read()
    connector.close_connector()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
