"""ZeroMQ sockets as the cluster uses them: encrypted, bounded (`ChannelLimits`, `Outbox`), known by
key, and driven by an event loop (`SocketPump`), message by message and without waiting.

The descriptor of libzmq is readable only once for each change, and any call on the socket may take
the news: so the pump looks again after everything it does.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import zmq

from tandem.live.channels.keys import AdmittedKeys, KeyPair
from tandem.messages.codec import MESSAGE_LIMIT_BYTES

logger = logging.getLogger(__name__)

ZAP_DOMAIN = b"tandem"
OPERATOR_PREFIX = "operator/"
# A peer may connect under ever new names.
MOST_SENDERS = 1024


@dataclass(frozen=True, slots=True)
class ChannelLimits:
    """For one peer: so many messages and bytes wait to be sent at most, beside `high_water`
    messages each way within the transport. What a gateway sends its workers waits without such a
    bound, for room; a worker that takes nothing of it for `unread_s` does not read. A broken
    connection is tried again after `reconnect_s`, and ever more slowly up to `reconnect_most_s`. A
    peer whose machine acknowledges nothing for `dead_after_s` is cut off. A connection of which
    nothing at all comes for `unresolved_s` is given up: libzmq does not report that a host's name
    is unknown."""

    outbox_messages: int = 16384
    outbox_bytes: int = 64 << 20
    unread_s: float = 10.0
    high_water: int = 256
    reconnect_s: float = 0.1
    reconnect_most_s: float = 2.0
    dead_after_s: float = 10.0
    handshake_s: float = 10.0
    unresolved_s: float = 3.0


class Outbox:
    """What waits to be sent to one peer, oldest first. A single message always fits. `waited_s` is
    counted by the owner, from 0 whenever the peer takes something."""

    def __init__(self, limits: ChannelLimits) -> None:
        self.waited_s = 0.0
        self._limits = limits
        self._waiting: deque[bytes | Callable[[], bytes]] = deque()
        self._bytes = 0
        self._encoded = b""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def first(self) -> bytes:
        first = self._waiting[0]
        if isinstance(first, bytes):
            return first
        # It may be tried many times.
        self._encoded = self._encoded or first()
        return self._encoded

    def add(self, data: bytes) -> bool:
        """False when it is full: then nothing was added."""
        limits = self._limits
        fits = self._bytes + len(data) <= limits.outbox_bytes
        if self._waiting and (len(self._waiting) >= limits.outbox_messages or not fits):
            return False
        self._waiting.append(data)
        self._bytes += len(data)
        return True

    def add_later(self, encode: Callable[[], bytes]) -> None:
        """A message that becomes bytes when its turn comes; it counts to no bound."""
        self._waiting.append(encode)

    def sent(self) -> None:
        """The first one is on its way."""
        first = self._waiting.popleft()
        self._bytes -= len(first) if isinstance(first, bytes) else 0
        self._encoded, self.waited_s = b"", 0.0


class Malformed:
    """`count` messages so far."""

    def __init__(self) -> None:
        self.count = 0
        self._senders: set[str] = set()

    def of(self, sender: str, problem: Exception) -> bool:
        """One more. Whether it is the first of this sender."""
        self.count += 1
        if sender in self._senders or len(self._senders) == MOST_SENDERS:
            return False
        self._senders.add(sender)
        logger.error("a message of %s %s", sender, problem)
        return True


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
    `write` is called when the socket may take messages again, and on each `look`, and says whether
    some still wait. `receive` takes the next message without waiting, where it is not simply its
    frames."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        read: Callable[[list[bytes]], None],
        write: Callable[[], bool] | None = None,
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
        waits = self._write is not None
        if self._write and self._events() & zmq.POLLOUT:
            waits = self._write()
        more = not self._closed and self._read_some()
        # Writing and reading may swallow the news that more came, or that there is room again; both
        # may close the pump.
        wanted = zmq.POLLIN | (zmq.POLLOUT if waits else 0)
        if not self._closed and (more or self._events() & wanted):
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
