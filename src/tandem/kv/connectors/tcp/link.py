"""The link to one TCP peer: a connection, and the thread that carries out what is asked of it.

A connection that broke is made anew for the next request.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.kv.connectors.contract import ConnectorError, Spans, batches
from tandem.kv.connectors.tcp import protocol as frames
from tandem.kv.connectors.tcp.stream import (
    PeerAddress,
    PeerConnection,
    Stream,
    pieces_of,
    pipelined,
)
from tandem.kv.connectors.transfer_handles import TransferHandle, TransferHandles
from tandem.kv.threads import WorkerThread

# Far more than a reader has under way; what goes beyond it fails.
_MOST_WAITING = 1 << 16


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """Joined spans to read, checked at both ends; `memory` is one's own."""

    handle: TransferHandle
    spans: Spans
    memory: memoryview


class TcpLink:
    """Making one raises `ConnectorError` when the peer cannot be reached now."""

    def __init__(self, address: PeerAddress, handles: TransferHandles) -> None:
        self._address = address
        self._handles = handles
        self._stopped = ""
        self._serving: TransferHandle | None = None
        self._connection = PeerConnection(address, self._stop)
        self._connection.connect()
        self._thread = WorkerThread[LinkRequest](
            "kv-tcp-link",
            self._serve_request,
            failed=self._failed,
            ended=self._connection.drop_stream,
            capacity=_MOST_WAITING,
        )
        self._thread.start_worker()

    def post_request(self, request: LinkRequest) -> None:
        """Its handle ends, whatever happens."""
        if not self._thread.post(request):
            self._end_waiting([request], self._failure() or "too many requests wait already")

    def stop_link(self, why: str) -> None:
        """Carry out nothing more; what is under way ends soon."""
        self._stopped = why
        self._thread.stop_worker()

    def join_link(self, patience_s: float) -> None:
        self._thread.join_worker(patience_s)

    @property
    def alive(self) -> bool:
        return self._thread.alive

    def _serve_request(self, request: LinkRequest) -> bool:
        if self._handles.begin_handle(request.handle):
            with self._handles.serving(request.handle):
                self._handles.end_handle(request.handle, self._problem_of(request))
        return True

    def _failed(self, failure: Exception, waiting: Sequence[LinkRequest]) -> None:
        """This way to the peer is no more; the next connection to it is another."""
        del failure
        self._end_waiting(waiting, self._failure())

    def _failure(self) -> str:
        failure = self._thread.failure
        return f"{self._address.peer}: the link failed: {failure!r}" if failure else ""

    def _problem_of(self, request: LinkRequest) -> str:
        """Carry it out; gives the problem, if there was one."""
        self._serving = request.handle
        try:
            with self._connection.talking() as stream:
                self._exchange(stream, request)
        except ConnectorError as error:
            if not self._stop():
                # Those behind it shall not each find out alone.
                self._end_waiting(self._thread.take_waiting(), str(error))
            return self._stop() or str(error)
        finally:
            self._serving = None
        return ""

    def _end_waiting(self, waiting: Sequence[LinkRequest], problem: str) -> None:
        for request in waiting:
            if self._handles.begin_handle(request.handle):
                self._handles.end_handle(request.handle, problem)

    def _exchange(self, stream: Stream, request: LinkRequest) -> None:
        silence_s = self._address.limits.silence_s

        def send(frame: Spans) -> None:
            stream.send_bytes([memoryview(frames.request(frame.remote, frame.lengths))], silence_s)

        def receive(frame: Spans) -> None:
            frames.check_reply(stream.receive_message(frames.REPLY_BYTES, silence_s), frame.bytes)
            stream.receive_bytes(pieces_of(request.memory, frame.local, frame.lengths), silence_s)

        pipelined(batches(request.spans, frames.FRAME_BYTES, frames.FRAME_SPANS), send, receive)

    def _stop(self) -> str:
        """Why to end early, if so."""
        return self._stopped or (self._serving.stop if self._serving else "")
