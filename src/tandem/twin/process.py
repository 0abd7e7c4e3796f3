"""The processes of a simulated cluster, as far as they are alike, and the messages between them and
the gateway.

What is sent is there within the same instant, or after the scenario's latency; always in order.
Every process takes all mail of a turn together, as live it takes what its channels have brought.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from tandem.messages.cluster import ToGateway, ToWorker
from tandem.messages.codec import TO_GATEWAY, TO_WORKER
from tandem.messages.gateway import MessageFromWorker
from tandem.messages.node import GatewayConnected, GatewayGone, MessageFromGateway
from tandem.twin.event_queue import EventQueue

# The one gateway of a simulated cluster.
GATEWAY = "gateway-0"

Event = TypeVar("Event")


class TakesMail(Protocol):
    def take_mail(self, now_ns: int) -> None:
        """Handle what was received since the last time."""
        ...


class HearsPeers(TakesMail, Protocol):
    """The gateway, as others reach it."""

    def hear(self, event: MessageFromWorker, landed_ns: Sequence[int]) -> None:
        """Where the message tells of several steps, they landed at these instants."""
        ...


class HearsGateway(TakesMail, Protocol):
    """A worker, or a process of the shared pool."""

    @property
    def peer(self) -> str: ...

    def receive(self, event: MessageFromGateway | GatewayConnected | GatewayGone) -> None: ...


class MessageBus:
    """`peers` are the processes that the gateway has a channel to, by peer; `gateway` is None while
    there is none. A message takes `latency_ns`. With `encodes` each goes through the codec of the
    wire."""

    def __init__(self, queue: EventQueue, *, encodes: bool) -> None:
        self.queue = queue
        self.latency_ns = 0
        self.gateway: HearsPeers | None = None
        self.peers: dict[str, HearsGateway] = {}
        self._encodes = encodes
        self._with_mail: dict[TakesMail, None] = {}

    def has_mail(self, process: TakesMail) -> None:
        self._with_mail[process] = None

    def deliver(self) -> None:
        """Everybody takes their mail, whoever got it first before the others, until nobody has
        any."""
        waiting, now_ns = self._with_mail, self.queue.now_ns
        while waiting:
            process = next(iter(waiting))
            del waiting[process]
            process.take_mail(now_ns)

    def to_gateway(
        self, sender: HearsGateway, message: ToGateway, landed_ns: Sequence[int] = ()
    ) -> None:
        if self._encodes:
            message = TO_GATEWAY.decode(TO_GATEWAY.encode(message))
        event = MessageFromWorker(sender.peer, message)
        if self.latency_ns:
            there_ns = self.queue.now_ns + self.latency_ns
            self.queue.at(there_ns, lambda _: self._told_gateway(sender, event, landed_ns))
        else:
            self._told_gateway(sender, event, landed_ns)

    def to_peer(self, peer: str, message: ToWorker) -> None:
        if self._encodes:
            message = TO_WORKER.decode(TO_WORKER.encode(message))
        event = MessageFromGateway(GATEWAY, message)
        if self.latency_ns:
            there_ns = self.queue.now_ns + self.latency_ns
            self.queue.at(there_ns, lambda _: self._told_peer(peer, event))
        else:
            self._told_peer(peer, event)

    def _told_gateway(
        self, sender: HearsGateway, event: MessageFromWorker, landed_ns: Sequence[int]
    ) -> None:
        # What was under way when a process died, or its channel was closed, is lost.
        if self.gateway is not None and self.peers.get(sender.peer) is sender:
            self.gateway.hear(event, landed_ns)

    def _told_peer(self, peer: str, event: MessageFromGateway) -> None:
        process = self.peers.get(peer)
        if process is not None:
            process.receive(event)


class Process(ABC, Generic[Event]):
    """One start of a process. `mail` is what it has yet to handle; while it hangs, it handles
    nothing, and once it is not `alive`, nobody does."""

    def __init__(self, name: str, incarnation: str, bus: MessageBus) -> None:
        self.name = name
        self.incarnation = incarnation
        self.peer = f"{name}/{incarnation}"
        self.bus = bus
        self.mail: list[Event] = []
        self.alive = True
        self.hangs = False

    def receive(self, event: Event) -> None:
        """Handled within this instant, in order."""
        if self.alive:
            self.mail.append(event)
            if not self.hangs:
                self.bus.has_mail(self)

    @abstractmethod
    def take_mail(self, now_ns: int) -> None:
        """Handle what was received since the last time."""
