"""The way to one peer: a connection, and the thread that carries out what is asked of it.

A connection that broke is made anew for the next ticket.
"""

import queue
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tandem.kv.connector import ConnectorError, Spans
from tandem.kv.connectors import tcp_frames as frames
from tandem.kv.connectors.tcp_door import TcpLimits
from tandem.kv.connectors.tcp_server import pieces_of
from tandem.kv.connectors.tcp_stream import Stream
from tandem.kv.connectors.tickets import Ticket, Tickets
from tandem.kv.spans import batches
from tandem.kv.threads import SupervisedThread

# Requests under way: while the bytes of one are on the way, the next is already known.
_WINDOW = 2
_SLICE_S = 0.05


@dataclass(frozen=True, slots=True)
class Carry:
    """Joined spans, checked at both ends; `memory` is one's own."""

    ticket: Ticket
    kind: frames.Kind
    spans: Spans
    memory: memoryview


@dataclass(frozen=True, slots=True)
class Way:
    """Where a peer listens and what to prove to it."""

    peer: str
    address: tuple[str, int]
    credentials: frames.Credentials
    entropy: Callable[[int], bytes]
    limits: TcpLimits


class TcpLink:
    """Raises `ConnectorError` when the peer cannot be reached now."""

    def __init__(self, way: Way, tickets: Tickets) -> None:
        self._way = way
        self._tickets = tickets
        self._carries: queue.SimpleQueue[Carry | None] = queue.SimpleQueue()
        self._ended = ""
        self._broken = ""
        self._serving: Ticket | None = None
        self._stream: Stream | None = self._connected()
        self._thread = SupervisedThread("kv-tcp-link", self._serve, self._failed)
        self._thread.start()

    def put(self, carry: Carry) -> None:
        self._carries.put(carry)
        if self._broken:
            self._fail_waiting(self._broken)

    def end(self, why: str) -> None:
        """Carry nothing more; what is under way ends soon."""
        self._ended = why
        self._carries.put(None)

    def join(self, patience_s: float) -> None:
        self._thread.join(patience_s)

    @property
    def alive(self) -> bool:
        return self._thread.alive

    def _serve(self) -> None:
        while (carry := self._carries.get()) is not None:
            if self._tickets.begin(carry.ticket):
                with self._tickets.served(carry.ticket):
                    self._tickets.end(carry.ticket, self._carry(carry))
        self._drop()

    def _failed(self, failure: Exception) -> None:
        """This way to the peer is no more; the next connection to it is another."""
        self._broken = f"{self._way.peer}: the link failed: {failure!r}"
        self._drop()
        self._fail_waiting(self._broken)

    def _carry(self, carry: Carry) -> str:
        """Gives the problem, if there was one."""
        self._serving = carry.ticket
        try:
            if self._stream is not None and self._stream.stale():
                self._drop()
            if self._stream is None:
                self._stream = self._connected()
            self._exchange(self._stream, carry)
        except ConnectorError as error:
            # What may still come over this connection belongs to nobody.
            self._drop()
            if not self._stop():
                self._fail_waiting(f"{self._way.peer}: {error}")
            return self._stop() or f"{self._way.peer}: {error}"
        finally:
            self._serving = None
        return ""

    def _fail_waiting(self, problem: str) -> None:
        """Those behind a ticket that found the peer out of reach shall not each find out alone."""
        for _ in range(self._carries.qsize()):
            try:
                carry = self._carries.get_nowait()
            except queue.Empty:
                return
            if carry is None:
                self._carries.put(None)
            elif self._tickets.begin(carry.ticket):
                self._tickets.end(carry.ticket, problem)

    def _exchange(self, stream: Stream, carry: Carry) -> None:
        under_way: deque[Spans] = deque()
        for frame in batches(carry.spans, frames.FRAME_BYTES, frames.FRAME_SPANS):
            self._ask(stream, carry, frame)
            under_way.append(frame)
            if len(under_way) == _WINDOW:
                self._finish(stream, carry, under_way.popleft())
        while under_way:
            self._finish(stream, carry, under_way.popleft())

    def _ask(self, stream: Stream, carry: Carry, frame: Spans) -> None:
        parts = [memoryview(frames.request(carry.kind, frame.remote, frame.lengths))]
        if carry.kind is frames.Kind.WRITE:
            parts += pieces_of(carry.memory, frame.local, frame.lengths)
        stream.send(parts, self._way.limits.silence_s)

    def _finish(self, stream: Stream, carry: Carry, frame: Spans) -> None:
        """Take the answer to one request."""
        silence_s = self._way.limits.silence_s
        reply = bytearray(frames.REPLY_BYTES)
        stream.receive([memoryview(reply)], silence_s)
        frames.check_reply(bytes(reply), frame.bytes)
        if carry.kind is frames.Kind.READ:
            stream.receive(pieces_of(carry.memory, frame.local, frame.lengths), silence_s)

    def _stop(self) -> str:
        """Why to end early, if so."""
        return self._ended or (self._serving.stop if self._serving else "")

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connected(self) -> Stream:
        return connected(self._way, self._stop, _SLICE_S)


def connected(way: Way, give_up: Callable[[], str], slice_s: float) -> Stream:
    """A new connection over which the proofs have been exchanged. Raises `ConnectorError`."""
    try:
        connection = socket.create_connection(way.address, way.limits.connect_s)
    except OSError as error:
        raise ConnectorError(f"{way.peer} cannot be reached: {error}") from error
    stream = Stream(connection, give_up, slice_s)
    try:
        prove(stream, way)
    except ConnectorError as error:
        stream.close()
        raise ConnectorError(f"{way.peer} does not answer as it should: {error}") from error
    return stream


def prove(stream: Stream, way: Way) -> None:
    """Show the server that the secret is known, and see that it knows it."""
    seconds, calls = way.limits.connect_s, 8
    data = bytearray(frames.GREETING_BYTES)
    stream.receive([memoryview(data)], seconds, most_calls=calls)
    server_nonce = frames.parse_greeting(bytes(data))
    client_nonce = way.entropy(frames.NONCE_BYTES)
    stream.send([memoryview(frames.answer(way.credentials, server_nonce, client_nonce))], seconds)
    proof = bytearray(frames.PROOF_BYTES)
    stream.receive([memoryview(proof)], seconds, most_calls=calls)
    frames.check_proof(way.credentials, server_nonce, client_nonce, bytes(proof))
