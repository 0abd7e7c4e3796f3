"""A TCP stream for KV: opened with proofs that both sides know the cluster's secret, then scattered
memory in and out as whole messages, and no wait without an end.

Knows nothing of what the messages mean.
"""

import math
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors.contract import ConnectorError
from tandem.kv.connectors.tcp import protocol as frames

Frame = TypeVar("Frame")
# Pieces handed to the system at once; it takes at most 1,024.
_PIECES = 256
# The few bytes of a proof come in few calls from whoever means well.
_HANDSHAKE_CALLS = 8
_FRAMES_IN_FLIGHT = 2
# How often whoever waits for a peer looks for a reason to give up.
_SLICE_S = 0.05


class StreamEnded(ConnectorError):
    """The other side is gone, silent or not wanted any more: the connection is of no more use."""


class Stream:
    """Owns the socket. With every piece, and every `slice_s` of silence, it asks `give_up` for a
    reason to end."""

    def __init__(
        self,
        connection: socket.socket,
        give_up: Callable[[], str] = lambda: "",
        slice_s: float = math.inf,
    ) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._give_up = give_up
        self._slice_s = slice_s

    def send_bytes(self, pieces: Iterable[memoryview], patience_s: float) -> None:
        """All of the pieces. Raises `StreamEnded` when nothing moves for `patience_s`."""
        left = deque(piece for piece in pieces if len(piece))
        while left:
            _drop(left, self._patiently(self._socket.sendmsg, left, patience_s))

    def receive_bytes(
        self, pieces: Iterable[memoryview], patience_s: float, most_calls: int | None = None
    ) -> None:
        """Fill all of the pieces. Raises `StreamEnded` when nothing comes for `patience_s`, the
        other side closes, or it takes more than `most_calls` to collect them."""
        left = deque(piece for piece in pieces if len(piece))
        calls = 0
        while left:
            if calls == most_calls:
                raise StreamEnded("the other side sends in crumbs")
            count = self._patiently(self._receive_some, left, patience_s)
            if count == 0:
                raise StreamEnded("the other side closed the connection")
            _drop(left, count)
            calls += 1

    def receive_message(
        self, count: int, patience_s: float, most_calls: int | None = None
    ) -> bytes:
        """The next `count` bytes; see `receive_bytes`."""
        data = bytearray(count)
        self.receive_bytes([memoryview(data)], patience_s, most_calls)
        return bytes(data)

    def receive_head(self, count: int, idle_s: float, silence_s: float) -> bytes:
        """The first `count` bytes of a request, whose first byte may take `idle_s` to come."""
        return self.receive_message(1, idle_s) + self.receive_message(count - 1, silence_s)

    def is_stale(self) -> bool:
        """Whether something is there to be read, be it the end, though nothing was asked for."""
        self._socket.settimeout(0.0)
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def shut_stream(self) -> None:
        """From any thread: whoever waits here wakes to a `StreamEnded`."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The other side was faster.
            return

    def close_stream(self) -> None:
        """Give the socket back; by the thread that uses it."""
        self._socket.close()

    def _receive_some(self, pieces: list[memoryview]) -> int:
        return self._socket.recvmsg_into(pieces)[0]

    def _patiently(
        self,
        action: Callable[[list[memoryview]], int],
        left: "deque[memoryview]",
        patience_s: float,
    ) -> int:
        """Send or receive some bytes of what is left. Gives how many."""
        pieces = list(islice(left, _PIECES))
        silent_s = 0.0
        while silent_s < patience_s:
            if reason := self._give_up():
                raise StreamEnded(reason)
            wait_s = min(self._slice_s, patience_s - silent_s)
            self._socket.settimeout(wait_s)
            try:
                return action(pieces)
            except TimeoutError:
                silent_s += wait_s
            except OSError as error:
                raise StreamEnded(f"the connection broke: {error}") from error
        raise StreamEnded(f"the other side was silent for {patience_s:g} s")


def _drop(left: "deque[memoryview]", count: int) -> None:
    """Forget the first `count` bytes."""
    while count:
        first = left.popleft()
        if count < len(first):
            left.appendleft(first[count:])
            return
        count -= len(first)


def pipelined(
    frames: Iterable[Frame], send: Callable[[Frame], None], receive: Callable[[Frame], None]
) -> None:
    """Send each frame, and receive its answer in its turn: while the bytes of one are on the way,
    the next is already known to the other side."""
    under_way: deque[Frame] = deque()
    for frame in frames:
        send(frame)
        under_way.append(frame)
        if len(under_way) == _FRAMES_IN_FLIGHT:
            receive(under_way.popleft())
    for frame in under_way:
        receive(frame)


def pieces_of(
    memory: memoryview, offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> list[memoryview]:
    """The parts of a memory that spans name."""
    pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
    return [memory[offset : offset + length] for offset, length in pairs]


@dataclass(frozen=True, slots=True)
class TcpLimits:
    """Seconds. A connection ends when the other side takes longer: `connect_s` to be reached, and
    for each message before the proofs; `silence_s` within a message; `idle_s` between two
    requests. `connections` are served at once; when there are as many, the oldest of those that
    have not proved anything yet makes room for a new one."""

    connect_s: float = 2.0
    silence_s: float = 5.0
    idle_s: float = 600.0
    connections: int = 256


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Where a peer listens, and what to prove to it."""

    peer: str
    address: tuple[str, int]
    credentials: frames.Credentials
    entropy: Callable[[int], bytes]
    limits: TcpLimits


class PeerConnection:
    """The stream to a peer, opened when it is needed and anew when it broke. For one thread."""

    def __init__(self, address: PeerAddress, give_up: Callable[[], str]) -> None:
        self._address = address
        self._give_up = give_up
        self._stream: Stream | None = None

    def connect(self) -> Stream:
        """The open stream. Raises `ConnectorError` when the peer cannot be reached now."""
        if self._stream is not None and self._stream.is_stale():
            self.drop_stream()
        if self._stream is None:
            self._stream = open_stream(self._address, self._give_up, _SLICE_S)
        return self._stream

    @contextmanager
    def talking(self) -> Iterator[Stream]:
        """The open stream for an exchange. One over which something went wrong is of no more use:
        what may still come over it belongs to nobody."""
        try:
            yield self.connect()
        except ConnectorError as error:
            self.drop_stream()
            raise ConnectorError(f"{self._address.peer}: {error}") from error

    def drop_stream(self) -> None:
        """What is asked for next is asked over a new connection."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close_stream()


def open_stream(address: PeerAddress, give_up: Callable[[], str], slice_s: float) -> Stream:
    """A new connection over which the proofs have been exchanged. Raises `ConnectorError`."""
    try:
        connection = socket.create_connection(address.address, address.limits.connect_s)
    except OSError as error:
        raise ConnectorError(f"{address.peer} cannot be reached: {error}") from error
    stream = Stream(connection, give_up, slice_s)
    try:
        prove_to_server(stream, address)
    except ConnectorError as error:
        stream.close_stream()
        raise ConnectorError(f"{address.peer} does not answer as it should: {error}") from error
    return stream


def prove_to_server(stream: Stream, address: PeerAddress) -> None:
    """Show the server that the secret is known, and see that it knows it."""
    seconds = address.limits.connect_s
    greeting = stream.receive_message(frames.GREETING_BYTES, seconds, _HANDSHAKE_CALLS)
    server_nonce = frames.parse_greeting(greeting)
    client_nonce = address.entropy(frames.NONCE_BYTES)
    stream.send_bytes(
        [memoryview(frames.answer(address.credentials, server_nonce, client_nonce))], seconds
    )
    proof = stream.receive_message(frames.PROOF_BYTES, seconds, _HANDSHAKE_CALLS)
    frames.check_proof(address.credentials, server_nonce, client_nonce, proof)


def prove_to_client(
    stream: Stream,
    credentials: frames.Credentials,
    entropy: Callable[[int], bytes],
    limits: TcpLimits,
) -> None:
    """See that whoever has connected knows the secret, and show that it is known here. Raises
    `ConnectorError`."""
    nonce = entropy(frames.NONCE_BYTES)
    stream.send_bytes([memoryview(frames.greeting(nonce))], limits.connect_s)
    answer = stream.receive_message(frames.ANSWER_BYTES, limits.connect_s, _HANDSHAKE_CALLS)
    proof = frames.check_answer(credentials, nonce, answer)
    stream.send_bytes([memoryview(proof)], limits.connect_s)


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises `ConnectorError` when the address is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen()
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConnectorError(f"cannot listen at {host}, port {port}: {error}") from error
    return listening
