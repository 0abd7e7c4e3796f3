"""The channel of a worker to one gateway: connects, and connects again, for as long as the worker
lives.

Each connection is a new socket with a new identity, so nothing that was meant for a broken one ever
arrives on the next: whoever reconnects introduces itself anew.
"""

import asyncio
import logging
from collections.abc import Callable

import zmq
from zmq.utils.monitor import parse_monitor_message

from tandem.facts.backoff import backoff_s, longest
from tandem.live.channels.sockets import (
    ChannelLimits,
    Malformed,
    NodeKeys,
    Outbox,
    SocketPump,
    close_context,
    node_socket,
)
from tandem.messages.checks import BadMessage
from tandem.messages.cluster import ToGateway
from tandem.messages.codec import TO_GATEWAY, TO_WORKER
from tandem.messages.node import GatewayConnected, GatewayGone, MessageFromGateway

logger = logging.getLogger(__name__)

ChannelNews = GatewayConnected | MessageFromGateway | GatewayGone
POLL_S = 0.005
BROKEN = (
    zmq.Event.DISCONNECTED
    | zmq.Event.CLOSED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
)


class NodeChannel:
    """`gateway` is the endpoint, and what the news call this gateway; `identity` is the worker's
    name and incarnation. `on_news` gets the news in order, on the event loop. `refused` is called,
    once, when the gateway will not have this key: then the channel stays closed."""

    def __init__(
        self,
        gateway: str,
        identity: str,
        keys: NodeKeys,
        *,
        on_news: Callable[[ChannelNews], None],
        refused: Callable[[str], None],
        limits: ChannelLimits | None = None,
        chance: Callable[[], float] = longest,
    ) -> None:
        """`chance` spreads the waits before it is tried again (`facts.backoff`)."""
        self.gateway = gateway
        self.malformed = Malformed()
        self._identity, self._keys = identity, keys
        self._on_news, self._refused = on_news, refused
        self._limits = limits or ChannelLimits()
        self._chance = chance
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._connection: _Connection | None = None
        self._serial = 0
        self._failures = 0
        self._suspected = False
        # Either it is about to be tried again, or the attempt is about to be given up.
        self._timer: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Begin to connect; call it on the event loop."""
        self._connect()

    def send(self, message: ToGateway) -> None:
        """Never waits. Without a connection it is dropped; with a full outbox the
        gateway does not read, and counts as gone."""
        connection = self._connection
        if (
            connection
            and connection.established
            and not connection.send(TO_GATEWAY.encode(message))
        ):
            self._break("it does not read")

    async def close(self, linger_s: float) -> None:
        """Report no news from now on; what was sent may still leave for so long."""
        if self._context.closed:
            return
        if self._timer:
            self._timer.cancel()
        connection, self._connection = self._connection, None
        if connection:
            await connection.close(linger_s)
        await close_context(self._context)

    def _connect(self) -> None:
        self._serial += 1
        identity = f"{self._identity}/{self._serial}".encode()
        socket = node_socket(self._context, self._keys, self._limits, identity)
        self._connection = _Connection(socket, self._read, self._watch, self._limits)
        socket.connect(self.gateway)
        self._after(self._limits.unresolved_s, lambda: self._break("its name is unknown"))

    def _read(self, frames: list[bytes]) -> None:
        if frames == [b""]:
            return  # the gateway looks whether the way is open
        try:
            message = TO_WORKER.decode(b"".join(frames))
        except BadMessage as error:
            self.malformed.of(f"gateway {self.gateway}", error)
            return
        self._on_news(MessageFromGateway(self.gateway, message))

    def _watch(self, frames: list[bytes]) -> None:
        connection = self._connection
        assert connection is not None
        event = parse_monitor_message(frames)["event"]
        if self._timer:
            self._timer.cancel()
        if event == zmq.Event.CONNECTED:
            connection.reached = True
        elif event == zmq.Event.HANDSHAKE_SUCCEEDED:
            connection.established = True
            self._failures = 0
            self._on_news(GatewayConnected(self.gateway))
        elif event == zmq.Event.HANDSHAKE_FAILED_AUTH:
            self._connection = None
            connection.abandon()
            logger.error("gateway %s refuses the key of this worker", self.gateway)
            self._refused(f"gateway {self.gateway} refuses this key: it belongs to another cluster")
        elif event & BROKEN:
            self._break("the connection broke")

    def _break(self, reason: str) -> None:
        connection, self._connection = self._connection, None
        assert connection is not None
        # What came before the end still counts.
        connection.finish()
        if connection.established:
            logger.warning("gateway %s is gone: %s", self.gateway, reason)
            self._on_news(GatewayGone(self.gateway))
        elif self._failures == 0 and not connection.reached:
            logger.info("gateway %s is not there yet", self.gateway)
        elif connection.reached and not self._suspected:
            self._suspected = True
            logger.error("who listens at %s does not prove to be the gateway", self.gateway)
        limits = self._limits
        # All workers lose a gateway at the same instant.
        delay_s = backoff_s(
            limits.reconnect_s, limits.reconnect_most_s, self._failures, self._chance()
        )
        self._failures += 1
        self._after(delay_s, self._connect)

    def _after(self, delay_s: float, then: Callable[[], None]) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, then)


class _Connection:
    """One socket from its first attempt to its end: `reached` when somebody listens there,
    `established` when it is the gateway."""

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        read: Callable[[list[bytes]], None],
        watch: Callable[[list[bytes]], None],
        limits: ChannelLimits,
    ) -> None:
        self.reached = self.established = False
        self._socket = socket
        self._outbox = Outbox(limits)
        self._pump = SocketPump(socket, read, self._flush)
        self._monitor = socket.get_monitor_socket()
        self._watch = SocketPump(self._monitor, watch)

    def send(self, data: bytes) -> bool:
        """False when the outbox is full."""
        if len(self._outbox) or not self._sent(data):
            return self._outbox.add(data)
        return True

    def finish(self) -> None:
        """Read what is still there, then give up."""
        self._pump.drain()
        self.abandon()

    def abandon(self) -> None:
        """Nothing that waits will leave."""
        self._end(0)

    async def close(self, linger_s: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + linger_s
        while self.established and len(self._outbox) and loop.time() < deadline_s:
            await asyncio.sleep(POLL_S)
        linger_s = max(0.0, deadline_s - loop.time()) if self.established else 0.0
        self._end(int(linger_s * 1000))

    def _end(self, linger_ms: int) -> None:
        self._pump.close()
        self._watch.close()
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(linger_ms)

    def _sent(self, data: bytes) -> bool:
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            # What could not be sent may have swallowed news all the same.
            self._pump.look()
        return True

    def _flush(self) -> bool:
        """Whether some still wait."""
        while len(self._outbox) and self._sent(self._outbox.first):
            self._outbox.sent()
        return len(self._outbox) > 0
