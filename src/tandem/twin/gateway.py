"""A simulated gateway: the machine that runs live, over channels and clients that are
bookkeeping."""

from collections.abc import Sequence
from typing import Protocol

from tandem.cluster.gateway.configuration import GatewayInput
from tandem.cluster.gateway.driver import GatewayPorts, perform
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.gateway.routing import ARRIVALS, Arrival
from tandem.cost.worker import ServingCost
from tandem.facts.fleet import Role
from tandem.messages.cluster import ToWorker
from tandem.messages.gateway import (
    AuditEnded,
    ConfigurationTaken,
    Deliver,
    Fence,
    MessageFromWorker,
    OperationEnded,
    PlanDecided,
    SimulateShapes,
    StartWorker,
    TimePassed,
)
from tandem.messages.router import (
    AnnounceDegraded,
    CutOff,
    Explain,
    LeaveOut,
    Reject,
    RequestSubmitted,
)
from tandem.messages.worker import FailRequest, ImportsArrived
from tandem.report.record import Decision
from tandem.twin.event_queue import Timer
from tandem.twin.gateway_loop import GatewayLoop
from tandem.twin.message_bus import MessageBus
from tandem.twin.process import Process
from tandem.twin.recorder import Recorder


class ClusterPort(Protocol):
    """What a gateway needs of the cluster beside its channels."""

    def catch_up(self) -> None:
        """All tokens that are there by now are reported."""
        ...

    def send_heartbeats(self) -> None:
        """All workers that can report."""
        ...

    def fence(self, gateway: str, peer: str) -> None:
        """The gateway closes the channel of that process."""
        ...

    def decided(self, decision: Decision) -> None: ...

    def start_planned(self, worker: str, role: Role) -> None:
        """The planner wants a worker."""
        ...

    def simulate_shapes(self, gateway: str, effect: SimulateShapes) -> None:
        """The planner asks what other shapes would have done."""
        ...


class SimulatedGateway(Process[GatewayInput]):
    """One start of a gateway; all ports of its machine but the channels to peers."""

    def __init__(
        self,
        machine: GatewayMachine,
        incarnation: str,
        bus: MessageBus,
        recorder: Recorder,
        cluster: ClusterPort,
        serving: ServingCost | None = None,
    ) -> None:
        super().__init__(machine.config.gateway, incarnation, bus)
        self.machine = machine
        self._recorder = recorder
        self._cluster = cluster
        # None: requests and tokens pass it in no time.
        self.loop: GatewayLoop | None = None
        if serving is not None:
            self.loop = GatewayLoop(serving, bus.queue, recorder, lambda: self.alive)
        self._ports = GatewayPorts(self, self, self, self, self)
        self._timer = Timer(bus.queue, self._time_passed)
        # By worker, when the steps landed that the mail tells of together, message by message.
        self._landed_ns: dict[str, list[Sequence[int]]] = {}
        self._now_ns = 0
        # All that it was asked for, ended or not, by request id.
        self.asked: dict[str, None] = {}
        # By id, the operations that have ended.
        self.operations: dict[int, OperationEnded | AuditEnded] = {}

    def start(self) -> None:
        self.receive(TimePassed())

    def receive_report(self, event: MessageFromWorker, landed_ns: Sequence[int]) -> None:
        if landed_ns:
            self._landed_ns.setdefault(event.message.worker, []).append(landed_ns)
        self.receive(event)

    def submit(self, event: RequestSubmitted) -> None:
        """A client asks for an answer."""
        self.asked[event.request.request_id] = None
        self.receive(event)

    def resumed(self, now_ns: int) -> None:  # noqa: ARG002
        self.receive(TimePassed())

    def take_mail(self, now_ns: int) -> None:
        if self.hangs or not self.alive:
            return
        if self.machine.router.admission.queue.depends_on_output:
            # Before anybody is chosen to go next, all tokens that are there by now are known.
            mail, self.mail = self.mail, []
            self._cluster.catch_up()
            self.mail += mail
        events, self.mail = self.mail, []
        self._now_ns = now_ns
        perform(self.machine.handle_together(events, now_ns), self._ports)
        self._landed_ns.clear()
        self._timer.set(self.machine.next_wakeup())

    def send_to_peer(self, peer: str, message: ToWorker) -> None:
        if isinstance(message, ARRIVALS):
            self._note_route(peer, message)
        self.bus.to_peer(self.name, peer, message)

    def fence(self, effect: Fence) -> None:
        self._cluster.fence(self.name, effect.peer)

    def deliver(self, effect: Deliver) -> None:
        if self.loop is not None:
            assert effect.repeats == 1
            self.loop.send_tokens(effect.emission)
            return
        # Steps taken at one go are reported before one that lands now, which draws for the same.
        landed_ns: Sequence[int] = (self._now_ns,) * effect.repeats
        landed = self._landed_ns.get(effect.worker)
        while landed:
            # Messages of which nothing reached a client are passed over.
            found = landed.pop(0)
            if len(found) == effect.repeats:
                landed_ns = found
                break
        self._recorder.delivered(effect.emission, landed_ns)

    def reject(self, effect: Reject) -> None:
        self._recorder.rejected(
            effect.request_id, effect.reason, effect.retry_after_s, self._now_ns
        )

    def leave_out(self, effect: LeaveOut) -> None:
        self._recorder.rejected(effect.request_id, effect.reason, 0.0, self._now_ns)

    def cut_off(self, effect: CutOff) -> None:
        self._recorder.cut_off(effect.request_id, self._now_ns)

    def announce_degraded(self, effect: AnnounceDegraded) -> None:
        self._recorder.degraded(effect.request_id, effect.degraded)

    def fail(self, effect: FailRequest) -> None:
        self._recorder.turned_away(effect.request_id, effect.reason, self._now_ns)

    def operation_ended(self, effect: OperationEnded | AuditEnded) -> None:
        self.operations[effect.operation_id] = effect

    def explain(self, effect: Explain) -> None:
        decision = Decision(
            self._now_ns, effect.request_id, effect.kind, effect.text, effect.figures
        )
        self._cluster.decided(decision)

    def start_worker(self, effect: StartWorker) -> None:
        self._cluster.start_planned(effect.worker, effect.role)

    def simulate_shapes(self, effect: SimulateShapes) -> None:
        self._cluster.simulate_shapes(self.name, effect)

    def plan_decided(self, effect: PlanDecided) -> None:
        decision = effect.decision
        if decision.actions:
            self._cluster.decided(
                Decision(self._now_ns, "", "planning", decision.text, decision.figures)
            )

    def configuration_taken(self, effect: ConfigurationTaken) -> None:
        text = f"configuration {effect.number}"
        self._cluster.decided(Decision(self._now_ns, "", "configuration", text, ()))

    def _time_passed(self, now_ns: int) -> None:  # noqa: ARG002
        if self.alive and not self.hangs:
            # Who is silent is judged by what would have been heard by now.
            self._cluster.send_heartbeats()
            self.receive(TimePassed())

    def _note_route(self, peer: str, message: Arrival) -> None:
        member = self.machine.members.of_peer(peer)
        if member is None:
            # It was fenced in the very turn in which it was chosen.
            return
        for request in message.requests:
            computes = True
            if isinstance(message, ImportsArrived):
                state = self.machine.router.state_of(request.request_id)
                computes = state is not None and state.prefill == member.name
            self._recorder.routed(request.request_id, member.name, computes, self._now_ns)
