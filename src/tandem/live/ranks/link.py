"""The socket between the leader of a worker and one other rank: whole messages, both ways.

Both ends are processes of one worker, born of each other: nobody else has the socket.
"""

import select
import socket
import struct
import threading
from contextlib import suppress
from typing import Generic, TypeVar

from tandem.facts.errors import TandemError
from tandem.messages.checks import BadMessage
from tandem.messages.codec import MESSAGE_LIMIT_BYTES, Codec

Out = TypeVar("Out")
In = TypeVar("In")

LENGTH = struct.Struct("<I")


class RankLost(TandemError):
    """The other end is gone or does not answer: the worker cannot go on."""


class RankLink(Generic[Out, In]):
    """Any thread may send, one may receive. A peer that takes nothing for `patience_s` is lost."""

    def __init__(
        self, connection: socket.socket, codecs: tuple[Codec[Out], Codec[In]], patience_s: float
    ) -> None:
        self._connection = connection
        self._outgoing, self._incoming = codecs
        self._sending = threading.Lock()
        seconds, fraction = divmod(patience_s, 1)
        patience = struct.pack("ll", int(seconds), int(fraction * 1_000_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)

    def send(self, message: Out) -> None:
        """Raises `RankLost`."""
        data = self._outgoing.encode(message)
        try:
            with self._sending:
                self._connection.sendall(LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise RankLost(f"a rank takes no messages: {error}") from error

    def receive(self, timeout_s: float | None = None) -> In:
        """The next message; waits for its begin, at most so long if it is said. Raises `RankLost`
        when there will be none."""
        # Not `select`, which knows descriptors below 1024 only.
        waiting = select.poll()
        waiting.register(self._connection, select.POLLIN)
        if not waiting.poll(None if timeout_s is None else timeout_s * 1000):
            raise RankLost(f"a rank said nothing for {timeout_s:g} s")
        (length,) = LENGTH.unpack(self._exactly(LENGTH.size))
        if length > MESSAGE_LIMIT_BYTES:
            raise RankLost(f"a rank sends {length} bytes at once")
        try:
            return self._incoming.decode(bytes(self._exactly(length)))
        except BadMessage as error:
            raise RankLost(f"a message of a rank {error}") from error

    def close(self) -> None:
        """Both ends notice, also those that just wait."""
        # Otherwise the other end was faster.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _exactly(self, bytes: int) -> bytearray:
        data = bytearray(bytes)
        view, filled = memoryview(data), 0
        while filled < bytes:
            try:
                got = self._connection.recv_into(view[filled:])
            except OSError as error:
                raise RankLost(f"the socket to a rank is broken: {error}") from error
            if not got:
                raise RankLost("a rank has ended")
            filled += got
        return data
