"""The shared-memory connector: the way between processes of one host and user. Map the peer's
memory, copy with the processor.

A peer that dies or hangs leaves its memory readable, and nothing to wait for. It is mapped to be
read alone: only its owner writes to it.
"""

import errno
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from tandem.kernels.transfer import Transfer, choose_transfer
from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, batches, join_spans
from tandem.kv.connectors.transfer_handles import (
    TransferHandle,
    TransferHandles,
    parsed_description,
)
from tandem.kv.region import SEALS, Region, mapped
from tandem.kv.threads import WorkerThread

# How much is copied between two looks at whether to stop: less than a millisecond's worth.
COPY_BYTES: Final = 4 << 20
COPY_SPANS: Final = 4096
# Far more than a reader has under way; what goes beyond it fails.
MOST_WAITING: Final = 1 << 16
CLOSE_S: Final = 5.0
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROCESSES = Path("/proc/self/ns/pid")
# In /proc/PID/stat after the command's name: the state is field 3, the time of start field 22.
_START_FIELD = 22 - 3


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

    handle: TransferHandle
    spans: Spans
    peer_memory: NDArray[np.uint8]
    own: Region


class ShmConnector:
    """A thread copies in the background, one read after the other."""

    name: Final = "shm"

    def __init__(self, transfer: Transfer | None = None) -> None:
        self._transfer = transfer or choose_transfer()
        self._regions: list[Region] = []
        self._exported: Region | None = None
        self._peers: dict[str, NDArray[np.uint8]] = {}
        self._handles = TransferHandles()
        self._thread = WorkerThread[_Copy](
            "kv-shm", self._serve_copy, failed=self._failed, capacity=MOST_WAITING
        )
        self._thread.start_worker()

    def register_region(self, region: Region, *, exported: bool) -> int:
        if region.device != "cpu":
            raise ConnectorError(f"shm copies memory of the host, not of {region.device}")
        if exported:
            assert self._exported is None
            if region.descriptor < 0:
                raise ConnectorError("shm exports only memory with a file descriptor behind it")
            self._exported = region
        self._regions.append(region)
        return len(self._regions) - 1

    def describe_endpoint(self) -> bytes:
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

    def connect_peer(self, peer: str, description: bytes) -> None:
        found = parsed_description(peer, description, ShmDescription)
        try:
            self._peers[peer] = _map(found)
        except OSError as error:
            raise ConnectorError(f"the memory of {peer} cannot be mapped: {error}") from error

    def disconnect_peer(self, peer: str) -> None:
        # What is being copied keeps the mapping until its thread has seen that it shall stop.
        self._peers.pop(peer, None)
        self._handles.cancel_peer(peer, f"disconnected from {peer}")

    def memory_of(self, peer: str) -> NDArray[np.uint8]:
        """See the port `InPlace`."""
        if peer not in self._peers:
            raise ConnectorError(f"not connected to {peer}")
        return self._peers[peer]

    def begin_read(self, peer: str, spans: Spans, region_id: int) -> int:
        own, memory = self._regions[region_id], self._peers.get(peer)
        peer_bytes = None if memory is None else len(memory)
        handle = self._handles.open_checked(peer, spans, peer_bytes, own.bytes)
        if memory is not None and not handle.ended:
            begun = self._thread.post(_Copy(handle, join_spans(spans), memory, own))
            if not begun:
                self._handles.end_handle(handle, self._refusal())
        return handle.number

    def cancel_handle(self, handle: int) -> None:
        self._handles.cancel_handle(handle)

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        return self._handles.poll_completions(timeout_s)

    def close_connector(self) -> None:
        self._handles.end_all("the connector was closed")
        self._thread.stop_worker()
        self._thread.join_worker(CLOSE_S)

    def _serve_copy(self, copy: _Copy) -> bool:
        if self._handles.begin_handle(copy.handle):
            with self._handles.serving(copy.handle):
                self._perform(copy)
                self._handles.end_handle(copy.handle, copy.handle.stop)
        return True

    def _failed(self, failure: Exception, waiting: Sequence[_Copy]) -> None:
        """The connector is off: peers are read another way."""
        del waiting
        self._handles.end_all(f"the copies of shm failed: {failure!r}")

    def _perform(self, copy: _Copy) -> None:
        peer, own = copy.peer_memory.ctypes.data, copy.own.address
        for batch in batches(copy.spans, COPY_BYTES, COPY_SPANS):
            if copy.handle.stop:
                return
            self._transfer.copy_spans(
                own,
                peer,
                target_offsets=batch.local,
                source_offsets=batch.remote,
                lengths=batch.lengths,
            )

    def _refusal(self) -> str:
        """Why a copy is not even begun."""
        failure = self._thread.failure
        return (
            f"the copies of shm failed: {failure!r}" if failure else "too many copies wait already"
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


def host_identity() -> str:
    """Equal for two processes exactly when a process number means the same to both: one machine
    since one boot, one namespace of processes. Raises `OSError` where there is no such knowledge.
    """
    return f"{_BOOT.read_text().strip()} {_PROCESSES.readlink()}"


def start_of(process_id: int) -> int:
    """When a process began, in ticks since the boot: numbers are used again, pairs of number and
    start are not. Raises `OSError` when there is no such process."""
    text = Path(f"/proc/{process_id}/stat").read_text()
    # The name is in parentheses and may hold anything.
    return int(text[text.rindex(")") + 1 :].split()[_START_FIELD])
