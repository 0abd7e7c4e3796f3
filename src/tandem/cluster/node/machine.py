"""The node machine of a worker process: gateways, leases, KV transfers and tiers around the worker
machine (the scheduler).

No sockets, engine or memory: events in, effects out. Every request belongs to one gateway.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from tandem.cluster.audit import first_broken_law
from tandem.cluster.node.fetches import is_prefetch
from tandem.cluster.node.gateways import (
    NO_TOTALS,
    GatewayConnection,
    GatewayConnections,
    RoleState,
)
from tandem.cluster.node.inbound_transfers import Order
from tandem.cluster.node.peers import Peers
from tandem.cluster.node.tiers import WorkerTiers
from tandem.cluster.node.work import Work
from tandem.cluster.router.request_state import failed_over
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.worker.load import adapter_figures, addressed, load_of
from tandem.cluster.worker.machine import WorkerMachine
from tandem.facts.adapter import AdapterMemory
from tandem.facts.fleet import Tier
from tandem.facts.kv import MoveKv
from tandem.messages.cluster import (
    Audit,
    Audited,
    Deregister,
    Drain,
    FetchKv,
    LeasesRenewed,
    ListBlocks,
    NotNeeded,
    PeerJoined,
    PeerLost,
    PinBlocks,
    PoolNodeGone,
    PoolNodeJoined,
    PrefixCacheEmptied,
    Register,
    RegisterAgain,
    Registered,
    RegistrationRefused,
    RoleStateReported,
    StopMove,
    ToWorker,
    Undrain,
)
from tandem.messages.node import (
    AdapterMemoryChanged,
    BlocksExported,
    BlocksFetched,
    BlocksKept,
    BlocksStaged,
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
    MoveFinished,
    NodeEffect,
    NodeEvent,
    SendToGateway,
)
from tandem.messages.router import BlocksListed, LoadReported, RequestsLost
from tandem.messages.sharing import (
    RelayedFromGateway,
    RelayToGateway,
    ShareUse,
    UseShared,
)
from tandem.messages.worker import (
    CopiesRequested,
    EmitTokens,
    ImportDone,
    ImportsArrived,
    KvTransfersRequested,
    PrefillsArrived,
    PrefixCacheReset,
    RequestsAborted,
    RequestsArrived,
    SessionPaused,
    SessionReturning,
    StepDone,
    TransferPinsReleased,
)

Effects = list[NodeEffect]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`registration` is what the worker registers with; its role and `accepting` are those it
    starts with. `tiers` are those below its device, whose worker machine reports committed blocks;
    None where there are none. With `reports_when_asked` the load is not reported by time while the
    worker takes requests: a simulator calls `report` before a decision that needs it, and reports
    that would be superseded by then are never made."""

    registration: Register
    tiers: TiersConfig | None = None
    reports_when_asked: bool = False


class NodeMachine:
    """`handle(event, now_ns)` gives the effects to perform, in order; after `Leave` there are none.
    `gateways` are the gateways, `work` is what they have asked for."""

    def __init__(self, config: NodeConfig, machine: WorkerMachine) -> None:
        self.registration = config.registration
        self._reports_when_asked = config.reports_when_asked
        self.role_state = RoleState(config.registration.role, config.registration.accepting)
        self.gateways = GatewayConnections()
        self.peers = Peers()
        assert config.tiers is None or machine.config.reports_committed
        worker = config.registration.worker
        self.tiers: WorkerTiers | None = None
        if config.tiers is not None:
            self.tiers = WorkerTiers(config.tiers, machine, self.gateways, worker=worker)
        self.work = Work(worker, machine, self.gateways, self.tiers)
        # None where no adapters are served.
        self._adapter_memory: AdapterMemory | None = None
        self._wakeup_ns: int | None = None
        self._left = False

    def next_wakeup(self) -> int | None:
        """When `TimePassed` is due, if nothing happens before."""
        return self._wakeup_ns

    def handle(self, event: NodeEvent, now_ns: int) -> Effects:
        return self.handle_together((event,), now_ns)

    def handle_together(self, events: Sequence[NodeEvent], now_ns: int) -> Effects:
        """Events of one instant: requests that arrive together are planned into one step."""
        if self._left:
            return []
        if self._wakeup_ns is not None and now_ns > self._wakeup_ns:
            self.gateways.slept(now_ns - self._wakeup_ns)
        effects: Effects = []
        if self.tiers is not None and not self.tiers.begun:
            effects += self.tiers.report_contents(now_ns)
        if len(events) > 1:
            # What has arrived is known before the landed steps are followed by the next.
            events = sorted(events, key=lambda each: isinstance(each, StepDone))
        for event in events:
            self._take(event, now_ns, effects)
        effects += self.work.flush(now_ns)
        if self.work.outbox.take_ended() and not self._waits_to_be_asked:
            for _, connection in self.gateways.serving():
                connection.report_soon(now_ns)
        due_ns = self._due_ns()
        if due_ns is not None and due_ns <= now_ns:
            effects += self._keep_time(now_ns)
            due_ns = self._due_ns()
        if not self.role_state.accepting:
            effects += self._finish_drain()
            due_ns = self._due_ns()
        self._wakeup_ns = due_ns
        if self._left:
            self._wakeup_ns = None
            return _until_leaving(effects)
        return effects

    @property
    def _waits_to_be_asked(self) -> bool:
        # Whoever drains a worker waits for its reports.
        return self._reports_when_asked and self.role_state.accepting

    def report(self, load: LoadReported, now_ns: int, *, tiers: bool = True) -> Effects:
        """Report this load to every gateway, due or not, and the figures of the slower `tiers`. A
        simulator that is ahead of the worker machine computes the load itself."""
        effects: Effects = []
        for gateway, connection in self.gateways.serving():
            effects += self._report(gateway, connection, load, now_ns, tiers=tiers)
        return effects

    def report_to(self, gateway: str, load: LoadReported, now_ns: int) -> LoadReported | None:
        """The report of this load for that gateway, which gets it."""
        connection = self.gateways.of(gateway)
        if connection is None or connection.terms is None:
            return None
        return self._addressed(load, connection, now_ns)

    def fast_forward(self, steps: int, emission: EmitTokens, landed_ns: int) -> Effects:
        """As if `steps` steps that are known already (`repeatable_steps`) had landed, the last of
        them at `landed_ns`, and each had drawn `emission`."""
        self.work.machine.fast_forward(steps, emission.tokens, landed_ns)
        if self.tiers is not None:
            self.tiers.clock.skipped(landed_ns)
        return self.work.outbox.repeated(emission, steps)

    @property
    def any_import_ends(self) -> bool:
        """Whether an import ends as soon as nobody writes to its blocks any more."""
        return self.work.inbound.any_concluded

    def order_of(self, move_id: int) -> Order | None:
        """What a move or a fetch that is under way was ordered to bring; None for a prefetch."""
        return None if is_prefetch(move_id) else self.work.inbound.moving[move_id].order

    def audit(self) -> None:
        """Assert that nothing is lost: every request has an owner, every block its writers. For
        tests and for the auditor."""
        self.work.audit()

    def _take(self, event: NodeEvent, now_ns: int, effects: Effects) -> None:
        match event:
            case StepDone():
                effects += self.work.pass_to_machine(event, now_ns)
            case MessageFromGateway(gateway, message):
                effects += self._receive(gateway, message, now_ns)
            case MoveFinished() | BlocksStaged() | BlocksKept() | BlocksFetched():
                effects += self.work.transfer_event(event, now_ns)
            case BlocksExported(export_id):
                effects += self.work.outbox.exported(export_id)
            case GatewayConnected(gateway):
                effects += self._forget(gateway, now_ns)
                self.gateways.connect(gateway)
                effects += self._register_at(gateway, now_ns)
            case GatewayGone(gateway):
                effects += self._forget(gateway, now_ns)
                self.gateways.disconnect(gateway)
            case AdapterMemoryChanged(memory):
                self._adapter_memory = memory
            case LeaveRequested():
                self.role_state.leave()
                effects += self._report_role_state(begun=True)

    def _receive(self, gateway: str, message: ToWorker, now_ns: int) -> Effects:
        connection = self.gateways.of(gateway)
        if connection is None:
            # Its channel has just broken: what it wanted is void.
            return []
        connection.last_message_ns = now_ns
        match message:
            case Registered():
                return self._registered(gateway, message, now_ns)
            case RegistrationRefused(reason):
                self._left = True
                return [Leave(reason)]
            case RegisterAgain():
                return self._forget(gateway, now_ns) + self._register_at(gateway, now_ns)
            case _ if connection.terms is None:
                # It has not received the Register that is on its way.
                return []
            case RequestsArrived() | PrefillsArrived() | ImportsArrived():
                connection.received_events += 1
                end_ns = now_ns + connection.terms.lease_ns
                if any(failed_over(each.request_id) for each in message.requests):
                    # Should this worker die of it, the gateway has seen that it lived when it came.
                    connection.report_at(now_ns)
                return self.work.requests_arrived(gateway, message, end_ns, now_ns)
            case LeasesRenewed(request_ids):
                self.work.leases.renew(gateway, request_ids, now_ns + connection.terms.lease_ns)
                return []
            case (
                ImportDone()
                | CopiesRequested()
                | KvTransfersRequested()
                | TransferPinsReleased()
                | RequestsAborted()
            ):
                connection.received_events += 1
                return self.work.change(gateway, message, now_ns)
            case SessionPaused() | SessionReturning():
                return self.work.session_event(message, now_ns)
            case PrefixCacheReset():
                emptied = PrefixCacheEmptied(self.registration.worker)
                effects = self.work.reset_prefix_cache(message, now_ns)
                return [*effects, SendToGateway(gateway, emptied)]
            case Audit():
                return [*self.work.flush(now_ns), SendToGateway(gateway, _audited(self))]
            case _:
                return self._carry_out(gateway, connection, message, now_ns)

    def _carry_out(
        self, gateway: str, connection: GatewayConnection, message: ToWorker, now_ns: int
    ) -> Effects:
        match message:
            case MoveKv():
                known = (message.source, message.incarnation) in self.peers
                problem = "" if known else f"{message.source} is no peer of this worker"
                return self.work.order_transfer(gateway, message, problem, now_ns)
            case FetchKv():
                problem = "" if self.tiers is not None else "this worker has no slower tiers"
                return self.work.order_transfer(gateway, message, problem, now_ns)
            case StopMove(transfer_id):
                return self.work.stop_move(gateway, transfer_id, now_ns)
            case PinBlocks() | PoolNodeJoined() | PoolNodeGone() if self.tiers is not None:
                return self.tiers.gateway_message(gateway, message, now_ns)
            case PeerJoined():
                return self.peers.joined(gateway, message)
            case PeerLost(worker, incarnation):
                return self.peers.lost(worker, incarnation)
            case Drain():
                self.role_state.drain_for(message)
                return self._report_role_state(begun=True)
            case Undrain():
                self.role_state.undrain()
                return self._report_role_state()
            case ShareUse(use):
                shared = UseShared(self.registration.worker, use)
                others = (name for name, _ in self.gateways.serving() if name != gateway)
                return [SendToGateway(name, shared) for name in others]
            case RelayToGateway(to, content):
                return self._relay(connection, to, content)
            case NotNeeded():
                connection.not_needed = True
            case ListBlocks(tier):
                return [SendToGateway(gateway, each) for each in _listings(self.work, (tier,))]
        return []

    def _relay(self, sender: GatewayConnection, to: str, content: bytes) -> Effects:
        assert sender.terms is not None
        relayed = RelayedFromGateway(self.registration.worker, sender.terms.gateway, content)
        return [
            SendToGateway(name, relayed)
            for name, connection in self.gateways.serving()
            if connection.terms is not None and connection.terms.gateway == to
        ]

    def _register_at(self, gateway: str, now_ns: int) -> Effects:
        connection = self.gateways.of(gateway)
        assert connection is not None
        connection.registered_ns, connection.reported_state = now_ns, self.role_state.reported
        role, accepting, spare = self.role_state.reported
        register = structs.replace(self.registration, role=role, accepting=accepting, spare=spare)
        return [SendToGateway(gateway, register)]

    def _registered(self, gateway: str, terms: Registered, now_ns: int) -> Effects:
        """From here on the gateway has the worker, as an empty one: whatever it asked for before is
        void on its side too."""
        connection = self.gateways.of(gateway)
        assert connection is not None
        reported = connection.reported_state
        effects = self._forget(gateway, now_ns)
        connection.terms, connection.reported_state, connection.not_needed = terms, reported, False
        connection.received_events = 0
        effects += (SendToGateway(gateway, each) for each in _listings(self.work, Tier))
        connection.reported_tiers = None
        load = load_of(self.registration.worker, self.work.machine)
        effects += self._report(gateway, connection, load, now_ns)
        if reported != self.role_state.reported:
            state = RoleStateReported(self.registration.worker, *self.role_state.reported)
            effects.append(SendToGateway(gateway, state))
        return effects

    def _forget(self, gateway: str, now_ns: int) -> Effects:
        """All that this gateway asked for is void."""
        connection = self.gateways.of(gateway)
        if connection is not None:
            connection.forget()
        effects = self.work.forget(gateway, now_ns) + self.peers.gateway_gone(gateway)
        return effects + ([] if self.tiers is None else self.tiers.gateway_gone(gateway))

    def _keep_time(self, now_ns: int) -> Effects:
        effects: Effects = []
        for gateway in self.gateways.silent(now_ns):
            # It may have given the worker up as well, and receive from it again some day.
            effects += self._forget(gateway, now_ns)
            effects += self._register_at(gateway, now_ns)
        for gateway in self.gateways.unanswered(now_ns):
            effects += self._register_at(gateway, now_ns)
        for gateway, request_ids in self.work.leases.expired(now_ns).items():
            effects += self.work.give_up_requests(request_ids, now_ns)
            effects.append(
                SendToGateway(gateway, RequestsLost(self.registration.worker, request_ids))
            )
        if due := self.gateways.reports_due(now_ns, asked=self._waits_to_be_asked):
            load = load_of(self.registration.worker, self.work.machine)
            for gateway, connection in due:
                effects += self._report(gateway, connection, load, now_ns)
        return effects

    def _report(
        self,
        gateway: str,
        connection: GatewayConnection,
        load: LoadReported,
        now_ns: int,
        *,
        tiers: bool = True,
    ) -> Effects:
        """The load, and the figures of the slower tiers if they changed since the last report."""
        connection.reported(now_ns)
        effects: Effects = [SendToGateway(gateway, self._addressed(load, connection, now_ns))]
        figures = self.tiers.figures(now_ns) if tiers and self.tiers is not None else None
        if figures is not None and figures != connection.reported_tiers:
            connection.reported_tiers = figures
            effects.append(SendToGateway(gateway, figures))
        return effects

    def _addressed(
        self, load: LoadReported, connection: GatewayConnection, now_ns: int
    ) -> LoadReported:
        events = connection.received_events
        machine = self.work.machine
        held = self._adapter_memory
        totals = (
            machine.step_tally.totals,
            machine.drafting.totals if machine.drafting else None,
            None if held is None else adapter_figures(machine, held),
        )
        due = connection.totals_due(totals, now_ns)
        if load.received_events == events and due is NO_TOTALS:
            return load
        return addressed(load, events, *due)

    def _report_role_state(self, *, begun: bool = False) -> Effects:
        """To all gateways. When a drain has `begun`, each of them must send `NotNeeded` anew."""
        effects: Effects = []
        for gateway, connection in self.gateways.serving():
            connection.reported_state = self.role_state.reported
            connection.not_needed = connection.not_needed and not begun
            state = RoleStateReported(self.registration.worker, *self.role_state.reported)
            effects.append(SendToGateway(gateway, state))
        return effects

    def _finish_drain(self) -> Effects:
        serving = list(self.gateways.serving())
        empty = self.work.idle and all(connection.not_needed for _, connection in serving)
        if self.role_state.leaving and (empty or not serving):
            deregister = Deregister(self.registration.worker)
            leave, self._left = Leave(again=self.role_state.again), True
            return [*(SendToGateway(gateway, deregister) for gateway, _ in serving), leave]
        return self._report_role_state() if empty and self.role_state.take_role() else []

    def _due_ns(self) -> int | None:
        due_ns = self.gateways.due_ns(reports=not self._waits_to_be_asked)
        lease_ns = self.work.leases.next_wakeup()
        if due_ns is None or (lease_ns is not None and lease_ns < due_ns):
            return lease_ns
        return due_ns


def _listings(work: Work, tiers: Iterable[Tier]) -> Iterator[BlocksListed]:
    """What lies on those of these that the worker has."""
    for tier in tiers:
        if tier is Tier.DEVICE:
            yield BlocksListed(work.worker, tier, *work.machine.sequences.pool.listing())
        elif work.tiers is not None and (listing := work.tiers.listing(tier)) is not None:
            yield listing


def _audited(node: NodeMachine) -> Audited:
    work = node.work
    sequences = work.machine.sequences
    pool = sequences.pool
    return Audited(
        worker=work.worker,
        owned_blocks=pool.block_count - pool.free_blocks,
        cached_blocks=pool.cached_blocks,
        running=len(sequences.running),
        waiting=len(work.machine.planner.waiting),
        importing=len(sequences.importing),
        held=len(sequences.pinned),
        leases=len(work.leases),
        moves=len(work.inbound.moving),
        problem=first_broken_law(node.audit),
    )


def _until_leaving(effects: Effects) -> Effects:
    """Nothing after the end."""
    for index, effect in enumerate(effects):
        if isinstance(effect, Leave):
            return effects[: index + 1]
    return effects
