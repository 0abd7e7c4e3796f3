"""A gateway with a planner, whose workers and launcher carry out orders at once or later: for tests
of who is started, drained and flipped."""

from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.cluster.gateway.plan_actions import ScaledPool
from tandem.cluster.gateway.planner import PlanningConfig
from tandem.facts.fleet import PlanningMode, Role
from tandem.facts.slo import Slo
from tandem.messages.cluster import Deregister, Drain, Registered, RoleStateReported, Undrain
from tandem.messages.gateway import (
    DrainAsked,
    PeerGone,
    PlanDecided,
    SendToWorker,
    StartFailed,
    StartWorker,
    UndrainAsked,
)
from tandem.messages.planning import PlanDecision
from tandem.policy.planning.contract import FleetView, Plan
from tandem.policy.qos.classes import NO_CLASSES, Classes
from tests.cluster.cluster_parts import COST, MS, GatewayUnderTest, register

SECOND = 1000 * MS
# Nobody's silence counts here.
PATIENT = Registered("g", report_interval_ns=MS, silence_ns=10**14, lease_ns=10**14)
PREFILL = ScaledPool(Role.PREFILL, ("p-0", "p-1", "p-2"), 1, 1, COST, startup_s=5.0)
DECODE = ScaledPool(Role.DECODE, ("d-0", "d-1", "d-2", "d-3"), 2, 1, COST, startup_s=5.0)


@dataclass
class ScriptedPlanner:
    """A planner that wants the `plans` in turn, then nothing, and remembers what it saw."""

    plans: deque[Plan] = field(default_factory=deque)
    interval_s: float = 1.0
    seen: list[FleetView] = field(default_factory=list)

    def plan(self, fleet: FleetView, now_ns: int) -> Plan:
        del now_ns
        self.seen.append(fleet)
        return self.plans.popleft() if self.plans else Plan()


@dataclass
class WorkerProcess:
    """A worker process: its role, and the orders that it has not carried out yet."""

    role: Role
    incarnation: int
    accepting: bool = True
    spare: bool = False
    orders: deque[Drain | Undrain] = field(default_factory=deque)


class ScaledCluster:
    """`p-0`, `d-0` and `d-1` belong to it from the start; those that are `joined` are up. `wanted`
    are starts that nobody performed yet, `decisions` all that were made, `orders` the drains that
    the gateway has sent."""

    def __init__(
        self,
        *,
        mode: PlanningMode = PlanningMode.AUTOMATIC,
        hold_s: float = 60.0,
        begin_ns: int = 0,
        joined: tuple[str, ...] = ("p-0", "d-0", "d-1"),
        classes: Classes = NO_CLASSES,
        **planning: Any,
    ) -> None:
        self.policy = ScriptedPlanner()
        self.planning = PlanningConfig(
            "wanting",
            self.policy,
            (PREFILL, DECODE),
            Slo(ttft_s=1.0),
            mode=mode,
            hold_s=hold_s,
            **planning,
        )
        self.gateway = GatewayUnderTest(planning=self.planning, terms=PATIENT, classes=classes)
        self.gateway.now_ns = begin_ns
        self.workers: dict[str, WorkerProcess] = {}
        self.wanted: dict[str, Role] = {}
        self.decisions: list[PlanDecision] = []
        self.orders: list[tuple[str, Drain]] = []
        self.effects: list = []
        self._starts = 0
        for worker in joined:
            self.join(worker, Role.PREFILL if worker in PREFILL.workers else Role.DECODE)

    @property
    def planner(self):
        return self.gateway.machine.autoscaling

    @property
    def roles(self) -> dict[str, str]:
        """Of the workers that take requests."""
        return {name: str(w.role) for name, w in sorted(self.workers.items()) if w.accepting}

    def apply(self, **planning: Any) -> None:
        """An operator has it planned otherwise."""
        self.planning = replace(self.planning, **planning)
        self._take_effects(self.gateway.apply(planning=self.planning))

    def plan_no_more(self) -> None:
        """An operator switches planning off; `apply` switches it on again."""
        self._take_effects(self.gateway.apply(planning=None))
        self.look()

    def join(self, worker: str, role: Role) -> None:
        """A process of this name is up."""
        self._starts += 1
        self.wanted.pop(worker, None)
        process = self.workers[worker] = WorkerProcess(role, self._starts)
        self._take_effects(
            self.gateway.receive(register(worker, role, incarnation=str(process.incarnation))),
        )

    def tick(self, plan: Plan | None = None, seconds: float = 1.0) -> None:
        """Time passes; the planner's next tick wants this."""
        if plan is not None:
            self.policy.plans.append(plan)
        self._take_effects(self.gateway.pass_time(round(seconds * SECOND)))

    def carry_out(self, worker: str | None = None) -> None:
        """The worker (None: each) carries out all orders that it has."""
        for name in [worker] if worker else sorted(self.workers):
            process = self.workers[name]
            while process.orders and name in self.workers:
                self._carry_out(name, process, process.orders.popleft())

    def look(self) -> None:
        """The launcher sees which starts are still wanted."""
        status = self.gateway.machine.status(self.gateway.now_ns).planning
        starting = {start.worker for start in status.starting} if status else set()
        self.wanted = {name: role for name, role in self.wanted.items() if name in starting}

    def start_wanted(self) -> None:
        """The launcher starts everything that is wanted, and it comes up."""
        for worker, role in sorted(self.wanted.items()):
            self.join(worker, role)

    def fail_start(self, worker: str) -> None:
        self.wanted.pop(worker, None)
        self._take_effects(self.gateway.handle(StartFailed(worker, "no memory")))

    def die(self, worker: str) -> None:
        process = self.workers.pop(worker)
        peer = f"{worker}/{process.incarnation}"
        self._take_effects(self.gateway.handle(PeerGone(peer, "it was killed")))

    def operator(self, event: DrainAsked | UndrainAsked) -> list:
        effects = self.gateway.handle(event)
        self._take_effects(effects)
        return effects

    def drain_elsewhere(self, worker: str, order: Drain | Undrain) -> None:
        """An operator asks another gateway: this one learns of it from the worker alone."""
        self._carry_out(worker, self.workers[worker], order)

    def _carry_out(self, name: str, process: WorkerProcess, order: Drain | Undrain) -> None:
        if isinstance(order, Undrain):
            process.accepting, process.spare = True, False
            self._report(name, RoleStateReported(name, process.role, True))
            return
        process.accepting, process.spare = False, order.spare
        self._report(name, RoleStateReported(name, process.role, False, order.spare))
        if order.leave:
            self._report(name, Deregister(name))
            del self.workers[name]
        elif order.then_role is not None:
            process.accepting, process.role = True, order.then_role
            process.spare = False
            self._report(name, RoleStateReported(name, process.role, True))

    def _report(self, worker: str, message) -> None:
        incarnation = str(self.workers[worker].incarnation)
        self._take_effects(self.gateway.receive(message, incarnation=incarnation))

    def _take_effects(self, effects: list) -> None:
        for effect in effects:
            match effect:
                case StartWorker(worker, role):
                    assert worker not in self.workers, f"{worker} lives"
                    assert worker not in self.wanted, f"{worker} is wanted twice"
                    self.wanted[worker] = role
                case PlanDecided(decision):
                    self.decisions.append(decision)
                case SendToWorker(peer, Drain() | Undrain() as order):
                    worker, _, incarnation = peer.partition("/")
                    process = self.workers.get(worker)
                    if process is not None and str(process.incarnation) == incarnation:
                        process.orders.append(order)
                        if isinstance(order, Drain):
                            self.orders.append((worker, order))
        self.effects += effects
