"""ZeroMQ sockets as the cluster uses them: encrypted, bounded, known by key, and driven by an event
loop (`SocketPump`), message by message and without waiting.

The descriptor of libzmq speaks only once for each change, and any call on the socket may swallow
the news: so the pump looks again after everything it does.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import zmq

from tandem.live.channels.keys import AdmittedKeys, KeyPair
from tandem.live.channels.limits import ChannelLimits
from tandem.messages.codec import MESSAGE_LIMIT_BYTES

ZAP_DOMAIN = b"tandem"
OPERATOR_PREFIX = "operator/"


class GatewayKeys(NamedTuple):
    """The gateway's own pair, and the public keys of those who may connect."""

    own: KeyPair
    admitted: AdmittedKeys


class NodeKeys(NamedTuple):
    """The pair of a worker or an operator, and the public key that gateways prove to have."""

    own: KeyPair
    gateways: str


def gateway_socket(
    context: "zmq.Context[zmq.Socket[bytes]]", own: KeyPair, limits: ChannelLimits
) -> "zmq.Socket[bytes]":
    """Unbound."""
    socket = context.socket(zmq.ROUTER)
    _configure(socket, own, limits)
    socket.curve_server = True
    socket.zap_domain = ZAP_DOMAIN
    # Sending to a peer that has gone is an error, not silence.
    socket.router_mandatory = True
    return socket


def node_socket(
    context: "zmq.Context[zmq.Socket[bytes]]",
    keys: NodeKeys,
    limits: ChannelLimits,
    identity: bytes,
) -> "zmq.Socket[bytes]":
    """Unconnected. It connects once: whoever wants another connection takes another socket."""
    socket = context.socket(zmq.DEALER)
    _configure(socket, keys.own, limits)
    socket.curve_serverkey = keys.gateways.encode()
    socket.routing_id = identity
    socket.reconnect_ivl = -1
    socket.connect_timeout = int(limits.handshake_s * 1000)
    return socket


async def close_context(context: "zmq.Context[zmq.Socket[bytes]]") -> None:
    """After all its sockets: waits, off the loop, until their last words are out."""
    await asyncio.to_thread(context.term)


def _configure(socket: "zmq.Socket[bytes]", own: KeyPair, limits: ChannelLimits) -> None:
    socket.curve_publickey = own.public.encode()
    socket.curve_secretkey = own.secret.encode()
    socket.sndhwm = socket.rcvhwm = limits.high_water
    socket.maxmsgsize = MESSAGE_LIMIT_BYTES
    socket.linger = 0
    # Never heartbeats of libzmq's own: up to 4.3.5 one that falls due on a connection which broke
    # while it was full aborts the whole process. Whether a process lives is for the machines to
    # know; whether its host does is for TCP.
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = socket.tcp_keepalive_intvl = max(1, int(limits.dead_after_s / 4))
    socket.tcp_keepalive_cnt = 3
    socket.tcp_maxrt = int(limits.dead_after_s * 1000)
    socket.handshake_ivl = int(limits.handshake_s * 1000)


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
