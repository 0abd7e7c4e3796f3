"""The gateway machine: membership, routing, operators' requests and the shared pool, as events in
and effects out.

No sockets and no clock. Every request belongs to the router machine inside; here is what a router
need not see: processes, heartbeats, leases, blocks and operators.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec import structs

from tandem.cluster.audit import first_broken_law, invariant
from tandem.cluster.gateway.autoscaling import Autoscaling
from tandem.cluster.gateway.configuration import ConfigurationChanged, GatewayConfig, GatewayInput
from tandem.cluster.gateway.housekeeping import Heartbeats, check_drains, renewals
from tandem.cluster.gateway.measured_costs import MeasuredCosts
from tandem.cluster.gateway.members import (
    Member,
    Members,
    PoolNodes,
    pool_node_status,
    worker_status,
)
from tandem.cluster.gateway.operations import Broadcast, Broadcasts, Drains
from tandem.cluster.gateway.pauses import Pauses
from tandem.cluster.gateway.planned_fleet import PlannedFleet
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.cluster.gateway.rate_limits import CallLimits
from tandem.cluster.gateway.routing import Routing
from tandem.cluster.gateway.shared_pool import SharedPool
from tandem.cluster.gateway.sharing import Sharing
from tandem.cluster.router.fleet import Capacity
from tandem.cluster.router.machine import RouterMachine
from tandem.facts.request import session_key
from tandem.messages.cluster import (
    Audit,
    Audited,
    Deregister,
    MoveEnded,
    PeerLost,
    PrefixCacheEmptied,
    Register,
    RegisterAgain,
    RegisterPoolNode,
    RegistrationRefused,
    RoleStateReported,
    TiersReported,
    ToGateway,
    ToWorker,
)
from tandem.messages.gateway import (
    AuditAsked,
    ClusterStatus,
    ConfigurationTaken,
    DrainAsked,
    Fence,
    GatewayEffect,
    MessageFromWorker,
    OperationEnded,
    PeerGone,
    PrefixCacheResetAsked,
    SendToWorker,
    StartFailed,
    ToolsCalled,
    UndrainAsked,
)
from tandem.messages.router import (
    LoadReported,
    RequestSubmitted,
    RequestWithdrawn,
    TokensReported,
    WorkerDrained,
    WorkerJoined,
)
from tandem.messages.sharing import RelayedFromGateway, UseShared
from tandem.messages.worker import PrefixCacheReset

Effects = list[GatewayEffect]

# A lease is renewed so often while it runs, and a worker gets so many heartbeats within the silence
# that would make it give the gateway up.
RENEWALS = 6
BEATS = 4


class GatewayMachine:
    """`handle(event, now_ns)` gives the effects to perform, in order."""

    def __init__(self, config: GatewayConfig) -> None:
        self.config = config
        self.members = Members(config.model, config.revision, config.pool_models)
        self.costs = MeasuredCosts(self._capacity_of, config.learning)
        nodes = PoolNodes(config.block_format)
        router = replace(config.router, capacities=self.costs.capacities)
        self.routing = Routing(router, self.costs, self.members, nodes)
        self.heartbeats = Heartbeats(config.terms.silence_ns)
        self.pool = SharedPool(nodes, self.members, self.routing, heartbeats=self.heartbeats)
        self.drains = Drains(self.members)
        self.broadcasts = Broadcasts()
        self._broadcasts_asked: list[AuditAsked | PrefixCacheResetAsked] = []
        use = self.router.admission.use
        self.limits = CallLimits(config.limits, use, explains=router.explains)
        self.sharing: Sharing | None = None
        self.autoscaling: Autoscaling | None = None
        # Kept while planning is switched off: what operators hold and orders under way outlast it.
        self.planned_fleet: PlannedFleet | None = None
        self.pauses = None if config.pauses is None else Pauses(config.pauses, self.routing)
        self._started_ns: int | None = None
        terms = config.terms
        self._renewal_ns = min(terms.lease_ns // RENEWALS, terms.silence_ns // BEATS)
        self._renew_at_ns = 0
        self._wakeup_ns: int | None = None

    @property
    def router(self) -> RouterMachine:
        return self.routing.router

    def next_wakeup(self) -> int | None:
        """When `TimePassed` is due, if nothing happens before."""
        return self._wakeup_ns

    def handle(self, event: GatewayInput, now_ns: int) -> Effects:
        return self.handle_together((event,), now_ns)

    def handle_together(self, events: Sequence[GatewayInput], now_ns: int) -> Effects:
        """Events of one instant, all of which are known before anybody is chosen to go next."""
        if self._started_ns is None:
            self._start(now_ns)
        if self._wakeup_ns is not None:
            asleep_ns = now_ns - self._wakeup_ns
            if asleep_ns > self.config.terms.silence_ns // BEATS:
                self.heartbeats.slept(asleep_ns)
        effects: Effects = []
        for event in events:
            if isinstance(event, MessageFromWorker):
                # Almost all of them.
                self._receive(event.peer, event.message, now_ns, effects)
            else:
                self._take(event, now_ns, effects)
        effects += self.routing.flush(now_ns)
        due_ns = self.router.next_wakeup()
        if due_ns is not None and due_ns <= now_ns:
            effects += self.routing.pass_time(now_ns)
        self._let_pause(now_ns, effects)
        if self.pauses is not None:
            effects += self.pauses.bring_back(now_ns)
        if self._wakeup_ns is None or now_ns >= self._wakeup_ns:
            self._keep_time(now_ns, effects)
        if self.members.draining:
            effects += check_drains(self.drains, self.members, self.routing, now_ns)
        if self.sharing is not None:
            effects += self.sharing.pass_time(now_ns)
        if self.autoscaling is not None:
            effects = self.autoscaling.follow(events, effects, now_ns)
        if not self.limits.idle:
            self.limits.follow(effects, now_ns)
        while self._broadcasts_asked:
            effects += self._begin_broadcast(self._broadcasts_asked.pop(0), now_ns)
        self._wakeup_ns = self._next_due_ns()
        return effects

    def loads_reported(self, loads: Iterable[tuple[str, LoadReported]], now_ns: int) -> None:
        """What peers report that they carry. Nobody decides by that alone: where a simulator asks
        all workers before each decision, this is as good as one message after the other."""
        for peer, load in loads:
            member = self.members.of_peer(peer)
            if member is not None:
                self.heartbeats.received(peer, now_ns)
                self.router.admission.learn(self._load_reported(member, load, now_ns), now_ns)

    def status(self, now_ns: int) -> ClusterStatus:
        """All that is known at this instant."""
        waiting = self.router.admission.suspects.all_waiting
        breakers = self.router.admission.breakers
        started_ns = now_ns if self._started_ns is None else self._started_ns
        return ClusterStatus(
            gateway=self.config.gateway,
            up_s=(now_ns - started_ns) / 1e9,
            workers=tuple(
                worker_status(
                    member,
                    self.heartbeats.silent_ns(member.peer, now_ns) / 1e9,
                    self.costs.correction(member.name),
                )
                for member in self.members
            ),
            waiting_requests=waiting,
            running_requests=len(self.router.requests) - waiting,
            finished_requests=self.router.endings.answers,
            takeovers=self.router.takeovers,
            lost=tuple(self.members.lost),
            recomputed_tokens=self.routing.recomputed_tokens,
            pool_nodes=tuple(
                pool_node_status(node, self.heartbeats.silent_ns(node.peer, now_ns) / 1e9)
                for node in self.pool.nodes
            ),
            planning=None if self.autoscaling is None else self.autoscaling.status(now_ns),
            configuration=self.config.configuration,
            calibration=self.router.predictions.recent(now_ns),
            calibration_total=self.router.predictions.total(),
            breakers=() if breakers is None else breakers.status(),
            pauses=None if self.pauses is None else self.pauses.status(),
        )

    def audit(self) -> None:
        """Assert that nothing is lost and nothing remembered in vain. For tests and for the
        auditor."""
        self.router.audit()
        self.routing.audit()
        self.limits.audit(self.router.requests)
        if self.planned_fleet is not None:
            self.planned_fleet.audit()
        if self.autoscaling is not None:
            self.autoscaling.audit()
        if self.pauses is not None:
            self.pauses.audit()
        tracked_workers = self.router.admission.fleet.workers
        names = {member.name for member in self.members}
        invariant(set(tracked_workers) == names, "the fleet is made of the members")
        for member in self.members:
            tracked = tracked_workers[member.name]
            agreed = tracked.accepting == member.accepting and tracked.role is member.role
            invariant(agreed, f"fleet and members agree on {member.name}")

    def _next_due_ns(self) -> int:
        silent_ns, late_ns = self.heartbeats.next_wakeup(), self.broadcasts.next_wakeup()
        plan_ns = None if self.autoscaling is None else self.autoscaling.next_wakeup()
        return_ns = None if self.pauses is None else self.pauses.next_wakeup()
        due_ns = self._renew_at_ns
        share_ns = None if self.sharing is None else self.sharing.next_wakeup()
        wakeups = (silent_ns, late_ns, plan_ns, return_ns, share_ns, self.router.next_wakeup())
        for wakeup_ns in wakeups:
            if wakeup_ns is not None and wakeup_ns < due_ns:
                due_ns = wakeup_ns
        return due_ns

    def _start(self, now_ns: int) -> None:
        """The first instant."""
        self._started_ns, self._renew_at_ns = now_ns, now_ns + self._renewal_ns
        if self.config.planning is not None:
            self._begin_planning(self.config.planning, now_ns)
        if self.config.limits.gateways > 1:
            self.sharing = Sharing(
                self.config.terms, self.routing, self.members, self.limits, now_ns=now_ns
            )

    def _take(self, event: GatewayInput, now_ns: int, effects: Effects) -> None:
        match event:
            case RequestSubmitted():
                if rejections := self.limits.rejections(event, now_ns):
                    effects += rejections
                    return
                if self.pauses is not None:
                    self._let_pause(now_ns, effects)
                    effects += self.pauses.request_submitted(event, now_ns)
                self.routing.gather(event)
            case RequestWithdrawn():
                self.limits.withdrawn(event, now_ns)
                self.routing.gather(event)
            case ToolsCalled(account, session) if self.pauses is not None:
                self._let_pause(now_ns, effects)
                effects += self.pauses.tools_called(event, session_key(account, session), now_ns)
            case PeerGone(peer, reason, died):
                self._lose_peer(peer, reason, now_ns, effects, died=died)
            case AuditAsked() | PrefixCacheResetAsked():
                # Once all that happens now has been counted everywhere.
                self._broadcasts_asked.append(event)
            case DrainAsked() | UndrainAsked():
                effects += self._begin_operation(event)
            case StartFailed() if self.planned_fleet is not None:
                self.planned_fleet.start_failed(event, now_ns)
            case ConfigurationChanged(config):
                self._reconfigure(config, now_ns, effects)

    def _reconfigure(self, config: GatewayConfig, now_ns: int, effects: Effects) -> None:
        """Decide by another configuration, at which requests and workers stay what they are."""
        planned_before, self.config = self.config.planning, config
        # Workers of a pool that is gone may still be here.
        self.members.pool_models = {**self.members.pool_models, **config.pool_models}
        self.routing.reprice(self.costs.reconfigure(self._capacity_of, config.learning))
        self.limits.reconfigure(config.limits, now_ns, explains=config.router.explains)
        router = replace(config.router, capacities=self.costs.capacities)
        effects += self.routing.reconfigure(router, now_ns)
        if config.planning is None:
            if self.autoscaling is not None:
                effects += self.autoscaling.end(now_ns)
            self.autoscaling = None
        elif self.autoscaling is None:
            self._begin_planning(config.planning, now_ns).adopt(now_ns)
        elif config.planning is not planned_before:
            self.autoscaling.reconfigure(config.planning, now_ns)
        effects.append(ConfigurationTaken(config.configuration))

    def _capacity_of(self, register: Register) -> Capacity:
        """Also of a worker whose pool is gone it stays known what it serves."""
        model = self.members.pool_models.get(register.pool, "")
        return replace(self.config.capacity_of(register), model=model)

    def _begin_planning(self, planning: PlanningConfig, now_ns: int) -> Autoscaling:
        self.autoscaling = Autoscaling(
            planning,
            self.members,
            self.drains,
            self.routing,
            now_ns=now_ns,
            fleet=self.planned_fleet,
        )
        self.planned_fleet = self.autoscaling.fleet
        return self.autoscaling

    def _let_pause(self, now_ns: int, effects: Effects) -> None:
        """Sessions whose answers have ended so far may pause, before more of them comes."""
        for state in self.routing.take_pausing(now_ns, effects):
            if self.pauses is not None:
                effects += self.pauses.answer_ended(state, now_ns)

    def _receive(self, peer: str, message: ToGateway, now_ns: int, effects: Effects) -> None:
        if isinstance(message, Register):
            self._register(peer, message, now_ns, effects)
            return
        if isinstance(message, RegisterPoolNode):
            effects += self.pool.register_pool_node(peer, message, self.config.terms, now_ns)
            return
        member = self.members.of_peer(peer)
        if member is None and (node := self.pool.nodes.of_peer(peer)):
            self.heartbeats.received(peer, now_ns)
            if message.worker == node.name:
                effects += self.pool.pool_message(node, message, self.broadcasts, now_ns)
            return
        if member is None:
            if self.members.asked_to_register(peer, now_ns):
                effects.append(SendToWorker(peer, RegisterAgain()))
            return
        self.heartbeats.received(peer, now_ns)
        if message.worker != member.registration.worker:
            # It names another process as its sender: ignored.
            return
        if isinstance(message, TokensReported):
            # By far the most frequent message.
            effects += self.routing.worker_message(member, message, now_ns)
            return
        match message:
            case RoleStateReported():
                self.routing.gather(self.members.role_state_changed(member, message))
                if self.planned_fleet is not None:
                    self.planned_fleet.role_state_changed(member, now_ns)
                effects += self.drains.role_state_reported(member)
            case MoveEnded():
                self.routing.move_ended(member, message, now_ns)
            case UseShared(_, use):
                if self.sharing is not None:
                    effects += self.sharing.received(use, now_ns)
            case RelayedFromGateway():
                # What gateways show of each other: nothing is decided by it.
                pass
            case Audited() | PrefixCacheEmptied():
                effects += self.broadcasts.answered(message)
            case Deregister():
                self._lose(member, "", now_ns, effects, died=False)
            case TiersReported(worker, tiers):
                member.tiers = tiers
                if capacity := self.costs.reported(worker, tiers):
                    self.routing.reprice({worker: capacity})
            case _:
                if isinstance(message, LoadReported):
                    message = self._load_reported(member, message, now_ns)
                effects += self.routing.worker_message(member, message, now_ns)

    def _load_reported(self, member: Member, load: LoadReported, now_ns: int) -> LoadReported:
        """The load alone: what the worker's steps took is learnt from, the rest is shown."""
        if load.drafts is not None:
            member.drafts = load.drafts
            load = structs.replace(load, drafts=None)
        if load.adapters is not None:
            member.adapters = load.adapters
            load = structs.replace(load, adapters=None)
        if load.steps:
            member.steps = load.steps
            if capacity := self.costs.steps_reported(load.worker, load.steps, now_ns):
                self.routing.reprice({load.worker: capacity})
            load = structs.replace(load, steps=())
        member.load, member.reported = load, True
        return load

    def _register(self, peer: str, register: Register, now_ns: int, effects: Effects) -> None:
        known, older = self.members.of_peer(peer), self.members.of_name(register.worker)
        problem = self.members.objection(register) or self.pool.clash(peer, register.worker)
        if problem:
            if known is not None:
                self._lose(known, problem, now_ns, effects, died=False)
            effects.append(SendToWorker(peer, RegistrationRefused(problem)))
            return
        model = self.members.pool_models.get(register.pool, "")
        member = Member.of(peer, register, model)
        again = known is older and _same_start(known, register)
        if known is not None and again:
            # The same process has forgotten everything: only what it was asked for is lost.
            member.counters = known.counters
            effects += self._lose_work(known, now_ns, died=False)
        elif known is not None:
            self._lose(known, "its process has registered again", now_ns, effects)
        older = self.members.of_name(register.worker)
        if older is not None:
            reason = "another process has taken its name"
            self.members.outdated(older)
            effects.append(Fence(older.peer, reason))
            self._lose(older, reason, now_ns, effects)
        self.members.add(member)
        self.heartbeats.received(peer, now_ns)
        self.costs.joined(register)
        effects.append(SendToWorker(peer, self.config.terms))
        effects += self.pool.joined_messages(peer)
        effects += self.routing.adopt_roots(member, now_ns)
        self.routing.gather(WorkerJoined(register.worker, register.role))
        if not register.accepting:
            self.routing.gather(WorkerDrained(register.worker))
        effects += self.routing.flush(now_ns)
        if self.planned_fleet is not None:
            self.planned_fleet.worker_joined(member, now_ns)
        effects += self.drains.worker_registered(member)

    def _lose_peer(
        self, peer: str, reason: str, now_ns: int, effects: Effects, *, died: bool = True
    ) -> None:
        if node := self.pool.nodes.of_peer(peer):
            effects += self.pool.deregister(node, reason, now_ns)
            effects += self.broadcasts.gone(node.name)
        elif member := self.members.of_peer(peer):
            self._lose(member, reason, now_ns, effects, died=died)

    def _lose(
        self, member: Member, reason: str, now_ns: int, effects: Effects, *, died: bool = True
    ) -> None:
        """The worker is gone, for a `reason` or (empty) because it was to leave."""
        effects += self._lose_work(member, now_ns, died=died)
        if reason:
            self.members.lost.append((member.name, reason))
        lost = PeerLost(member.name, member.registration.incarnation)
        effects += (
            SendToWorker(other.peer, lost) for other in self.members if other.forget(member)
        )
        if self.planned_fleet is not None:
            self.planned_fleet.worker_gone(member.name, now_ns, died=bool(reason))
        effects += self.drains.gone(member.name, reason)

    def _lose_work(self, member: Member, now_ns: int, *, died: bool) -> Effects:
        """All that it did is void."""
        effects = self.routing.flush(now_ns)
        self.members.remove(member)
        self.heartbeats.forget(member.peer)
        effects += self.routing.adopt_roots(None, now_ns)
        self.routing.worker_lost(member.name, died=died)
        self.costs.left(member.name)
        effects += self.routing.flush(now_ns)
        return effects + self.broadcasts.gone(member.name)

    def _keep_time(self, now_ns: int, effects: Effects) -> None:
        for peer in self.heartbeats.silent(now_ns):
            reason = f"silent for {self.heartbeats.silent_ns(peer, now_ns) / 1e9:.1f} s"
            effects.append(Fence(peer, reason))
            self._lose_peer(peer, reason, now_ns, effects)
        effects += self.broadcasts.late(now_ns)
        if now_ns >= self._renew_at_ns:
            self._renew_at_ns = now_ns + self._renewal_ns
            effects += renewals(self.router, self.members)
            names = [member.name for member in self.members]
            self.routing.reprice(self.costs.fade(names, now_ns))
            effects += self.pool.keepalives()

    def _begin_broadcast(self, event: AuditAsked | PrefixCacheResetAsked, now_ns: int) -> Effects:
        everybody = [*self.members, *self.pool.nodes]
        end_ns = now_ns + self.config.terms.silence_ns
        broadcast = Broadcast(event, end_ns, {each.name: None for each in everybody})
        message: ToWorker
        if isinstance(event, AuditAsked):
            message, broadcast.problem = Audit(), first_broken_law(self.audit)
        else:
            message = PrefixCacheReset(event.external)
        effects: Effects = [SendToWorker(each.peer, message) for each in everybody]
        return effects + self.broadcasts.begin(broadcast)

    def _begin_operation(self, event: DrainAsked | UndrainAsked) -> Effects:
        """Begin an operator's operation, or end it with why it cannot be."""
        member = self.members.of_name(event.worker)
        planned = self.planned_fleet
        if isinstance(event, UndrainAsked) and planned and planned.operator_releases(event):
            return [OperationEnded(event.operation_id)]
        # What an operator wants goes before what the planner has ordered.
        replaces = isinstance(event, DrainAsked) and bool(planned and planned.drains(event.worker))
        problem = self.drains.objection(event, replaces=replaces)
        if problem or member is None:
            return [OperationEnded(event.operation_id, problem)]
        if planned is not None and replaces:
            planned.operator_takes(event.worker)
        return [SendToWorker(member.peer, self.drains.begin(event))]


def _same_start(member: Member | None, register: Register) -> bool:
    return member is not None and member.registration.incarnation == register.incarnation
