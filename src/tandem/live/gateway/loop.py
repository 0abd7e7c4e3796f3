"""Drives a gateway machine: tells it all that happened within one turn of the event loop together,
and performs its effects on the channel and for the clients."""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.live.channels.gateway_channel import OperatorSaid
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.gateway.clients import Clients
from tandem.live.gateway.questions import Questions
from tandem.messages.cluster import Register, Registered, ToWorker
from tandem.messages.gateway import (
    AuditEnded,
    Deliver,
    Fence,
    GatewayEffect,
    GatewayEvent,
    OperationEnded,
    PeerGone,
    SendToWorker,
    TimePassed,
    WorkerSaid,
)
from tandem.messages.operator import Answer, AskStatus
from tandem.messages.router import Explain, Reject, RequestSubmitted
from tandem.messages.worker import FailRequest, ImportsArrived, PrefillsArrived, RequestsArrived

logger = logging.getLogger(__name__)

Told = GatewayEvent | OperatorSaid
# So many new requests at one go: a call may bring 64, and to choose their workers takes a fraction
# of a millisecond for each.
SUBMITTED_TOGETHER = 16


class Channel(Protocol):
    """The way to workers and operators, as `live.gateway_channel.GatewayChannel`: nothing waits."""

    def send(self, peer: str, message: ToWorker) -> None: ...

    def answer(self, peer: str, message: Answer) -> None: ...

    def drop(self, peer: str) -> None: ...

    async def close(self, linger_s: float) -> None: ...


class GatewayLoop:
    """`tell` it on the event loop that `run` runs on. `settled` is called whenever the machine has
    heard something."""

    def __init__(
        self, machine: GatewayMachine, clients: Clients, settled: Callable[[], None]
    ) -> None:
        self.machine = machine
        self._clients = clients
        self._settled = settled
        self._questions = Questions()
        self._events: list[Told] = []
        self._news = asyncio.Event()
        # The machine may want to be woken before anything happens.
        self._news.set()
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, event: Told) -> None:
        self._events.append(event)
        self._news.set()

    async def run(self, channel: Channel) -> None:
        """Until it is cancelled. What the machine raises is raised."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                self.settle(channel)
                self._set_timer()
                if self._events:
                    self._news.set()
                    await asyncio.sleep(0)
        finally:
            if self._timer:
                self._timer.cancel()

    def settle(self, channel: Channel) -> None:
        """Tell the machine what was told, of requests not too many at a time, and do what it wants
        done."""
        heard, self._events = _some(self._events)
        instant_ns = now_ns()
        curious: list[tuple[str, AskStatus]] = []
        events: list[GatewayEvent] = []
        for event in heard:
            if not isinstance(event, OperatorSaid):
                self._note(event)
                events.append(event)
            elif isinstance(event.message, AskStatus):
                curious.append((event.peer, event.message))
            elif asked := self._questions.ask(event.peer, event.message):
                events.append(asked)
        for effect in self.machine.handle_together(events, instant_ns):
            self._perform(effect, channel, instant_ns)
        self._settled()
        for peer, question in curious:
            status = self.machine.status(instant_ns)
            channel.answer(peer, self._questions.status(question, status))

    def settle_all(self, channel: Channel) -> None:
        """As `settle`, until nothing is left that was told."""
        self.settle(channel)
        while self._events:
            self.settle(channel)

    def _perform(self, effect: GatewayEffect, channel: Channel, instant_ns: int) -> None:
        match effect:
            case Deliver(emission):
                self._clients.deliver(emission, instant_ns)
            case SendToWorker(peer, message):
                channel.send(peer, message)
                if isinstance(message, RequestsArrived | PrefillsArrived | ImportsArrived):
                    self._clients.sent(message.requests, instant_ns)
                elif isinstance(message, Registered):
                    self._greeted(peer)
            case Reject():
                self._clients.reject(effect)
            case FailRequest(request_id, reason):
                logger.error("request %s is given up: %s", request_id, reason)
                self._clients.fail(effect, instant_ns)
            case Fence(peer, reason):
                logger.error("worker %s counts as dead: %s", peer, reason)
                self._clients.metrics.lost()
                channel.drop(peer)
            case OperationEnded() | AuditEnded():
                if answer := self._questions.ended(effect):
                    channel.answer(*answer)
            case Explain(request_id, kind, text, _):
                logger.debug("%s: %s: %s", request_id, kind, text)

    def _note(self, event: GatewayEvent) -> None:
        if isinstance(event, PeerGone) and self.machine.members.of_peer(event.peer):
            logger.warning("worker %s is gone: %s", event.peer, event.reason)
            self._clients.metrics.lost()
        elif isinstance(event, PeerGone) and self.machine.pool.nodes.of_peer(event.peer):
            logger.warning("%s of the shared pool is gone: %s", event.peer, event.reason)
        elif isinstance(event, WorkerSaid) and isinstance(event.message, Register):
            logger.info("worker %s presents itself", event.peer)

    def _greeted(self, peer: str) -> None:
        member = self.machine.members.of_peer(peer)
        config = self.machine.config.router
        if member and not member.indexed(config.root, config.block_size):
            logger.warning(
                "worker %s keeps KV in another form than this gateway's: prompts are not routed to "
                "it by what it has cached",
                peer,
            )

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        wakeup_ns = self.machine.next_wakeup()
        if wakeup_ns is not None:
            delay_s = max(0, wakeup_ns - now_ns()) / NS_PER_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.tell, TimePassed())


def _some(events: list[Told]) -> tuple[list[Told], list[Told]]:
    """The first, with not too many new requests among them, and the others."""
    submitted = 0
    for index, event in enumerate(events):
        submitted += isinstance(event, RequestSubmitted)
        if submitted > SUBMITTED_TOGETHER:
            return events[:index], events[index:]
    return events, []
