"""The simulated cluster at work: performs what the router and the workers ask for, on the virtual
clock, where the live cluster would use processes and sockets."""

from tandem.cluster.router.admission import RouterConfig
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.machine import RouterMachine
from tandem.facts.errors import Overloaded
from tandem.facts.fleet import Role, Tier
from tandem.messages.router import (
    AskForBlocks,
    BlocksListed,
    BlocksReported,
    CancelTransfer,
    Explain,
    ImportCancelled,
    ImportReported,
    KvReported,
    Reject,
    RequestRefused,
    RoleTaken,
    RouterEffect,
    RouterEvent,
    StartTransfer,
    Tell,
    TokensReported,
    WorkerJoined,
    WorkerLost,
)
from tandem.messages.worker import (
    CancelImport,
    EmitTokens,
    FailRequest,
    ImportBlocks,
    ImportsArrived,
    KvComputed,
    PrefillsArrived,
    Refuse,
    ReportBlocks,
    RequestsArrived,
    WorkerEvent,
)
from tandem.report.record import Decision, RunRecord, WorkerRecord
from tandem.twin.agenda import Agenda
from tandem.twin.members import Member, Members
from tandem.twin.recorder import Recorder
from tandem.twin.scenario import Pool, Scenario
from tandem.twin.step_recorder import StepRecorder
from tandem.twin.transport import Transport
from tandem.twin.worker import CACHE_ROOT, Leapt, SimulatedEffect, SimulatedWorker


class World:
    """Router, workers, network and records. Everybody who may ever come up is known from the start;
    `members` are those who are up."""

    def __init__(self, scenario: Scenario, run: RunRecord) -> None:
        self.scenario = scenario
        self.run = run
        self.agenda = Agenda()
        self.recorder = Recorder(run)
        self.steps = StepRecorder(run, self.recorder)
        policies = scenario.policies
        self.pools = {name: pool for pool in scenario.pools for name in pool.workers()}
        self.router = RouterMachine(
            RouterConfig(
                block_size=scenario.block_size,
                root=CACHE_ROOT,
                capacities={name: _capacity(pool, scenario) for name, pool in self.pools.items()},
                routing=policies.routing,
                admission=policies.admission,
                dispatching=policies.dispatching,
                classes=policies.classes,
                queue=policies.queue,
                explains=scenario.explains,
            )
        )
        self.transport = Transport(scenario, self.agenda, self.recorder, self.tell_router)
        for name, pool in self.pools.items():
            self.transport.add_worker(name, pool)
        self.members = Members(self.agenda, self._hear, self._land)
        self._order = {name: index for index, name in enumerate(self.pools)}
        self._report_ns = round(scenario.report_interval_s * 1e9)
        self._reported_ns = -1
        self._mail: list[RouterEvent] = []
        self._delivering = False
        self.gateway_up = True

    def join(self, name: str, role: Role, now_ns: int) -> None:
        """A worker is up, empty."""
        pool = self.pools[name]
        self.steps.worker(WorkerRecord(name, str(role), pool.kind.device, pool.kind.devices))
        worker = SimulatedWorker(name, pool.kind, self.scenario, self.steps)
        self.members.up[name] = Member(worker, pool, role, self._order[name], now_ns)
        self.tell_router(WorkerJoined(name, role), now_ns)
        self.transport.tiers.relist(name, now_ns)

    def leave(self, name: str, now_ns: int) -> None:
        """A worker is gone, whether it was told to or died."""
        self.catch_up(now_ns)
        self.settle_accounts(name, now_ns)
        del self.members.up[name]
        self.transport.lose_worker(name, now_ns)
        self.tell_router(WorkerLost(name), now_ns)

    def take_role(self, name: str, role: Role, now_ns: int) -> None:
        """A drained worker begins to work in another role, with the cache it has."""
        self.members.up[name].role = role
        record = self.steps.of(name)
        record.role, record.flips = str(role), record.flips + 1
        self.tell_router(RoleTaken(name, role), now_ns)

    def finished(self, name: str) -> bool:
        """Whether nobody needs this worker any more."""
        idle = self.members.up[name].worker.idle
        return idle and not any(p.needs(name) for p in self.router.requests.values())

    def settle_accounts(self, name: str, now_ns: int) -> None:
        """Write down what a worker was up for, until now."""
        member = self.members.up[name]
        record = self.steps.of(name)
        record.up_ns += now_ns - member.since_ns
        record.preemptions += member.worker.machine.planner.preemptions
        member.since_ns = now_ns

    def tell_router(self, event: RouterEvent, now_ns: int) -> None:
        """Events wait until the effects of those before them are performed, as messages do."""
        if not self._delivering and self.router.admission.queue.heeds_output:
            self.catch_up(now_ns)
        self._mail.append(event)
        self._deliver(now_ns)

    def catch_up(self, now_ns: int) -> None:
        """All tokens that are there by now are known to the router before it decides."""
        self._delivering = True
        self.members.catch_up(now_ns)
        self._delivering = False
        self._deliver(now_ns)

    def _deliver(self, now_ns: int) -> None:
        if self._delivering:
            return
        self._delivering = True
        while self._mail:
            events, self._mail = self._mail, []
            self._perform(self.router.handle_together(events, now_ns), now_ns)
        self._delivering = False

    def _land(self, name: str, now_ns: int) -> None:
        """Steps of a worker land; where the router may decide by them, all that land now."""
        if self.router.admission.queue.heeds_output:
            self.catch_up(now_ns)
        else:
            self.members.catch_up_one(name, now_ns)

    def refresh_loads(self, now_ns: int) -> None:
        """Workers report what they carry, if their last report is old enough."""
        if self._reported_ns >= 0 and now_ns - self._reported_ns < self._report_ns:
            return
        self._reported_ns = now_ns
        for member in self.members.up.values():
            if member.hangs:
                continue
            load = member.worker.load(now_ns)
            if load is not member.reported:
                member.reported = load
                self.router.handle(load, now_ns)

    def decide(self, decision: Decision) -> None:
        """Keep a decision: always one about the fleet, one about a request when asked for."""
        if self.scenario.explains or not decision.request_id:
            self.run.decisions.append(decision)

    def _perform(self, effects: list[RouterEffect], now_ns: int) -> None:
        for effect in effects:
            match effect:
                case Tell(name, event):
                    self._note_route(name, event, now_ns)
                    self.members.tell(name, event, now_ns)
                case StartTransfer():
                    state = self.router.state_of(effect.request_id)
                    self.transport.start(effect, state, now_ns)
                case CancelTransfer(transfer_id):
                    self.transport.cancel(transfer_id, now_ns)
                case Reject(request_id, reason, retry_after_s):
                    self.recorder.rejected(request_id, reason, retry_after_s, now_ns)
                case FailRequest(request_id, reason):
                    self.recorder.turned_away(request_id, reason, now_ns)
                case Explain(request_id, kind, text, figures):
                    self.decide(Decision(now_ns, request_id, kind, text, figures))
                case AskForBlocks(name, Tier.DEVICE) if name in self.members.up:
                    pool = self.members.up[name].worker.machine.sequences.pool
                    self.tell_router(BlocksListed(name, Tier.DEVICE, *pool.listing()), now_ns)

    def _note_route(self, name: str, event: WorkerEvent, now_ns: int) -> None:
        match event:
            case RequestsArrived(requests) | PrefillsArrived(requests, _):
                for request in requests:
                    self.recorder.routed(request.request_id, name, True, now_ns)
            case ImportsArrived(requests, _):
                for request in requests:
                    state = self.router.state_of(request.request_id)
                    prefill = state is not None and state.prefill == name
                    self.recorder.routed(request.request_id, name, prefill, now_ns)

    def _hear(self, name: str, effects: list[SimulatedEffect], now_ns: int) -> None:
        """What a worker says, to whom it concerns."""
        for effect in effects:
            match effect:
                case Leapt(emission, steps):
                    self.tell_router(TokensReported(name, emission, steps), now_ns)
                case EmitTokens():
                    self.transport.tiers.pin_ended(name, effect, self.router.state_of, now_ns)
                    self.tell_router(TokensReported(name, effect), now_ns)
                case ReportBlocks(changes):
                    self.tell_router(BlocksReported(name, Tier.DEVICE, changes), now_ns)
                    self.transport.tiers.write_through(name, changes, now_ns)
                case KvComputed():
                    self.tell_router(KvReported(name, effect), now_ns)
                case ImportBlocks():
                    self.tell_router(ImportReported(name, effect), now_ns)
                case CancelImport(request_id):
                    self.tell_router(ImportCancelled(name, request_id), now_ns)
                case Refuse(request_id, error):
                    again_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
                    refused = RequestRefused(name, request_id, str(error), again_s)
                    self.tell_router(refused, now_ns)


def _capacity(pool: Pool, scenario: Scenario) -> Capacity:
    kind = pool.kind
    return Capacity(kind.cost, scenario.block_size, kind.block_count, kind.max_sequences)
