"""The messages between the gateways of a simulated cluster and its other processes: channels that
take time, are cut and break.

What is sent is there within the same instant, or after the scenario's latency; always in order.
Every process takes all mail of a turn together, as live it takes what its channels have brought.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tandem.messages.cluster import ToGateway, ToWorker
from tandem.messages.codec import TO_GATEWAY, TO_WORKER
from tandem.messages.gateway import MessageFromWorker, PeerGone
from tandem.messages.node import GatewayConnected, GatewayGone, MessageFromGateway
from tandem.policy.chance import draw
from tandem.twin.event_queue import EventQueue

# The first gateway of a simulated cluster.
GATEWAY = "gateway-0"

Arrive = Callable[[], object]


class Receiver(Protocol):
    """Whoever gets messages."""

    def take_mail(self, now_ns: int) -> None:
        """Handle what was received since the last time."""
        ...


class GatewayReceiver(Receiver, Protocol):
    """A gateway, as others reach it."""

    @property
    def name(self) -> str: ...

    def receive_report(self, event: MessageFromWorker, landed_ns: Sequence[int]) -> None:
        """Where the message reports several steps, they landed at these instants."""
        ...

    def receive(self, event: PeerGone) -> None: ...


class PeerReceiver(Receiver, Protocol):
    """A worker, or a process of the shared pool."""

    @property
    def name(self) -> str: ...

    @property
    def peer(self) -> str: ...

    def receive(self, event: MessageFromGateway | GatewayConnected | GatewayGone) -> None: ...


@dataclass(slots=True)
class Direction:
    """One direction of a channel: when the last that was sent is there, and what waits while the
    channel is cut."""

    due_ns: int = 0
    stalled: list[Arrive] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Channel:
    """Between one start of a gateway and one start of another process. What is under way when it
    is no more `open` is lost."""

    gateway: GatewayReceiver
    process: PeerReceiver
    cut: bool = False
    open: bool = True
    up: Direction = field(default_factory=Direction)
    down: Direction = field(default_factory=Direction)


class MessageBus:
    """`gateways` are those that are up, by name; `channels` lead from them to the others, by
    gateway and peer. A message takes `latency_ns` and, drawn for each, up to `jitter_ns` more. With
    `encodes` each goes through the codec of the wire."""

    def __init__(self, queue: EventQueue, *, encodes: bool = False, seed: int = 0) -> None:
        self.queue = queue
        self.latency_ns = 0
        self.jitter_ns = 0
        self.gateways: dict[str, GatewayReceiver] = {}
        self.channels: dict[tuple[str, str], Channel] = {}
        self._encodes = encodes
        self._seed = seed
        self._drawn = 0
        self._cuts: dict[str, tuple[Collection[str], Collection[str]]] = {}
        # Who wants a channel to a gateway that it cannot reach now.
        self._unreached: list[tuple[str, PeerReceiver]] = []
        self._with_mail: dict[Receiver, None] = {}

    def has_mail(self, process: Receiver) -> None:
        self._with_mail[process] = None

    def deliver(self) -> None:
        """Everybody takes their mail, whoever got it first before the others, until nobody has
        any."""
        waiting, now_ns = self._with_mail, self.queue.now_ns
        while waiting:
            process = next(iter(waiting))
            del waiting[process]
            process.take_mail(now_ns)

    # Channels

    def connect(self, gateway: str, process: PeerReceiver) -> None:
        """The process gets a channel to that gateway once it can be reached and is up."""
        if self._is_cut(gateway, process.name):
            self._unreached.append((gateway, process))
        elif gateway in self.gateways:
            process.receive(GatewayConnected(gateway))

    def open_channel(self, gateway: str, process: PeerReceiver) -> None:
        """The process knows that it has a channel to that gateway, and uses it from now on."""
        if gateway in self.gateways:
            self.close_channel(gateway, process.peer)
            cut = self._is_cut(gateway, process.name)
            self.channels[gateway, process.peer] = Channel(self.gateways[gateway], process, cut)

    def close_channel(self, gateway: str, peer: str) -> Channel | None:
        """What is under way there is lost."""
        channel = self.channels.pop((gateway, peer), None)
        if channel is not None:
            channel.open = False
        return channel

    def end_process(self, process: PeerReceiver, gone: PeerGone, *, delivers_sent: bool) -> None:
        """All gateways see the channels of this process break; if it `delivers_sent`, after all
        that it has sent."""
        for gateway in self.gateways:
            channel = self.channels.get((gateway, process.peer))
            if channel is None:
                continue
            if not delivers_sent:
                channel.open = False
                channel = Channel(channel.gateway, process, channel.cut)
                self.channels[gateway, process.peer] = channel
            self._send_gone(channel, gone)

    def _send_gone(self, channel: Channel, gone: PeerGone) -> None:
        def arrive() -> None:
            self.close_channel(channel.gateway.name, gone.peer)
            channel.gateway.receive(gone)

        self._send(channel, channel.up, arrive)

    def lose_gateway(self, gateway: str) -> None:
        """Its channels break, which the others see at once."""
        del self.gateways[gateway]
        for name, peer in list(self.channels):
            if name == gateway:
                self.close_channel(name, peer)

    def cut(self, cut: str, one: Collection[str], other: Collection[str]) -> None:
        """What is sent between a process of `one` and one of `other`, by name, waits until
        `heal(cut)`."""
        self._cuts[cut] = one, other
        self._note_cuts()

    def heal(self, cut: str) -> None:
        """What has waited is there now, unless another cut holds it up."""
        del self._cuts[cut]
        self._note_cuts()
        for channel in list(self.channels.values()):
            for direction in (channel.up, channel.down):
                while direction.stalled and channel.open and not channel.cut:
                    direction.stalled.pop(0)()
        unreached, self._unreached = self._unreached, []
        for gateway, process in unreached:
            self.connect(gateway, process)

    def _note_cuts(self) -> None:
        for (gateway, _), channel in self.channels.items():
            channel.cut = self._is_cut(gateway, channel.process.name)

    def _is_cut(self, gateway: str, process: str) -> bool:
        return any(
            (gateway in one and process in other) or (gateway in other and process in one)
            for one, other in self._cuts.values()
        )

    # Messages

    def to_gateway(
        self,
        sender: PeerReceiver,
        gateway: str,
        message: ToGateway,
        landed_ns: Sequence[int] = (),
    ) -> None:
        channel = self.channels.get((gateway, sender.peer))
        if channel is None:
            return
        if self._encodes:
            message = TO_GATEWAY.decode(TO_GATEWAY.encode(message))
        event = MessageFromWorker(sender.peer, message)
        if self.latency_ns or self.jitter_ns or channel.cut:
            self._send(
                channel, channel.up, lambda: channel.gateway.receive_report(event, landed_ns)
            )
        else:
            channel.gateway.receive_report(event, landed_ns)

    def to_peer(self, gateway: str, peer: str, message: ToWorker) -> None:
        channel = self.channels.get((gateway, peer))
        if channel is None:
            return
        if self._encodes:
            message = TO_WORKER.decode(TO_WORKER.encode(message))
        event = MessageFromGateway(gateway, message)
        if self.latency_ns or self.jitter_ns or channel.cut:
            self._send(channel, channel.down, lambda: channel.process.receive(event))
        else:
            channel.process.receive(event)

    def soon_ns(self) -> int:
        """Now, or as much later as is drawn; anew each time."""
        if not self.jitter_ns:
            return self.queue.now_ns
        self._drawn += 1
        return self.queue.now_ns + int(draw(self._seed, self._drawn) * self.jitter_ns)

    def _send(self, channel: Channel, direction: Direction, arrive: Arrive) -> None:
        if not self.latency_ns and not self.jitter_ns:
            self._there(channel, direction, arrive)
            return
        direction.due_ns = max(direction.due_ns, self.soon_ns() + self.latency_ns)
        self.queue.at(direction.due_ns, lambda _: self._there(channel, direction, arrive))

    def _there(self, channel: Channel, direction: Direction, arrive: Arrive) -> None:
        # What was under way when a process died, or its channel was closed, is lost.
        if channel.cut:
            direction.stalled.append(arrive)
        elif channel.open:
            arrive()
