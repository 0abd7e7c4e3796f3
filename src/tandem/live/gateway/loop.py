"""The loop of a gateway machine: hands it the events of its channel and its clients, performs its
effects on the channel and for the clients, and answers operators."""

import logging
from asyncio import Future
from collections.abc import Callable, Sequence
from typing import Protocol

from tandem.cluster.gateway.configuration import GatewayInput
from tandem.cluster.gateway.driver import GatewayPorts, perform
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.facts.request import FinishReason
from tandem.live.channels.gateway_channel import MessageFromOperator
from tandem.live.driver import Driver, EventInbox
from tandem.live.event_log import EventLog
from tandem.live.gateway.clients import Clients
from tandem.live.gateway.history import RequestHistories
from tandem.live.gateway.journal import Journal
from tandem.live.gateway.shape_simulator import ShapeSimulator
from tandem.messages.cluster import Drain, Register, Registered, ToWorker
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    ConfigurationTaken,
    Deliver,
    DrainAsked,
    Fence,
    GatewayEffect,
    MessageFromWorker,
    OperationEnded,
    PeerGone,
    PlanDecided,
    PrefixCacheResetAsked,
    StartFailed,
    StartWorker,
    TimePassed,
    UndrainAsked,
)
from tandem.messages.operator import (
    Answer,
    AskAudit,
    AskDrain,
    AskExplain,
    AskStatus,
    AskUndrain,
    AuditReported,
    Done,
    Explained,
    OperatorMessage,
    ReportStartFailed,
    StatusReported,
)
from tandem.messages.router import (
    AnnounceDegraded,
    CutOff,
    Explain,
    LeaveOut,
    Reject,
    RequestSubmitted,
)
from tandem.messages.worker import FailRequest, ImportsArrived, PrefillsArrived, RequestsArrived
from tandem.report.record import Ending

logger = logging.getLogger(__name__)

Input = GatewayInput | MessageFromOperator
Asked = DrainAsked | UndrainAsked | AuditAsked
# Nobody asks so many things at once; the oldest go without an answer then.
MOST_QUESTIONS = 1024
# So many new requests at one go: a call may bring 64, and to choose their workers takes a fraction
# of a millisecond for each.
SUBMITTED_TOGETHER = 16


class OperatorRequests:
    """Requests of operators in progress: turns questions into events of the gateway machine, and
    its ends into answers. Those of this process have a future for the problem, if there is one."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[str, int]] = {}
        self._own: dict[int, Future[str]] = {}
        self._serial = 0

    def ask(self, peer: str, message: OperatorMessage) -> Asked | None:
        """The event for the machine; None for what is no operation."""
        match message:
            case AskDrain(question, worker, order):
                return DrainAsked(self._number(peer, question), worker, order)
            case AskUndrain(question, worker):
                return UndrainAsked(self._number(peer, question), worker)
            case AskAudit(question):
                return AuditAsked(self._number(peer, question))
        return None

    def reset_prefix_cache(self, external: bool, ended: Future[str]) -> PrefixCacheResetAsked:
        """The event for a reset that this process wants."""
        return PrefixCacheResetAsked(self._own_number(ended), external)

    def drain(self, worker: str, order: Drain, ended: Future[str]) -> DrainAsked:
        """The event for a drain that this process wants."""
        return DrainAsked(self._own_number(ended), worker, order)

    def undrain(self, worker: str, ended: Future[str]) -> UndrainAsked:
        """The event for its end."""
        return UndrainAsked(self._own_number(ended), worker)

    def ended(self, effect: OperationEnded | AuditEnded) -> tuple[str, Answer] | None:
        """The peer that asked, and its answer; None where there is none to send."""
        own = self._own.pop(effect.operation_id, None)
        if own is not None and not own.done():
            own.set_result(effect.problem)
        asker = self._asked.pop(effect.operation_id, None)
        if asker is None:
            return None
        peer, question = asker
        if isinstance(effect, OperationEnded):
            return peer, Done(question, effect.problem)
        return peer, AuditReported(question, effect.workers, effect.problem)

    def _own_number(self, ended: Future[str]) -> int:
        self._serial += 1
        self._own[self._serial] = ended
        return self._serial

    def _number(self, peer: str, question: int) -> int:
        self._serial += 1
        self._asked[self._serial] = (peer, question)
        if len(self._asked) > MOST_QUESTIONS:
            del self._asked[next(iter(self._asked))]
        return self._serial


class Channel(Protocol):
    """The way to workers and operators, as `live.channels.gateway_channel.GatewayChannel`: nothing
    waits."""

    def send(self, peer: str, message: ToWorker) -> None: ...

    def answer(self, peer: str, message: Answer) -> None: ...

    def drop(self, peer: str) -> None: ...

    async def close(self, linger_s: float) -> None: ...


class GatewayLoop:
    """Drives the machine, and is all of its ports. `enqueue` events on the event loop that `run`
    runs on. `settled` is called after each turn of the machine, and `configured` in one in which it
    has taken another configuration; the `journal`, if there is one, records every turn.
    `simulation` is the command that simulates shapes for a planner."""

    def __init__(
        self,
        machine: GatewayMachine,
        clients: Clients,
        settled: Callable[[], None],
        journal: Journal | None = None,
        histories: RequestHistories | None = None,
        configured: Callable[[], None] = lambda: None,
        simulation: Sequence[str] = (),
    ) -> None:
        self.machine = machine
        self._journal = journal
        self._configured = configured
        self._histories = histories or RequestHistories("", 0)
        self._clients = clients
        self._settled = settled
        self.event_log = EventLog()
        self._requests = OperatorRequests()
        # Who is to be answered at the end of this turn.
        self._asked: list[tuple[str, AskStatus | AskExplain | ReportStartFailed]] = []
        self._inbox = EventInbox[Input](_together)
        self._driver = Driver[Input, GatewayEffect, None](
            self, self._inbox, self._perform_all, TimePassed()
        )
        self._simulator = ShapeSimulator(simulation, self.enqueue)
        self._ports = GatewayPorts(self, self, self, self, self._simulator)
        self._instant_ns = 0
        # From `open` on.
        self._channel: Channel

    def enqueue(self, event: Input) -> None:
        self._inbox.enqueue(event)

    def reset_prefix_cache(self, external: bool, ended: Future[str]) -> None:
        """Have all processes forget what is cached; `ended` gets the problem, or nothing."""
        self._inbox.enqueue(self._requests.reset_prefix_cache(external, ended))

    def drain(self, worker: str, order: Drain, ended: Future[str]) -> None:
        """As an operator asks it; `ended` gets the problem, or nothing."""
        self._inbox.enqueue(self._requests.drain(worker, order, ended))

    def undrain(self, worker: str, ended: Future[str]) -> None:
        """As an operator asks it; `ended` gets the problem, or nothing."""
        self._inbox.enqueue(self._requests.undrain(worker, ended))

    def open(self, channel: Channel) -> None:
        """Before the first turn: the way to workers and operators."""
        self._channel = channel

    async def run(self) -> None:
        """Until it is cancelled. What the machine raises is raised."""
        await self._driver.run()

    async def stop_simulating(self) -> None:
        """A planner's question stays without an answer."""
        await self._simulator.stop()

    def settle_all(self) -> None:
        """After the end of `run`: hand the machine all that is left."""
        self._driver.settle()

    def handle_together(self, inputs: Sequence[Input], instant_ns: int) -> Sequence[GatewayEffect]:
        """The machine gets all but the questions of operators that it need not decide."""
        events: list[GatewayInput] = []
        for event in inputs:
            if not isinstance(event, MessageFromOperator):
                self._note(event, instant_ns)
                events.append(event)
            elif isinstance(event.message, AskStatus | AskExplain):
                self._asked.append((event.peer, event.message))
            elif isinstance(event.message, ReportStartFailed):
                self._asked.append((event.peer, event.message))
                events.append(StartFailed(event.message.worker, event.message.reason))
            elif asked := self._requests.ask(event.peer, event.message):
                events.append(asked)
        return self._decide(events, instant_ns)

    def next_wakeup(self) -> int | None:
        return self.machine.next_wakeup()

    def send_to_peer(self, peer: str, message: ToWorker) -> None:
        self._channel.send(peer, message)
        if isinstance(message, RequestsArrived | PrefillsArrived | ImportsArrived):
            member = self.machine.members.of_peer(peer)
            worker = "" if member is None else member.name
            self._clients.sent(message.requests, worker, self._instant_ns)
        elif isinstance(message, Registered):
            self._greeted(peer)

    def fence(self, effect: Fence) -> None:
        logger.error("worker %s counts as dead: %s", effect.peer, effect.reason)
        self.event_log.add(
            self._instant_ns, "lost", f"{effect.peer} counts as dead: {effect.reason}"
        )
        self._clients.metrics.worker_lost()
        self._channel.drop(effect.peer)

    def deliver(self, effect: Deliver) -> None:
        self._clients.deliver(effect.emission, effect.worker, self._instant_ns)
        self._histories.delivered(effect.emission, self._instant_ns)

    def reject(self, effect: Reject) -> None:
        self._clients.reject(effect, self._instant_ns)
        self._ended(effect.request_id, Ending.REJECTED, effect.reason)

    def leave_out(self, effect: LeaveOut) -> None:
        self._clients.leave_out(effect, self._instant_ns)
        self._ended(effect.request_id, Ending.REJECTED, f"left out of its call: {effect.reason}")

    def cut_off(self, effect: CutOff) -> None:
        self._clients.cut_off(effect, self._instant_ns)
        self._ended(effect.request_id, Ending.FINISHED, str(FinishReason.DEADLINE))

    def announce_degraded(self, effect: AnnounceDegraded) -> None:
        self._clients.announce_degraded(effect)

    def fail(self, effect: FailRequest) -> None:
        logger.error("request %s is given up: %s", effect.request_id, effect.reason)
        self._clients.fail(effect, self._instant_ns)
        self._ended(effect.request_id, Ending.FAILED, effect.reason)

    def operation_ended(self, effect: OperationEnded | AuditEnded) -> None:
        if isinstance(effect, OperationEnded) and effect.problem:
            # Whoever asked may have gone by now.
            text = f"an operator's order was not carried out: {effect.problem}"
            self.event_log.add(self._instant_ns, "failed", text)
        if answer := self._requests.ended(effect):
            self._channel.answer(*answer)

    def explain(self, effect: Explain) -> None:
        self._histories.explain(effect, self._instant_ns)

    def start_worker(self, effect: StartWorker) -> None:
        # Whoever launches processes reads it in the status.
        logger.info("the planner wants %s started as %s", effect.worker, effect.role)

    def plan_decided(self, effect: PlanDecided) -> None:
        if effect.decision.actions:
            logger.info("planned: %s", effect.decision.text)
            self.event_log.add(self._instant_ns, "planned", effect.decision.text)

    def configuration_taken(self, effect: ConfigurationTaken) -> None:
        logger.warning("configuration %d was applied", effect.number)
        text = f"configuration {effect.number} was applied"
        self.event_log.add(self._instant_ns, "configured", text)
        self._configured()

    def _perform_all(self, effects: Sequence[GatewayEffect], instant_ns: int) -> None:
        self._instant_ns = instant_ns
        perform(effects, self._ports)
        self._settled()
        asked, self._asked = self._asked, []
        for peer, question in asked:
            if isinstance(question, AskStatus):
                status = self.machine.status(instant_ns)
                self._channel.answer(peer, StatusReported(question.question, status))
            elif isinstance(question, AskExplain):
                found = self._histories.find(question.request_id, instant_ns)
                self._channel.answer(peer, Explained(question.question, instant_ns, found))
            else:
                self._channel.answer(peer, Done(question.question))

    def _decide(self, events: list[GatewayInput], instant_ns: int) -> list[GatewayEffect]:
        effects: list[GatewayEffect] = []
        try:
            effects = self.machine.handle_together(events, instant_ns)
        finally:
            # What a machine failed at stands in the journal too.
            if self._journal is not None:
                self._journal.record(instant_ns, events, effects)
        return effects

    def _ended(self, request_id: str, ending: Ending, reason: str) -> None:
        self._histories.request_ended(request_id, ending, reason, self._instant_ns)

    def _note(self, event: GatewayInput, instant_ns: int) -> None:
        if isinstance(event, PeerGone) and (member := self.machine.members.of_peer(event.peer)):
            logger.warning("worker %s is gone: %s", event.peer, event.reason)
            self.event_log.add(instant_ns, "lost", f"{member.name} is gone: {event.reason}")
            self._clients.metrics.worker_lost()
        elif isinstance(event, PeerGone) and self.machine.pool.nodes.of_peer(event.peer):
            logger.warning("%s of the shared pool is gone: %s", event.peer, event.reason)
            text = f"{event.peer} of the shared pool is gone: {event.reason}"
            self.event_log.add(instant_ns, "lost", text)
        elif isinstance(event, MessageFromWorker) and isinstance(event.message, Register):
            logger.info("worker %s presents itself", event.peer)

    def _greeted(self, peer: str) -> None:
        member = self.machine.members.of_peer(peer)
        router = self.machine.router
        if member:
            self.event_log.add(self._instant_ns, "joined", f"{member.name} joined as {member.role}")
        if member and not member.indexed(router.admission.roots, router.config.block_size):
            logger.warning(
                "worker %s keeps KV in another form than most: prompts are not routed to it by "
                "what it has cached",
                peer,
            )


def _together(events: Sequence[Input]) -> int:
    """How many of the first, with not too many new requests among them."""
    submitted = 0
    for index, event in enumerate(events):
        submitted += isinstance(event, RequestSubmitted)
        if submitted > SUBMITTED_TOGETHER:
            return index
    return len(events)
