"""A connector within one process, and everything that may go wrong with one, on demand."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from threading import Event

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connector import Completion, ConnectorError, Spans
from tandem.kv.region import Region
from tandem.kv.spans import problem_of


@dataclass
class LoopNet:
    """What all connectors of a test can reach, by description."""

    regions: dict[bytes, Region] = field(default_factory=dict)
    numbers: count = field(default_factory=count)

    def export(self, region: Region) -> bytes:
        description = b"loop %d" % next(self.numbers)
        self.regions[description] = region
        return description


class LoopConnector:
    """Copies within `poll`, one ticket a call. `released` cleared: nothing moves, like a peer that
    hangs. `before_copy` is told the number of the read and its spans. `reading`: a read was asked
    for."""

    def __init__(self, net: LoopNet, name: str = "loop") -> None:
        self.name = name
        self.net = net
        self.own: list[Region] = []
        self.peers: dict[str, Region] = {}
        self.connected: list[str] = []
        self.refusal = ""
        self.reading = Event()
        self.released = Event()
        self.released.set()
        self.before_copy: Callable[[int, Spans], None] | None = None
        self.problems: dict[int, str] = {}
        self.ends_cancelled = True
        self._open: dict[int, tuple[str, Spans, int]] = {}
        self._over: list[Completion] = []
        self._tickets = count()
        self._description = b""

    def register(self, region: Region, *, exported: bool) -> int:
        self.own.append(region)
        if exported:
            self._description = self.net.export(region)
        return len(self.own) - 1

    def describe(self) -> bytes:
        return self._description

    def connect(self, peer: str, description: bytes) -> None:
        self.connected.append(peer)
        if self.refusal:
            raise ConnectorError(self.refusal)
        self.peers[peer] = self.net.regions[description]

    def disconnect(self, peer: str) -> None:
        self.peers.pop(peer, None)
        for ticket in [ticket for ticket, (whose, *_) in self._open.items() if whose == peer]:
            self._finish(ticket, "disconnected")

    def read(self, peer: str, spans: Spans, handle: int) -> int:
        if peer not in self.peers:
            raise ConnectorError(f"{peer} is not connected")
        ticket = next(self._tickets)
        self._open[ticket] = (peer, spans, handle)
        self.reading.set()
        return ticket

    def write(self, peer: str, spans: Spans, handle: int) -> int:
        raise AssertionError("the target always reads")

    def cancel(self, ticket: int) -> None:
        if self.ends_cancelled and ticket in self._open:
            self._finish(ticket, "cancelled")

    def poll(self, timeout_s: float) -> list[Completion]:
        if not self._over and self.released.wait(timeout_s) and self._open:
            self._copy(min(self._open))
        over, self._over = self._over, []
        return over

    def close(self) -> None:
        self.released.set()

    def _copy(self, ticket: int) -> None:
        peer, spans, handle = self._open[ticket]
        source, target = self.peers[peer], self.own[handle]
        if self.before_copy:
            self.before_copy(ticket, spans)
        problem = self.problems.get(ticket) or problem_of(spans, source.bytes, target.bytes)
        if not problem:
            pieces = (spans.remote.tolist(), spans.local.tolist(), spans.lengths.tolist())
            for remote, local, length in zip(*pieces, strict=True):
                ctypes.memmove(target.address + local, source.address + remote, length)
        self._finish(ticket, problem)

    def _finish(self, ticket: int, problem: str) -> None:
        del self._open[ticket]
        self._over.append(Completion(ticket, problem))


class MappedLoopConnector(LoopConnector):
    """Readers copy by themselves."""

    def memory_of(self, peer: str) -> NDArray[np.uint8]:
        if peer not in self.peers:
            raise ConnectorError(f"{peer} is not connected")
        region = self.peers[peer]
        array = (ctypes.c_uint8 * region.bytes).from_address(region.address)
        return np.ctypeslib.as_array(array)
