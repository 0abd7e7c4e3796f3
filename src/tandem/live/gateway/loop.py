"""Drives a gateway machine: hands it what its channel and its clients say, performs its effects on
the channel and for the clients, and answers operators."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tandem.cluster.gateway.machine import GatewayMachine
from tandem.live.channels.gateway_channel import OperatorSaid
from tandem.live.driver import Driver, EventInbox
from tandem.live.gateway.clients import Clients
from tandem.live.gateway.journal import Journal
from tandem.live.gateway.operator_requests import OperatorRequests
from tandem.messages.cluster import Register, Registered, ToWorker
from tandem.messages.gateway import (
    AuditEnded,
    Deliver,
    Fence,
    GatewayEffect,
    GatewayEvent,
    OperationEnded,
    PeerGone,
    PlanDecided,
    SendToWorker,
    StartFailed,
    StartWorker,
    TimePassed,
    WorkerSaid,
)
from tandem.messages.operator import Answer, AskStatus, Done, ReportStartFailed
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
    been told something; the `journal`, if there is one, records what it was told."""

    def __init__(
        self,
        machine: GatewayMachine,
        clients: Clients,
        settled: Callable[[], None],
        journal: Journal | None = None,
    ) -> None:
        self.machine = machine
        self._journal = journal
        self._clients = clients
        self._settled = settled
        self._requests = OperatorRequests()
        # Who is to be answered at the end of this turn.
        self._asked: list[tuple[str, AskStatus | ReportStartFailed]] = []
        self._inbox = EventInbox[Told](_together)

    def tell(self, event: Told) -> None:
        self._inbox.enqueue(event)

    async def run(self, channel: Channel) -> None:
        """Until it is cancelled. What the machine raises is raised."""
        await self._driver(channel).run()

    def settle_all(self, channel: Channel) -> None:
        """After the end of `run`: tell the machine all that was told."""
        self._driver(channel).settle()

    def handle_together(self, told: Sequence[Told], instant_ns: int) -> Sequence[GatewayEffect]:
        """The machine is told all but the questions of operators that it need not decide."""
        events: list[GatewayEvent] = []
        for event in told:
            if not isinstance(event, OperatorSaid):
                self._note(event)
                events.append(event)
            elif isinstance(event.message, AskStatus):
                self._asked.append((event.peer, event.message))
            elif isinstance(event.message, ReportStartFailed):
                self._asked.append((event.peer, event.message))
                events.append(StartFailed(event.message.worker, event.message.reason))
            elif asked := self._requests.ask(event.peer, event.message):
                events.append(asked)
        return self._decide(events, instant_ns)

    def next_wakeup(self) -> int | None:
        return self.machine.next_wakeup()

    def _driver(self, channel: Channel) -> Driver[Told, GatewayEffect, None]:
        return Driver(self, self._inbox, partial(self._perform_all, channel), TimePassed())

    def _perform_all(
        self, channel: Channel, effects: Sequence[GatewayEffect], instant_ns: int
    ) -> None:
        for effect in effects:
            self._perform(effect, channel, instant_ns)
        self._settled()
        asked, self._asked = self._asked, []
        for peer, question in asked:
            if isinstance(question, AskStatus):
                status = self.machine.status(instant_ns)
                channel.answer(peer, self._requests.status(question, status))
            else:
                channel.answer(peer, Done(question.question))

    def _decide(self, events: list[GatewayEvent], instant_ns: int) -> list[GatewayEffect]:
        effects: list[GatewayEffect] = []
        try:
            effects = self.machine.handle_together(events, instant_ns)
        finally:
            # What a machine failed of stands in the journal too.
            if self._journal is not None:
                self._journal.record(instant_ns, events, effects)
        return effects

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
                if answer := self._requests.ended(effect):
                    channel.answer(*answer)
            case StartWorker(worker, role):
                # Whoever launches processes reads it in the status.
                logger.info("the planner wants %s started as %s", worker, role)
            case PlanDecided(decision):
                if decision.actions:
                    logger.info("planned: %s", decision.text)
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


def _together(events: Sequence[Told]) -> int:
    """How many of the first, with not too many new requests among them."""
    submitted = 0
    for index, event in enumerate(events):
        submitted += isinstance(event, RequestSubmitted)
        if submitted > SUBMITTED_TOGETHER:
            return index
    return len(events)
