"""Which workers are up and in which role: has a planner decide at every tick, and carries it out.

Starts, drains, flips and migrations are effects and orders like those of an operator, and what an
operator does by hand holds (`planned_fleet`). One gateway of a cluster plans. It starts no process:
the launcher starts the workers that are wanted, and reports what failed. It simulates nothing: what
a policy asks leaves as an effect (`shape_questions`), and the answer is an event.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from tandem.cluster.audit import invariant
from tandem.cluster.gateway.demand_record import DemandRecord
from tandem.cluster.gateway.members import Members
from tandem.cluster.gateway.operations import Drains
from tandem.cluster.gateway.plan_actions import FleetState
from tandem.cluster.gateway.planned_fleet import PlannedFleet
from tandem.cluster.gateway.planner import (
    ClientExperience,
    PlannerMachine,
    PlanningConfig,
    figures_of,
)
from tandem.cluster.gateway.routing import Routing
from tandem.cluster.gateway.shape_questions import ShapeQuestions
from tandem.facts.fleet import PlanningMode, Role
from tandem.messages.cluster import Drain
from tandem.messages.gateway import (
    Deliver,
    DrainAsked,
    GatewayEffect,
    OperationEnded,
    PlanDecided,
    SendToWorker,
    ShapesSimulated,
    StartWorker,
    UndrainAsked,
)
from tandem.messages.planning import ActionKind, PlanDecision, PlannedAction, PlanningStatus
from tandem.messages.router import (
    CutOff,
    LeaveOut,
    MigrationsRequested,
    Reject,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.messages.worker import FailRequest
from tandem.policy.planning.contract import Question
from tandem.policy.views import WorkerView

Effects = list[GatewayEffect]

KEPT_DECISIONS = 20


class Autoscaling:
    """Of a gateway whose members, drains and routing are these, from `now_ns` on. `fleet` must see
    workers that come, change and go, and `follow` comes after everything that happened at an
    instant. Where the gateway has planned before, `fleet` is that of then: operators' changes and
    orders under way are known. Workers that are some classes' own are no part of any plan, and
    neither is what they serve."""

    def __init__(
        self,
        config: PlanningConfig,
        members: Members,
        drains: Drains,
        routing: Routing,
        *,
        now_ns: int,
        fleet: PlannedFleet | None = None,
    ) -> None:
        self.config = config
        self.fleet = fleet or PlannedFleet(
            config.pools,
            config.hold_s,
            members,
            drains,
            now_ns=now_ns,
            patience_s=config.patience_s,
            wanted_spares=config.spares,
        )
        if fleet is not None:
            self._reconfigure_fleet(config)
        self._members, self._drains, self._routing = members, drains, routing
        self._planner = PlannerMachine(config, now_ns)
        self._questions: ShapeQuestions | None = None
        self._experience = ClientExperience(self._planner, self._chain_of)
        self._remember(config)
        # Who took requests in which role at the last tick, and since when that is so.
        self._serving: frozenset[tuple[str, Role]] = frozenset()
        self._serving_from_ns = now_ns
        self._begun: Counter[ActionKind] = Counter()
        self._decisions: deque[PlanDecision] = deque(maxlen=KEPT_DECISIONS)
        self._last_reason = ""
        self._last_actions: tuple[PlannedAction, ...] = ()
        self._acts = config.mode is PlanningMode.AUTOMATIC
        self._ticks = 0
        self._operations = 0

    def adopt(self, now_ns: int) -> None:
        """Workers and requests were there before the planner was."""
        for member in self._members:
            self.fleet.worker_joined(member, now_ns)
        for request_id in self._routing.router.requests:
            self._experience.request_beside(request_id, now_ns)

    def reconfigure(self, config: PlanningConfig, now_ns: int) -> None:
        """Plan by another configuration from now on. What is under way goes on."""
        before, self.config = self.config, config
        self._reconfigure_fleet(config)
        if config.remembers_s != before.remembers_s:
            self._remember(config)
        self._planner.reconfigure(config, now_ns)
        self._acts = config.mode is PlanningMode.AUTOMATIC
        self._last_actions = ()

    def end(self, now_ns: int) -> Effects:
        """Plan no more. Orders under way are carried out, and `fleet` still sees them done."""
        self.fleet.starts_not_wanted()
        return self._release_spares(now_ns)

    def _reconfigure_fleet(self, config: PlanningConfig) -> None:
        self.fleet.reconfigure(
            config.pools,
            config.hold_s,
            patience_s=config.patience_s,
            wanted_spares=config.spares,
        )

    def _release_spares(self, now_ns: int) -> Effects:
        """Nothing is ordered any more: whoever stands by takes requests again."""
        spares = self.fleet.spares_not_wanted()
        return [self._activate(worker, role, now_ns) for worker, role in spares.items()]

    def _remember(self, config: PlanningConfig) -> None:
        """From now on demand is recorded for so long, for a planner that asks what other shapes
        would have made of it."""
        record = DemandRecord(config.remembers_s) if config.remembers_s else None
        self._record = record
        self._experience.record_to(record)
        self._questions = None
        if record is not None:
            block_size = self._routing.router.config.block_size
            self._questions = ShapeQuestions(
                record, self._members, self._pool_of, block_size, config.gateways
            )

    def next_wakeup(self) -> int | None:
        """The next tick."""
        return self._planner.next_wakeup()

    def follow(self, events: Sequence[object], effects: Effects, now_ns: int) -> Effects:
        """The effects of what happened at this instant, with those of a tick that is due."""
        # More workers would not let in who has used up a rate limit: that is no demand.
        limited = {
            effect.request_id
            for effect in effects
            if isinstance(effect, Reject) and effect.by.is_rate_limit
        }
        on_own = self._routing.router.admission.fleet.on_own
        for event in events:
            match event:
                case RequestSubmitted(request) if request.request_id in limited:
                    pass
                case RequestSubmitted(request) if event.service_class in on_own:
                    self._experience.request_beside(request.request_id, now_ns)
                case RequestSubmitted():
                    self._experience.request_submitted(event, now_ns)
                case RequestWithdrawn(request_id):
                    self._experience.request_ended(request_id, now_ns)
                case ShapesSimulated() if self._questions is not None:
                    self._questions.answered(event, now_ns)
        planned: Effects = [
            self._order(worker, Drain(spare=True)) for worker in self.fleet.take_new_spares()
        ]
        due_ns = self.next_wakeup()
        if due_ns is not None and now_ns >= due_ns:
            planned += self._plan(now_ns)
        kept: Effects = []
        for effect in (*effects, *planned):
            match effect:
                case Deliver(emission, _, repeats):
                    self._experience.tokens_delivered(emission, now_ns, repeats)
                case CutOff(request_id):
                    self._experience.request_ended(request_id, now_ns)
                case Reject(request_id) | LeaveOut(request_id) | FailRequest(request_id):
                    self._experience.request_dropped(request_id)
                case OperationEnded(operation_id) if operation_id < 0:
                    # One of the planner's own: the worker's role state has shown it.
                    continue
            kept.append(effect)
        return kept

    def status(self, now_ns: int) -> PlanningStatus:
        """For operators and metrics."""
        begun, fleet = self._begun, self.fleet
        last_ns = self._decisions[-1].instant_ns if self._decisions else now_ns
        return PlanningStatus(
            policy=self.config.name,
            mode=self.config.mode,
            starting=fleet.starting,
            draining=tuple(sorted(fleet.draining)),
            held=fleet.holds.shown(now_ns),
            decisions=tuple(self._decisions),
            decided_ago_s=(now_ns - last_ns) / 1e9,
            last_reason=self._last_reason,
            starts=begun[ActionKind.START] + begun[ActionKind.START_SPARE],
            stops=begun[ActionKind.STOP],
            flips=begun[ActionKind.FLIP],
            migrations=begun[ActionKind.MIGRATE],
            failed_starts=fleet.failed_starts,
            activations=begun[ActionKind.ACTIVATE],
            spares=fleet.spares,
            stuck=fleet.stuck(now_ns),
            simulation=None if self._questions is None else self._questions.status(now_ns),
        )

    def audit(self) -> None:
        """Assert that it agrees with the gateway on who waits."""
        requests = self._routing.router.requests.keys()
        invariant(self._experience.open_ids == requests, "open requests are those of the router")
        if self._record is not None:
            self._record.audit()

    def _plan(self, now_ns: int) -> Effects:
        fleet = self.fleet
        fleet.expire(now_ns)
        if not fleet.complete:
            self._planner.skip_tick(now_ns)
            return []
        if self._questions is not None:
            self._questions.expire(now_ns)
        fleet_state = self._fleet_state(now_ns)
        draining = fleet.draining
        routed = self._routing.router.admission.fleet
        shown = [
            worker
            for worker in routed.views()
            # What an operator has taken out of service is not there.
            if (worker.accepting or worker.worker in draining)
            and not routed.dedicated_to(worker.worker)
        ]
        self._note_serving(shown, now_ns)
        view = self._planner.view(
            shown,
            dict(Counter(str(role) for role in fleet_state.coming.values())),
            now_ns,
            held=fleet_state.held,
            joined_by_hand=sum(
                role is not Role.BOTH and name not in fleet.own
                for name, role in fleet_state.serving.items()
            ),
            spares=fleet.ready_spares(),
            answer=None if self._questions is None else self._questions.answer,
        )
        plan = self._planner.decide(view, now_ns)
        actions = fleet_state.actions(plan)
        self._ticks += 1
        decision = PlanDecision(
            serial=self._ticks,
            instant_ns=now_ns,
            mode=self.config.mode,
            prefill=plan.prefill,
            decode=plan.decode,
            reason=plan.reason,
            figures=(*figures_of(view), *self._simulated_figures()),
            actions=actions,
        )
        effects: Effects = [PlanDecided(decision)]
        if plan.question is not None:
            effects += self._ask(plan.question, now_ns)
        # Advice that nobody has followed is the same at every tick, and shown once.
        if actions and (actions != self._last_actions or self._acts):
            self._decisions.append(decision)
        self._last_actions, self._last_reason = actions, plan.reason
        effects += self._carry_out(actions, now_ns) if self._acts else self._release_spares(now_ns)
        return effects

    def _carry_out(self, actions: Iterable[PlannedAction], now_ns: int) -> Effects:
        effects: Effects = []
        for action in actions:
            self._begun[action.kind] += 1
            match action.kind:
                case ActionKind.START:
                    assert action.role is not None
                    self.fleet.start_asked(action.worker, action.role, now_ns)
                    effects.append(StartWorker(action.worker, action.role))
                case ActionKind.START_SPARE:
                    assert action.role is not None
                    self.fleet.start_asked(action.worker, action.role, now_ns, spare=True)
                    effects.append(StartWorker(action.worker, action.role))
                case ActionKind.SPARE:
                    self.fleet.spare_ordered(action.worker)
                    effects.append(self._order(action.worker, Drain(spare=True)))
                case ActionKind.ACTIVATE:
                    assert action.role is not None
                    effects.append(self._activate(action.worker, action.role, now_ns))
                case ActionKind.MIGRATE:
                    event = MigrationsRequested(action.worker, action.target, action.tokens)
                    self._routing.gather(event)
                case _:
                    self.fleet.drain_ordered(action.worker, action.role, now_ns)
                    order = Drain(then_role=action.role, leave=action.role is None)
                    effects.append(self._order(action.worker, order))
        return effects + self._routing.flush(now_ns)

    def _activate(self, worker: str, role: Role, now_ns: int) -> SendToWorker:
        """A spare takes requests: at once, or after it has changed its role, with nothing to
        drain."""
        member = self._members.of_name(worker)
        assert member is not None
        self.fleet.drain_ordered(worker, role, now_ns)
        if member.role is role:
            return self._order(worker, None)
        return self._order(worker, Drain(then_role=role))

    def _order(self, worker: str, order: Drain | None) -> SendToWorker:
        """To drain as the order has it, or (None) to take requests again."""
        member = self._members.of_name(worker)
        assert member is not None
        # Operators' operations have positive numbers.
        self._operations += 1
        serial = -self._operations
        asked = UndrainAsked(serial, worker) if order is None else DrainAsked(serial, worker, order)
        return SendToWorker(member.peer, self._drains.begin(asked))

    def _ask(self, question: Question, now_ns: int) -> Effects:
        assert self._questions is not None
        self._experience.brought_up_to_date()
        asked = self._questions.ask(
            question, lambda: self._fleet_state(now_ns), self._serving_from_ns, now_ns
        )
        return [] if asked is None else [asked]

    def _fleet_state(self, now_ns: int) -> FleetState:
        fleet = self._routing.router.admission.fleet
        dedicated = frozenset(worker for worker in fleet.workers if fleet.dedicated_to(worker))
        return self.fleet.fleet_state(now_ns, dedicated)

    def _simulated_figures(self) -> Iterable[tuple[str, float]]:
        return () if self._questions is None else self._questions.figures.items()

    def _note_serving(self, shown: Sequence[WorkerView], now_ns: int) -> None:
        serving = frozenset((view.worker, view.role) for view in shown if view.accepting)
        if serving != self._serving:
            self._serving, self._serving_from_ns = serving, now_ns

    def _pool_of(self, worker: str) -> str:
        """The pool that this worker would be of."""
        return next((pool.name for pool in self.fleet.pools if worker in pool.workers), "")

    def _chain_of(self, request_id: str) -> Sequence[bytes]:
        """The hashes of the full blocks of a prompt, as far as they are known."""
        state = self._routing.router.requests.get(request_id)
        if state is None:
            return ()
        blocks = state.view.prompt_tokens // self._routing.router.config.block_size
        return state.chain[:blocks]
