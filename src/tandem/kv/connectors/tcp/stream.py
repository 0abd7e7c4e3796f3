"""A TCP stream for KV: scattered memory in and out as whole messages, and no wait without an end.

Knows nothing of what the messages mean.
"""

import math
import socket
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connectors.contract import ConnectorError

# Pieces handed to the system at once; it takes at most 1,024.
_PIECES = 256


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


def pieces_of(
    memory: memoryview, offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> list[memoryview]:
    """The parts of a memory that spans name."""
    pairs = zip(offsets.tolist(), lengths.tolist(), strict=True)
    return [memory[offset : offset + length] for offset, length in pairs]
