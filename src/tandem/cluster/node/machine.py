"""The node machine of a worker process: gateways, leases, KV transfers and tiers around the worker
machine (the scheduler).

Knows no socket, engine or memory: events in, effects out. Every request belongs to one gateway.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tandem.cluster.audit import first_broken_law
from tandem.cluster.node.gateways import GatewayConnection, GatewayConnections
from tandem.cluster.node.inbound_transfers import Order
from tandem.cluster.node.peers import Peers
from tandem.cluster.node.role_state import RoleState
from tandem.cluster.node.tiers import WorkerTiers
from tandem.cluster.node.work import Work
from tandem.cluster.router.request_state import failed_over
from tandem.cluster.tiers.config import TiersConfig
from tandem.cluster.worker.machine import WorkerMachine, heard_by, load_of
from tandem.facts.fleet import Tier
from tandem.facts.kv_export import MoveKv
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
from tandem.messages.worker import (
    CopiesRequested,
    EmitTokens,
    ImportDone,
    ImportsArrived,
    KvTransfersRequested,
    PrefillsArrived,
    RequestsAborted,
    RequestsArrived,
    StepDone,
    TransferPinsReleased,
)

Effects = list[NodeEffect]


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """`register` is how the worker presents itself; its role and `accepting` are those it starts
    with. `tiers` are those below its device, which its worker machine tells of sealed blocks; None
    where there are none. With `reports_when_asked` nobody is told of the load unasked while the
    worker takes requests: a simulator has `report` called when somebody is about to decide by it,
    and what would have been superseded by then is never made."""

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
        self.tiers = (
            WorkerTiers(
                config.tiers,
                machine,
                self.gateways,
                self.role_state,
                worker=config.registration.worker,
            )
            if config.tiers is not None
            else None
        )
        self.work = Work(config.registration.worker, machine, self.gateways, self.tiers)
        self._wakeup_ns: int | None = None
        self._left = False

    def next_wakeup(self) -> int | None:
        """When to say `TimePassed`, if nothing happens before."""
        return self._wakeup_ns

    def handle(self, event: NodeEvent, now_ns: int) -> Effects:
        return self.handle_together((event,), now_ns)

    def handle_together(self, events: Sequence[NodeEvent], now_ns: int) -> Effects:
        """Events of one instant: requests that arrive together are planned into one step."""
        if self._left:
            return []
        if self._wakeup_ns is not None and now_ns > self._wakeup_ns:
            self.gateways.excuse(now_ns - self._wakeup_ns)
        effects: Effects = []
        if self.tiers is not None and not self.tiers.begun:
            effects += self.tiers.announce_contents(now_ns)
        if len(events) > 1:
            # What has arrived is known before the landed steps are followed by the next.
            events = sorted(events, key=lambda each: isinstance(each, StepDone))
        for event in events:
            self._take(event, now_ns, effects)
        effects += self.work.flush(now_ns)
        due_ns = self._due_ns()
        if due_ns is not None and due_ns <= now_ns:
            effects += self._keep_time(now_ns)
            due_ns = self._due_ns()
        if not self.role_state.accepting:
            effects += self._finish_drain()
            due_ns = self._due_ns()
        self._wakeup_ns = due_ns
        effects = _until_leaving(effects)
        if effects and isinstance(effects[-1], Leave):
            self._left, self._wakeup_ns = True, None
        return effects

    @property
    def _waits_to_be_asked(self) -> bool:
        # Whoever drains a worker waits for its reports.
        return self._reports_when_asked and self.role_state.accepting

    def report(self, load: LoadReported, now_ns: int, *, tiers: bool = True) -> Effects:
        """Tell every gateway this load, due or not, and how the slower `tiers` fare. A simulator
        that is ahead of the worker machine knows the load itself."""
        effects: Effects = []
        for gateway, connection in self.gateways.serving():
            effects += self._report(gateway, connection, load, now_ns, tiers=tiers)
        return effects

    def report_to(self, gateway: str, load: LoadReported) -> LoadReported | None:
        """What a gateway that the worker serves would be told of this load now."""
        connection = self.gateways.of(gateway)
        if connection is None or connection.terms is None:
            return None
        return (
            load
            if load.heard == connection.heard_events
            else heard_by(load, connection.heard_events)
        )

    def fast_forward(self, steps: int, emission: EmitTokens, landed_ns: int) -> Effects:
        """As if `steps` steps that the worker machine knows already (`repeatable_steps`) had
        landed, the last of them at `landed_ns`, and each had drawn `emission`."""
        self.work.machine.fast_forward(steps, emission.tokens)
        if self.tiers is not None:
            self.tiers.clock.skipped(landed_ns)
        return self.work.outbox.repeated(emission, steps)

    @property
    def any_import_ends(self) -> bool:
        """Whether an import ends, of which the worker machine is told, as soon as nobody writes to
        its blocks any more."""
        return self.work.inbound.imports.any_concluded

    def order_of(self, move_id: int) -> Order:
        """What a move or a fetch that is under way was ordered to bring."""
        return self.work.inbound.imports.moving[move_id].order

    def audit(self) -> None:
        """Assert that nothing is lost: every request has an owner, every block its writers. For
        tests and for the auditor."""
        self.work.audit()

    def _take(self, event: NodeEvent, now_ns: int, effects: Effects) -> None:
        match event:
            case StepDone():
                effects += self.work.tell_machine(event, now_ns)
            case MessageFromGateway(gateway, message):
                effects += self._receive(gateway, message, now_ns)
            case MoveFinished() | BlocksStaged() | BlocksKept() | BlocksFetched():
                effects += self.work.transfer_event(event, now_ns)
            case BlocksExported(export_id):
                effects += self.work.outbox.published(export_id)
            case GatewayConnected(gateway):
                effects += self._forget(gateway, now_ns)
                self.gateways.connect(gateway)
                effects += self._register_at(gateway, now_ns)
            case GatewayGone(gateway):
                effects += self._forget(gateway, now_ns)
                self.gateways.disconnect(gateway)
            case LeaveRequested():
                self.role_state.leave()
                effects += self._tell_standing(begun=True)

    def _receive(self, gateway: str, message: ToWorker, now_ns: int) -> Effects:
        connection = self.gateways.of(gateway)
        if connection is None:
            # Its channel has just broken: what it wanted is void.
            return []
        connection.heard_ns = now_ns
        match message:
            case Registered():
                return self._registered(gateway, message, now_ns)
            case RegistrationRefused(reason):
                return [Leave(reason)]
            case RegisterAgain():
                return self._forget(gateway, now_ns) + self._register_at(gateway, now_ns)
            case _ if connection.terms is None:
                # It believes that the worker still serves it; a Register is on its way.
                return []
            case RequestsArrived() | PrefillsArrived() | ImportsArrived():
                connection.heard_events += 1
                end_ns = now_ns + connection.terms.lease_ns
                if any(failed_over(each.request_id) for each in message.requests):
                    # Should this worker die of it, the gateway knows that it lived when it came.
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
                connection.heard_events += 1
                return self.work.change(gateway, message, now_ns)
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
                return self.tiers.obey(gateway, message, now_ns)
            case PeerJoined():
                return self.peers.joined(gateway, message)
            case PeerLost(worker, incarnation):
                return self.peers.lost(worker, incarnation)
            case Drain():
                self.role_state.drain_for(message)
                return self._tell_standing(begun=True)
            case Undrain():
                self.role_state.undrain()
                return self._tell_standing()
            case NotNeeded():
                connection.not_needed = True
            case ListBlocks(tier):
                return [SendToGateway(gateway, each) for each in _listings(self.work, (tier,))]
        return []

    def _register_at(self, gateway: str, now_ns: int) -> Effects:
        connection = self.gateways.of(gateway)
        assert connection is not None
        connection.registered_ns = now_ns
        connection.told = self.role_state.role, self.role_state.accepting
        register = replace(
            self.registration, role=self.role_state.role, accepting=self.role_state.accepting
        )
        return [SendToGateway(gateway, register)]

    def _registered(self, gateway: str, terms: Registered, now_ns: int) -> Effects:
        """From here on the gateway knows the worker, as an empty one: whatever it asked for before
        is void on its side too."""
        connection = self.gateways.of(gateway)
        assert connection is not None
        told = connection.told
        effects = self._forget(gateway, now_ns)
        connection.terms, connection.told, connection.not_needed = terms, told, False
        connection.heard_events = 0
        effects += (SendToGateway(gateway, each) for each in _listings(self.work, Tier))
        connection.told_tiers = None
        load = load_of(self.registration.worker, self.work.machine)
        effects += self._report(gateway, connection, load, now_ns)
        if told != (self.role_state.role, self.role_state.accepting):
            standing = RoleStateReported(
                self.registration.worker, self.role_state.role, self.role_state.accepting
            )
            effects.append(SendToGateway(gateway, standing))
        return effects

    def _forget(self, gateway: str, now_ns: int) -> Effects:
        """All that this gateway asked for is void."""
        connection = self.gateways.of(gateway)
        if connection is not None:
            connection.terms = connection.registered_ns = connection.told = None
        effects = self.work.forget(gateway, now_ns) + self.peers.gateway_gone(gateway)
        return effects + ([] if self.tiers is None else self.tiers.gateway_gone(gateway))

    def _keep_time(self, now_ns: int) -> Effects:
        effects: Effects = []
        for gateway in self.gateways.silent(now_ns):
            # It may have given the worker up as well, and hear it again some day.
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
        """The load, and how the slower tiers fare if that is news there."""
        connection.reported(now_ns)
        if load.heard != connection.heard_events:
            load = heard_by(load, connection.heard_events)
        effects: Effects = [SendToGateway(gateway, load)]
        figures = self.tiers.figures(now_ns) if tiers and self.tiers is not None else None
        if figures is not None and figures != connection.told_tiers:
            connection.told_tiers = figures
            effects.append(SendToGateway(gateway, figures))
        return effects

    def _tell_standing(self, *, begun: bool = False) -> Effects:
        """Tell all gateways. When a drain has `begun`, each of them must let the worker go anew."""
        effects: Effects = []
        role, accepting = self.role_state.role, self.role_state.accepting
        for gateway, connection in self.gateways.serving():
            connection.told = role, accepting
            connection.not_needed = connection.not_needed and not begun
            effects.append(
                SendToGateway(gateway, RoleStateReported(self.registration.worker, role, accepting))
            )
        return effects

    def _finish_drain(self) -> Effects:
        serving = list(self.gateways.serving())
        empty = self.work.idle and all(connection.not_needed for _, connection in serving)
        if self.role_state.leaving and (empty or not serving):
            deregister, leave = (
                Deregister(self.registration.worker),
                Leave(again=self.role_state.again),
            )
            return [*(SendToGateway(gateway, deregister) for gateway, _ in serving), leave]
        return self._tell_standing() if empty and self.role_state.take_role() else []

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
        moves=len(work.inbound.imports.moving),
        problem=first_broken_law(node.audit),
    )


def _until_leaving(effects: Effects) -> Effects:
    """Nothing after the end."""
    for index, effect in enumerate(effects):
        if isinstance(effect, Leave):
            return effects[: index + 1]
    return effects
