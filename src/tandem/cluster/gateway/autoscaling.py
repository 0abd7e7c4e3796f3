"""Which workers are up and in which role: has a planner decide at every tick, and carries it out.

Starts, drains, flips and migrations are effects and orders like those of an operator, and what an
operator does by hand holds (`planned_fleet`). One gateway of a cluster plans. It starts no process:
the launcher starts the workers that are wanted, and reports what failed.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from tandem.cluster.audit import invariant
from tandem.cluster.gateway.members import Members
from tandem.cluster.gateway.operations import Drains
from tandem.cluster.gateway.planned_fleet import PlannedFleet
from tandem.cluster.gateway.planner import (
    ClientExperience,
    PlannerMachine,
    PlanningConfig,
    figures_of,
)
from tandem.cluster.gateway.routing import Routing
from tandem.facts.fleet import PlanningMode, Role
from tandem.messages.cluster import Drain
from tandem.messages.gateway import (
    Deliver,
    DrainAsked,
    GatewayEffect,
    OperationEnded,
    PlanDecided,
    SendToWorker,
    StartWorker,
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

Effects = list[GatewayEffect]

KEPT_DECISIONS = 20


class Autoscaling:
    """Of a gateway whose members, drains and routing are these, from `now_ns` on. `fleet` must see
    workers that come, change and go, and `follow` comes after everything that happened at an
    instant."""

    def __init__(
        self,
        config: PlanningConfig,
        members: Members,
        drains: Drains,
        routing: Routing,
        *,
        now_ns: int,
    ) -> None:
        self.config = config
        self.fleet = PlannedFleet(config.pools, config.hold_s, members, drains, now_ns=now_ns)
        self._members, self._drains, self._routing = members, drains, routing
        self._planner = PlannerMachine(config, now_ns)
        self._experience = ClientExperience(self._planner)
        self._begun: Counter[ActionKind] = Counter()
        self._decisions: deque[PlanDecision] = deque(maxlen=KEPT_DECISIONS)
        self._last_actions: tuple[PlannedAction, ...] = ()
        self._acts = config.mode is PlanningMode.AUTOMATIC
        self._ticks = 0
        self._operations = 0

    def adopt(self, now_ns: int) -> None:
        """Workers and requests were there before the planner was."""
        for member in self._members:
            self.fleet.worker_joined(member, now_ns)
        for request_id in self._routing.router.requests:
            self._experience.request_met(request_id, now_ns)

    def reconfigure(self, config: PlanningConfig, now_ns: int) -> None:
        """Plan by another configuration from now on. What is under way goes on."""
        self.config = config
        self.fleet.reconfigure(config.pools, config.hold_s)
        self._planner.reconfigure(config, now_ns)
        self._acts = config.mode is PlanningMode.AUTOMATIC
        self._last_actions = ()

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
        for event in events:
            match event:
                case RequestSubmitted(request) if request.request_id not in limited:
                    self._experience.request_submitted(request, now_ns)
                case RequestWithdrawn(request_id):
                    self._experience.request_withdrawn(request_id, now_ns)
        due_ns = self.next_wakeup()
        planned = self._plan(now_ns) if due_ns is not None and now_ns >= due_ns else []
        kept: Effects = []
        for effect in (*effects, *planned):
            match effect:
                case Deliver(emission, _, repeats):
                    self._experience.tokens_delivered(emission, now_ns, repeats)
                case (
                    Reject(request_id)
                    | LeaveOut(request_id)
                    | CutOff(request_id)
                    | FailRequest(request_id)
                ):
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
            starts=begun[ActionKind.START],
            stops=begun[ActionKind.STOP],
            flips=begun[ActionKind.FLIP],
            migrations=begun[ActionKind.MIGRATE],
            failed_starts=fleet.failed_starts,
        )

    def audit(self) -> None:
        """Assert that it agrees with the gateway on who is there and who waits."""
        self.fleet.audit()
        requests = self._routing.router.requests.keys()
        invariant(self._experience.open_ids == requests, "open requests are those of the router")

    def _plan(self, now_ns: int) -> Effects:
        fleet = self.fleet
        fleet.expire(now_ns)
        if not fleet.complete:
            self._planner.skip_tick(now_ns)
            return []
        fleet_state = fleet.fleet_state()
        shown = [
            worker
            for worker in self._routing.router.admission.fleet.views()
            # What an operator has taken out of service is not there.
            if worker.accepting or worker.worker in fleet.draining
        ]
        view = self._planner.view(
            shown,
            dict(Counter(str(role) for role in fleet_state.coming.values())),
            now_ns,
            held=fleet_state.held,
            joined_by_hand=sum(
                role is not Role.BOTH and name not in fleet.own
                for name, role in fleet_state.serving.items()
            ),
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
            figures=figures_of(view),
            actions=actions,
        )
        effects: Effects = [PlanDecided(decision)]
        # Advice that nobody has followed is the same at every tick, and shown once.
        if actions and (actions != self._last_actions or self._acts):
            self._decisions.append(decision)
        self._last_actions = actions
        if self._acts:
            effects += self._carry_out(actions, now_ns)
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
                case ActionKind.MIGRATE:
                    event = MigrationsRequested(action.worker, action.target, action.tokens)
                    self._routing.gather(event)
                case _:
                    effects.append(self._drain(action.worker, action.role))
        return effects + self._routing.flush(now_ns)

    def _drain(self, worker: str, role: Role | None) -> SendToWorker:
        member = self._members.of_name(worker)
        assert member is not None
        self._operations += 1
        self.fleet.drain_ordered(worker, role)
        # Operators' operations have positive numbers.
        order = Drain(then_role=role, leave=role is None)
        asked = DrainAsked(-self._operations, worker, order)
        return SendToWorker(member.peer, self._drains.begin(asked))
