"""The CUDA IPC connector: the way between GPU memory of one host. Map the peer's allocation, let
the GPU copy.

The peer's processor takes no part: one that dies or hangs leaves nothing to wait for. Copies run
on a stream of their own; whoever announces bytes has waited until they are there.
"""

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, join_spans
from tandem.kv.connectors.cuda_driver import HANDLE_BYTES, LIBRARY, CudaDriver
from tandem.kv.connectors.shm import host_identity
from tandem.kv.connectors.transfer_handles import (
    TransferHandle,
    TransferHandles,
    parsed_description,
    poll_until_ended,
)
from tandem.kv.region import Region

_HandleBytes = Annotated[bytes, msgspec.Meta(min_length=HANDLE_BYTES, max_length=HANDLE_BYTES)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class CudaIpcDescription(msgspec.Struct, frozen=True):
    """Memory of a process: `region_bytes` at `offset` of the allocation behind the handle."""

    host: str
    process_id: int
    handle: _HandleBytes
    offset: _Count
    region_bytes: _Count
    version: Literal[1] = 1


@dataclass(frozen=True, slots=True)
class _Peer:
    """The exported region starts at `offset` of the allocation, which is mapped at `mapping`."""

    mapping: int
    offset: int
    bytes: int

    @property
    def address(self) -> int:
        return self.mapping + self.offset


class CudaIpcConnector:
    """`device` is the number of the GPU whose memory is exported, and which copies. Making one
    raises `ConnectorError` where there is no CUDA driver or no such GPU. Own regions may lie on
    any GPU, or in host memory (pinned, or the copies are slow).

    torch's allocator must not use expandable segments: the driver cannot export those this way.
    """

    name: Final = "cuda-ipc"

    def __init__(self, device: int = 0, library: str = LIBRARY) -> None:
        self._driver = CudaDriver(device, library)
        self._device = device
        self._exported: Region | None = None
        self._regions: list[Region] = []
        self._peers: dict[str, _Peer] = {}
        self._copying: dict[int, TransferHandle] = {}
        self._handles = TransferHandles()
        self._closed = False
        # `close_connector` may come from another thread.
        self._lock = threading.Lock()

    def register_region(self, region: Region, *, exported: bool) -> int:
        if exported:
            assert self._exported is None
            if region.device != f"cuda:{self._device}":
                raise ConnectorError(
                    f"cuda-ipc exports memory of cuda:{self._device}, not of {region.device}"
                )
            self._exported = region
        self._regions.append(region)
        return len(self._regions) - 1

    def describe_endpoint(self) -> bytes:
        assert self._exported is not None
        handle, offset = self._driver.export(self._exported.address)
        return msgspec.msgpack.encode(
            CudaIpcDescription(
                host=_host(),
                process_id=os.getpid(),
                handle=handle,
                offset=offset,
                region_bytes=self._exported.bytes,
            )
        )

    def connect_peer(self, peer: str, description: bytes) -> None:
        found = parsed_description(peer, description, CudaIpcDescription)
        if found.host != _host():
            raise ConnectorError(f"{peer} is on another host, or in another namespace of processes")
        if found.process_id == os.getpid():
            raise ConnectorError(f"{peer} is this very process, which cuda-ipc cannot map")
        with self._lock:
            self._leave(peer, f"{peer} is connected anew")
            self._peers[peer] = _Peer(
                self._driver.open(found.handle), found.offset, found.region_bytes
            )

    def disconnect_peer(self, peer: str) -> None:
        with self._lock:
            self._leave(peer, f"disconnected from {peer}")

    def begin_read(self, peer: str, spans: Spans, region_id: int) -> int:
        own = self._regions[region_id]
        with self._lock:
            found = self._peers.get(peer)
            peer_bytes = found.bytes if found else None
            handle = self._handles.open_checked(peer, spans, peer_bytes, own.bytes)
            if found and self._handles.begin_handle(handle):
                pieces = join_spans(spans)
                target, source = pieces.local + own.address, pieces.remote + found.address
                try:
                    copies = self._driver.copy(
                        target.tolist(), source.tolist(), pieces.lengths.tolist()
                    )
                except ConnectorError as error:
                    self._handles.end_handle(handle, str(error))
                else:
                    self._copying[copies] = handle
        return handle.number

    def cancel_handle(self, handle: int) -> None:
        # What the GPU has begun it ends, in milliseconds, and nothing can hold it up.
        self._handles.cancel_handle(handle)

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        return poll_until_ended(self._handles, self._look, timeout_s)

    def close_connector(self) -> None:
        self._handles.end_all("the connector was closed")
        with self._lock:
            for peer in list(self._peers):
                self._leave(peer, "the connector was closed")
            if not self._closed:
                self._closed = True
                self._driver.release_context()

    def _look(self) -> bool:
        """End what is over; gives whether anything goes on."""
        with self._lock:
            for event, handle in list(self._copying.items()):
                try:
                    over, problem = self._driver.finished(event), ""
                except ConnectorError as error:
                    # An error of the GPU: the context, and with it all copies, are gone.
                    over, problem = True, str(error)
                if over:
                    del self._copying[event]
                    self._handles.end_handle(handle, problem or handle.stop)
            return bool(self._copying)

    def _leave(self, peer: str, problem: str) -> None:
        found = self._peers.pop(peer, None)
        if found is None:
            return
        for event, handle in list(self._copying.items()):
            if handle.peer == peer:
                del self._copying[event]
                self._handles.end_handle(
                    handle, _wait(self._driver, event) or handle.stop or problem
                )
        # What cannot be given back, after an error of the GPU, goes with the process.
        with suppress(ConnectorError):
            self._driver.unmap(found.mapping)


def _host() -> str:
    try:
        return host_identity()
    except OSError as error:
        raise ConnectorError(f"cuda-ipc cannot tell which host this is: {error}") from error


def _wait(driver: CudaDriver, event: int) -> str:
    """For the end of copies; gives the problem they had."""
    try:
        driver.wait(event)
    except ConnectorError as error:
        return str(error)
    return ""
