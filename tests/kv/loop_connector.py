"""A connector within one process, and everything that may go wrong with one, on demand."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from threading import Event

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, problem_of
from tandem.kv.region import Region


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
    """Copies within `poll_completions`, one read a call. `released` cleared: nothing moves, like a
    peer that hangs. `before_copy` is told the number of the read and its spans. `reading`: a read
    was asked for."""

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
        self._handles = count()
        self._description = b""

    def register_region(self, region: Region, *, exported: bool) -> int:
        self.own.append(region)
        if exported:
            self._description = self.net.export(region)
        return len(self.own) - 1

    def describe_endpoint(self) -> bytes:
        return self._description

    def connect_peer(self, peer: str, description: bytes) -> None:
        self.connected.append(peer)
        if self.refusal:
            raise ConnectorError(self.refusal)
        self.peers[peer] = self.net.regions[description]

    def disconnect_peer(self, peer: str) -> None:
        self.peers.pop(peer, None)
        for handle in [handle for handle, (whose, *_) in self._open.items() if whose == peer]:
            self._finish(handle, "disconnected")

    def begin_read(self, peer: str, spans: Spans, region_id: int) -> int:
        if peer not in self.peers:
            raise ConnectorError(f"{peer} is not connected")
        handle = next(self._handles)
        self._open[handle] = (peer, spans, region_id)
        self.reading.set()
        return handle

    def begin_write(self, peer: str, spans: Spans, region_id: int) -> int:
        raise AssertionError("the target always reads")

    def cancel_handle(self, handle: int) -> None:
        if self.ends_cancelled and handle in self._open:
            self._finish(handle, "cancelled")

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        if not self._over and self.released.wait(timeout_s) and self._open:
            self._copy(min(self._open))
        over, self._over = self._over, []
        return over

    def close_connector(self) -> None:
        self.released.set()

    def _copy(self, handle: int) -> None:
        peer, spans, region_id = self._open[handle]
        source, target = self.peers[peer], self.own[region_id]
        if self.before_copy:
            self.before_copy(handle, spans)
        problem = self.problems.get(handle) or problem_of(spans, source.bytes, target.bytes)
        if not problem:
            pieces = (spans.remote.tolist(), spans.local.tolist(), spans.lengths.tolist())
            for remote, local, length in zip(*pieces, strict=True):
                ctypes.memmove(target.address + local, source.address + remote, length)
        self._finish(handle, problem)

    def _finish(self, handle: int, problem: str) -> None:
        del self._open[handle]
        self._over.append(Completion(handle, problem))


class MappedLoopConnector(LoopConnector):
    """Readers copy by themselves."""

    def memory_of(self, peer: str) -> NDArray[np.uint8]:
        if peer not in self.peers:
            raise ConnectorError(f"{peer} is not connected")
        region = self.peers[peer]
        array = (ctypes.c_uint8 * region.bytes).from_address(region.address)
        return np.ctypeslib.as_array(array)
