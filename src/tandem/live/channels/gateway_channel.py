"""The channel of a gateway to its workers and operators: one ZeroMQ socket for all of them.

A peer is one connection, named `worker/incarnation/number`: a process that connects again is
another peer. Whoever has no key of the cluster gets nothing. What a worker has no room for waits as
it is, and becomes bytes when its turn comes; one that takes nothing for long is gone. An operator
that does not read is gone as soon as too much waits for it.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import zmq
from zmq.utils.monitor import parse_monitor_message

from tandem.live.channels.peers import KeyGuard, Senders
from tandem.live.channels.sockets import (
    OPERATOR_PREFIX,
    ChannelLimits,
    GatewayKeys,
    Malformed,
    Outbox,
    SocketPump,
    close_context,
    gateway_socket,
)
from tandem.messages.checks import BadMessage, OtherProtocol
from tandem.messages.cluster import RegistrationRefused, ToWorker
from tandem.messages.codec import OPERATOR, TO_GATEWAY, TO_WORKER
from tandem.messages.gateway import MessageFromWorker, PeerGone
from tandem.messages.operator import Answer, Done, OperatorMessage

# A full pipe is tried again after so long: libzmq does not report when one of many has room.
RETRY_S = 0.001
# So much is sent to one peer at a time, before others get their turn.
TURN_BYTES = 4 << 20
# No step of waiting counts for more than this part of the time that is too long: a gateway that was
# itself held up takes nobody for gone.
LONGEST_STEP = 0.25
# After a connection broke, whose it was is tried out so much later: libzmq reports that one broke,
# and forgets its peer a little after.
PROBES_S = (0.01, 0.2)
REVOKED = "its key was revoked"
UNREAD = "it does not read"


@dataclass(frozen=True, slots=True)
class MessageFromOperator:
    """A question of the operator that the transport knows as `peer`."""

    peer: str
    message: OperatorMessage


ChannelNews = MessageFromWorker | PeerGone | MessageFromOperator


class GatewayChannel:
    """`listen` is an endpoint as `tcp://127.0.0.1:9000`, port 0 for any free one; `on_news` gets
    the news in order, on the event loop."""

    def __init__(
        self,
        listen: str,
        keys: GatewayKeys,
        on_news: Callable[[ChannelNews], None],
        limits: ChannelLimits | None = None,
    ) -> None:
        self.malformed = Malformed()
        self._listen, self._keys, self._on_news = listen, keys, on_news
        self._limits = limits or ChannelLimits()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = gateway_socket(self._context, keys.own, self._limits)
        self._senders = Senders(keys.admitted, lambda peer: self._lose(peer, REVOKED))
        self._pumps: list[SocketPump] = []
        self._guard: KeyGuard | None = None
        self._monitor: zmq.Socket[bytes] | None = None
        self._peers: dict[str, Outbox] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._tried_s = 0.0
        self._probes = _Probes(self._probe)
        # Peers to which nothing can be sent any more, and of which something may be unread.
        self._unreachable: dict[str, Outbox] = {}

    def open(self) -> str:
        """Listen; gives the endpoint with its port. Call it on the event loop. Raises
        `zmq.ZMQError` when the address cannot be had."""
        self._guard = KeyGuard(self._context, self._keys.admitted)
        self._socket.bind(self._listen)
        self._monitor = self._socket.get_monitor_socket(zmq.Event.DISCONNECTED)
        self._pumps = [
            SocketPump(self._socket, self._read, receive=self._senders.receive),
            SocketPump(self._monitor, self._watch),
        ]
        self._senders.watch()
        endpoint = self._socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        return endpoint.decode()

    def send(self, peer: str, message: ToWorker) -> None:
        """Never waits. A peer that has gone, or that takes nothing for too long, is
        reported as `PeerGone`."""
        outbox = self._peers.get(peer)
        if outbox is None:
            return  # it has gone, and that was reported
        outbox.add_later(partial(TO_WORKER.encode, message))
        if len(outbox) == 1:
            self._empty(peer, outbox)

    def answer(self, peer: str, message: Answer) -> None:
        """Give an operator its answer, if it still waits for it."""
        self._put(peer, OPERATOR.encode(message))

    def drop(self, peer: str) -> None:
        """Send it nothing of what still waits."""
        self._peers.pop(peer, None)
        self._senders.forget(peer)

    async def close(self, linger_s: float) -> None:
        """Report no news from now on; what was sent may still leave for so long."""
        if self._context.closed:
            return
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + linger_s
        self._on_news = lambda _: None
        while any(map(len, self._peers.values())) and loop.time() < deadline_s:
            await asyncio.sleep(RETRY_S)
        self._senders.close()
        if self._retry:
            self._retry.cancel()
        for pump in self._pumps:
            pump.close()
        self._socket.disable_monitor()
        if self._monitor:
            self._monitor.close(0)
        self._socket.close(int(max(0.0, deadline_s - loop.time()) * 1000))
        if self._guard:
            self._guard.close()
        await close_context(self._context)

    def _put(self, peer: str, data: bytes) -> None:
        outbox = self._peers.get(peer)
        if outbox is None:
            return  # it has gone, and that was reported
        if not outbox.add(data):
            self._lose(peer, UNREAD)
        elif len(outbox) == 1:
            self._empty(peer, outbox)

    def _empty(self, peer: str, outbox: Outbox) -> None:
        """Send what there is room for; what is left is tried again. The peer may turn out to be
        gone."""
        sent_bytes = 0
        while len(outbox) and sent_bytes < TURN_BYTES and self._sent(peer, outbox.first):
            sent_bytes += len(outbox.first)
            outbox.sent()
        if len(outbox) and peer in self._peers and self._retry is None:
            loop = asyncio.get_running_loop()
            self._tried_s = loop.time()
            self._retry = loop.call_later(RETRY_S, self._flush)

    def _sent(self, peer: str, data: bytes) -> bool:
        """Whether it is on its way. The peer may turn out to be gone."""
        try:
            self._socket.send_multipart([peer.encode(), data], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._broke(peer)
            return False
        finally:
            # What could not be sent may have swallowed news of others all the same.
            self._pumps[0].look()
        return True

    def _broke(self, peer: str) -> None:
        """What came before the end still counts: a worker may have deregistered."""
        if not self._unreachable:
            asyncio.get_running_loop().call_soon(self._lose_unreachable)
        self._unreachable[peer] = self._peers[peer]

    def _lose_unreachable(self) -> None:
        self._pumps[0].drain()
        unreachable, self._unreachable = self._unreachable, {}
        for peer, outbox in unreachable.items():
            # It may have been lost or have come back meanwhile.
            if self._peers.get(peer) is outbox:
                self._lose(peer, "the connection broke")

    def _lose(self, peer: str, reason: str) -> None:
        if reason == REVOKED and not peer.startswith(OPERATOR_PREFIX):
            # An honest one ends, knowing why; of another nothing is taken any more.
            self._put(peer, TO_WORKER.encode(RegistrationRefused(f"{peer}: {reason}")))
            if peer not in self._peers:
                return  # it was not there any more, and that was reported
        self.drop(peer)
        if not peer.startswith(OPERATOR_PREFIX):
            self._on_news(PeerGone(peer, reason, died=reason != REVOKED))

    def _flush(self) -> None:
        self._retry = None
        unread_s = self._limits.unread_s
        step_s = min(asyncio.get_running_loop().time() - self._tried_s, LONGEST_STEP * unread_s)
        for peer, outbox in list(self._peers.items()):
            if not len(outbox):
                continue
            outbox.waited_s += step_s
            self._empty(peer, outbox)
            if outbox.waited_s >= unread_s and peer in self._peers:
                self._lose(peer, UNREAD)

    def _read(self, frames: list[bytes]) -> None:
        news: ChannelNews
        try:
            peer, body = frames[0].decode(), b"".join(frames[1:])
            if refusal := self._senders.refused(peer, body):
                if isinstance(refusal, Done):
                    self._peers.setdefault(peer, Outbox(self._limits))
                    self.answer(peer, refusal)
                return
            if peer.startswith(OPERATOR_PREFIX):
                news = MessageFromOperator(peer, OPERATOR.decode(body))
            else:
                news = MessageFromWorker(peer, TO_GATEWAY.decode(body))
        except (BadMessage, UnicodeDecodeError) as error:
            self._complain(frames[0], error)
            return
        if peer not in self._peers:
            for older in _same_process(peer, self._peers):
                self._lose(older, "it connected anew")
            self._peers[peer] = Outbox(self._limits)
        self._on_news(news)

    def _complain(self, identity: bytes, error: BadMessage | UnicodeDecodeError) -> None:
        peer = identity.decode(errors="backslashreplace")
        first = self.malformed.of(peer, error)
        if first and isinstance(error, OtherProtocol):
            farewell = RegistrationRefused(
                f"{peer} {error}: install the same version of Tandem everywhere"
            )
            self._peers.setdefault(peer, Outbox(self._limits))
            self._put(peer, TO_WORKER.encode(farewell, protocol=error.protocol))

    def _watch(self, frames: list[bytes]) -> None:
        if parse_monitor_message(frames)["event"] == zmq.Event.DISCONNECTED:
            self._probes.broke()

    def _probe(self) -> None:
        """An empty message finds whose connection has gone."""
        if not self._socket.closed:
            for peer, outbox in list(self._peers.items()):
                if not len(outbox):
                    self._sent(peer, b"")


class _Probes:
    """`probe` comes so much after a connection broke. Anybody may come and go at the port: however
    often, it comes once in each such time, and after the last one."""

    def __init__(self, probe: Callable[[], None]) -> None:
        self._probe = probe
        # Those that are to come, and whether one more connection broke since.
        self.coming: dict[float, bool] = {}

    def broke(self) -> None:
        for delay_s in PROBES_S:
            self._wait(delay_s)

    def _wait(self, delay_s: float) -> None:
        waits = delay_s in self.coming
        self.coming[delay_s] = waits
        if not waits:
            asyncio.get_running_loop().call_later(delay_s, self._due, delay_s)

    def _due(self, delay_s: float) -> None:
        if self.coming.pop(delay_s):
            self._wait(delay_s)
        self._probe()


def _same_process(peer: str, others: Iterable[str]) -> list[str]:
    """A process has one connection: where it has a new one the older is broken, seen or not."""
    if peer.startswith(OPERATOR_PREFIX):
        return []
    process = peer.rpartition("/")[0]
    return [other for other in others if other.rpartition("/")[0] == process]
