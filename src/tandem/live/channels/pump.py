"""Lets an event loop drive a ZeroMQ socket: tells when it can be read or written, message by
message and without waiting.

libzmq's descriptor speaks only once for each change, and any call on the socket may swallow the
news: so the pump looks again after everything it does.
"""

import asyncio
from collections.abc import Callable

import zmq

# So much is read before others get their turn: what takes a fraction of a millisecond to read may
# keep those busy for several who act on it.
TURN_MESSAGES, TURN_BYTES = 128, 32 << 10


class SocketPump:
    """Reads `socket` from the running loop until `close`. `read` gets each message's frames;
    `write` is called when the socket may take messages again, and on each `look`. `receive` takes
    the next message without waiting, where it is not simply its frames."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        read: Callable[[list[bytes]], None],
        write: Callable[[], None] | None = None,
        *,
        receive: Callable[["zmq.Socket[bytes]"], list[bytes]] | None = None,
    ) -> None:
        self._socket = socket
        self._read = read
        self._write = write
        self._receive = receive or _frames
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.Handle | None = None
        self._closed = False
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._look_now)
        self.look()

    def look(self) -> None:
        """Look at the socket soon: after anything else was done with it."""
        if self._turn is None and not self._closed:
            self._turn = self._loop.call_soon(self._look_now)

    def drain(self) -> None:
        """Read all there is, now."""
        while not self._closed and self._read_some():
            pass

    def close(self) -> None:
        """Read no more. The socket is its owner's to close."""
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._descriptor)
            if self._turn:
                self._turn.cancel()

    def _look_now(self) -> None:
        self._turn = None
        if self._closed:
            return
        if self._write and self._events() & zmq.POLLOUT:
            self._write()
        more = not self._closed and self._read_some()
        # Writing and reading may swallow the news that more came; both may close the pump.
        if not self._closed and (more or self._events() & zmq.POLLIN):
            self.look()

    def _read_some(self) -> bool:
        """Whether there may be more."""
        read_bytes = 0
        for _ in range(TURN_MESSAGES):
            try:
                frames = self._receive(self._socket)
            except zmq.Again:
                return False
            self._read(frames)
            if self._closed:
                return False
            read_bytes += sum(map(len, frames))
            if read_bytes > TURN_BYTES:
                break
        return True

    def _events(self) -> int:
        return int(self._socket.getsockopt(zmq.EVENTS))


def _frames(socket: "zmq.Socket[bytes]") -> list[bytes]:
    return socket.recv_multipart(zmq.NOBLOCK)
