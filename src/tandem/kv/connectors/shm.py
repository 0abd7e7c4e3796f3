"""The way between processes of one host and user: map the peer's memory, copy with the processor.

A peer that dies or hangs leaves its memory readable, and nothing to wait for. It is mapped to be
read alone: only its owner writes to it.
"""

import errno
import fcntl
import os
import queue
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tandem.kernels.transfer.choose import choose_transfer
from tandem.kernels.transfer.contract import Transfer
from tandem.kv.connector import Completion, ConnectorError, Spans
from tandem.kv.connectors.host import host_identity, start_of
from tandem.kv.connectors.tickets import Ticket, Tickets
from tandem.kv.region import SEALS, Region, mapped
from tandem.kv.spans import batches, join_spans, problem_of
from tandem.kv.threads import SupervisedThread

# How much is copied between two looks at whether to stop: less than a millisecond's worth.
PIECE_BYTES: Final = 4 << 20
PIECE_SPANS: Final = 4096
CLOSE_S: Final = 5.0


class ShmDescription(msgspec.Struct, frozen=True):
    """Where a process keeps its exported memory. `inode` tells a descriptor used again."""

    host: str
    process_id: int
    start: int
    descriptor: int
    inode: int
    bytes: int
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class _Copy:
    """Bytes come from the peer's memory into one's own. `peer_memory` keeps the mapping
    of the peer in being."""

    ticket: Ticket
    spans: Spans
    peer_memory: NDArray[np.uint8]
    own: Region


class ShmConnector:
    """`threads` copy in the background, each one ticket at a time."""

    def __init__(self, transfer: Transfer | None = None, threads: int = 1) -> None:
        self._transfer = transfer or choose_transfer()
        self._regions: list[Region] = []
        self._exported: Region | None = None
        self._peers: dict[str, NDArray[np.uint8]] = {}
        self._tickets = Tickets()
        self._copies: queue.SimpleQueue[_Copy | None] = queue.SimpleQueue()
        self._threads = [
            SupervisedThread(f"kv-shm-{index}", self._serve, self._failed)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def name(self) -> str:
        return "shm"

    def register(self, region: Region, *, exported: bool) -> int:
        if region.device != "cpu":
            raise ConnectorError(f"shm copies memory of the host, not of {region.device}")
        if exported:
            assert self._exported is None
            if region.descriptor < 0:
                raise ConnectorError("shm exports only memory with a file descriptor behind it")
            self._exported = region
        self._regions.append(region)
        return len(self._regions) - 1

    def describe(self) -> bytes:
        assert self._exported is not None
        process_id = os.getpid()
        try:
            description = ShmDescription(
                host=host_identity(),
                process_id=process_id,
                start=start_of(process_id),
                descriptor=self._exported.descriptor,
                inode=os.fstat(self._exported.descriptor).st_ino,
                bytes=self._exported.bytes,
            )
        except OSError as error:
            raise ConnectorError(f"shm cannot tell peers of this process: {error}") from error
        return msgspec.msgpack.encode(description)

    def connect(self, peer: str, description: bytes) -> None:
        try:
            found = msgspec.msgpack.decode(description, type=ShmDescription)
            self._peers[peer] = _map(found)
        except msgspec.MsgspecError as error:
            raise ConnectorError(f"{peer} describes its memory in no known way: {error}") from error
        except OSError as error:
            raise ConnectorError(f"the memory of {peer} cannot be mapped: {error}") from error

    def disconnect(self, peer: str) -> None:
        # What is being copied keeps the mapping until its thread has seen that it shall stop.
        self._peers.pop(peer, None)
        self._tickets.cancel_peer(peer, f"disconnected from {peer}")

    def memory_of(self, peer: str) -> NDArray[np.uint8]:
        """See the port `InPlace`."""
        if peer not in self._peers:
            raise ConnectorError(f"not connected to {peer}")
        return self._peers[peer]

    def read(self, peer: str, spans: Spans, handle: int) -> int:
        own = self._regions[handle]
        ticket = self._tickets.open(peer)
        memory = self._peers.get(peer)
        if memory is None:
            self._tickets.end(ticket, f"not connected to {peer}")
        elif problem := problem_of(spans, len(memory), own.bytes):
            self._tickets.end(ticket, problem)
        else:
            self._copies.put(_Copy(ticket, join_spans(spans), memory, own))
        return ticket.number

    def write(self, peer: str, spans: Spans, handle: int) -> int:
        """Ends with a problem: peers only read."""
        del spans, handle
        ticket = self._tickets.open(peer)
        self._tickets.end(ticket, f"the memory of {peer} is only to be read")
        return ticket.number

    def cancel(self, ticket: int) -> None:
        self._tickets.cancel(ticket)

    def poll(self, timeout_s: float) -> list[Completion]:
        return self._tickets.poll(timeout_s)

    def close(self) -> None:
        self._tickets.close("the connector was closed")
        for _ in self._threads:
            self._copies.put(None)
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _serve(self) -> None:
        while (copy := self._copies.get()) is not None:
            if self._tickets.begin(copy.ticket):
                with self._tickets.served(copy.ticket):
                    self._perform(copy)
                    self._tickets.end(copy.ticket, copy.ticket.stop)

    def _failed(self, failure: Exception) -> None:
        """The connector is off: peers are read another way."""
        self._tickets.close(f"the copies of shm failed: {failure!r}")

    def _perform(self, copy: _Copy) -> None:
        peer, own = copy.peer_memory.ctypes.data, copy.own.address
        for piece in batches(copy.spans, PIECE_BYTES, PIECE_SPANS):
            if copy.ticket.stop:
                return
            self._transfer.copy_spans(
                own,
                peer,
                target_offsets=piece.local,
                source_offsets=piece.remote,
                lengths=piece.lengths,
            )


def _map(peer: ShmDescription) -> NDArray[np.uint8]:
    """Raises `OSError` or `ConnectorError` when the memory described is not to be had."""
    if peer.host != host_identity():
        raise ConnectorError("the peer is on another host, or in another namespace of processes")
    place = f"/proc/{peer.process_id}/fd/{peer.descriptor}"
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        # Asked after the opening: what is open now cannot be replaced any more.
        if start_of(peer.process_id) != peer.start:
            raise ConnectorError(f"process {peer.process_id} is not the one that was meant")
        state = os.fstat(descriptor)
        sealed = _seals_of(descriptor) & SEALS == SEALS
        if state.st_ino != peer.inode or state.st_size != peer.bytes or not sealed:
            raise ConnectorError(f"process {peer.process_id} has something else in that place")
        return mapped(descriptor, peer.bytes)
    finally:
        os.close(descriptor)


def _seals_of(descriptor: int) -> int:
    """Only memory made to be sealed ever has them all: a file in a tmpfs can be asked and has one,
    a file on a disk cannot even be asked."""
    try:
        return fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return 0
