"""Which workers are up: starts, drains and flips them as the planner wishes."""

from collections import Counter

from tandem.cluster.gateway.planner import PlannerConfig, PlannerMachine
from tandem.facts.fleet import Role
from tandem.messages.router import MigrationsRequested, WorkerDrained
from tandem.policy.planning.contract import Plan
from tandem.report.record import Decision, WorkerRecord
from tandem.twin.scenario import Scenario
from tandem.twin.world import World

# How often a drained worker is looked at: has it finished?
DRAIN_LOOK_NS = 100_000_000


class Staffing:
    """Changes the world's members. `starting`, `draining` and `dead` are by name; a draining worker
    has the role that it takes afterwards, or None when it goes, a dead one the role that it had."""

    def __init__(self, scenario: Scenario, world: World) -> None:
        self._scenario = scenario
        self._world = world
        self._agenda = world.agenda
        self._starting: dict[str, Role] = {}
        self._draining: dict[str, Role | None] = {}
        self._dead: dict[str, Role] = {}
        # Whoever starts is paid for since then.
        self._asked_ns: dict[str, int] = {}
        self.planner = self._planner()

    def open(self) -> None:
        """The first workers are up at instant 0, and the planner is set."""
        for pool in self._scenario.pools:
            for name in pool.workers()[: pool.count]:
                self._world.join(name, pool.role, 0)
        if self.planner is not None:
            self._agenda.at(self.planner.next_wakeup() or 0, self._plan)

    def _planner(self) -> PlannerMachine | None:
        planning = self._scenario.policies.planning
        if planning is None:
            return None
        pools = [pool for pool in self._scenario.pools if pool.role is not Role.BOTH]
        if not pools:
            return None
        return PlannerMachine(
            planning,
            PlannerConfig(
                cost=pools[0].kind.cost,
                slo=self._scenario.slo,
                min_workers=sum(pool.min_count for pool in pools),
                max_workers=sum(pool.max_count for pool in pools),
                startup_s=max(pool.kind.startup_s for pool in pools),
                window_s=self._scenario.window_s,
            ),
        )

    def _plan(self, now_ns: int) -> None:
        assert self.planner is not None
        world = self._world
        world.refresh_loads(now_ns)
        views = world.router.admission.fleet.views()
        starting = Counter(str(role) for role in self._starting.values())
        starting.update(str(role) for role in self._draining.values() if role is not None)
        plan = self.planner.plan(views, dict(starting), now_ns)
        self._follow(plan, now_ns)
        self._agenda.at(self.planner.next_wakeup() or now_ns, self._plan)

    def _follow(self, plan: Plan, now_ns: int) -> None:
        changes: list[str] = []
        for flip in plan.flips:
            if flip.worker in self._world.members.up and flip.worker not in self._draining:
                self._drain(flip.worker, Role(flip.role), now_ns)
                changes.append(f"{flip.worker} becomes {flip.role}")
        for move in plan.moves:
            self._world.catch_up(now_ns)
            event = MigrationsRequested(move.source, move.target, move.tokens)
            self._world.tell_router(event, now_ns)
            changes.append(f"{move.tokens} tokens move from {move.source} to {move.target}")
        for role, wanted in ((Role.PREFILL, plan.prefill), (Role.DECODE, plan.decode)):
            if wanted is not None:
                changes += self._reach(role, wanted, now_ns)
        if changes:
            text = f"{plan.reason}: {'; '.join(changes)}" if plan.reason else "; ".join(changes)
            self._world.decide(Decision(now_ns, "", "planning", text))

    def _reach(self, role: Role, wanted: int, now_ns: int) -> list[str]:
        """Start or drain workers until so many have the role, those on their way included."""
        members = self._world.members.up
        here = [n for n, m in members.items() if m.role is role and n not in self._draining]
        coming = [n for n, r in self._starting.items() if r is role]
        coming += [n for n, r in self._draining.items() if r is role]
        missing = wanted - len(here) - len(coming)
        changes: list[str] = []
        # Hardware that was bought for this role first.
        for pool in sorted(self._scenario.pools, key=lambda each: each.role is not role):
            if pool.role is Role.BOTH:
                continue
            for name in pool.workers():
                if missing > 0 and name not in members and name not in self._starting:
                    self._start(name, role, now_ns)
                    changes.append(f"{name} starts as {role}")
                    missing -= 1
        # The newest go first: their caches are the coldest.
        for name in sorted(here, key=lambda n: (-members[n].since_ns, n)):
            if missing < 0 and self._spares(name):
                self._drain(name, None, now_ns)
                changes.append(f"{name} drains and goes")
                missing += 1
        return changes

    def _spares(self, name: str) -> bool:
        """Whether the worker's pool may become smaller."""
        members = self._world.members.up
        going = [n for n, role in self._draining.items() if role is None]
        pool = members[name].pool
        staying = [n for n, m in members.items() if m.pool is pool and n not in going]
        return len(staying) > pool.min_count

    def replace(self, name: str, now_ns: int) -> None:
        """A worker that died is up again at once (its start-up time is part of the fault)."""
        role = self._dead.pop(name, None)
        if role is not None and name not in {**self._world.members.up, **self._starting}:
            self._starting[name] = role
            self._up(name, now_ns)

    def kill(self, name: str, now_ns: int) -> None:
        """The worker dies, wherever it is on its way."""
        role = self._starting.pop(name, None)
        if role is not None:
            self._charge_start(name, role, now_ns)
        self._draining.pop(name, None)
        if member := self._world.members.up.get(name):
            role = member.role
            self._world.steps.of(name).crashes += 1
            self._world.leave(name, now_ns)
        if role is not None:
            self._dead[name] = role

    def _start(self, name: str, role: Role, now_ns: int) -> None:
        self._starting[name] = role
        self._asked_ns[name] = now_ns
        startup_ns = round(self._world.pools[name].kind.startup_s * 1e9)
        self._agenda.at(now_ns + startup_ns, lambda at_ns: self._up(name, at_ns))

    def _charge_start(self, name: str, role: Role, now_ns: int) -> None:
        kind = self._world.pools[name].kind
        record = WorkerRecord(name, str(role), kind.device, kind.devices)
        self._world.steps.worker(record).up_ns += now_ns - self._asked_ns.pop(name, now_ns)

    def _up(self, name: str, now_ns: int) -> None:
        role = self._starting.pop(name, None)
        if role is not None:
            self._charge_start(name, role, now_ns)
            self._world.join(name, role, now_ns)

    def _drain(self, name: str, role: Role | None, now_ns: int) -> None:
        self._draining[name] = role
        self._world.tell_router(WorkerDrained(name), now_ns)
        self._look(name, now_ns)

    def _look(self, name: str, now_ns: int) -> None:
        """A drained worker that has finished takes its new role, or goes."""
        if name not in self._draining or name not in self._world.members.up:
            self._draining.pop(name, None)
            return
        if not self._world.finished(name):
            self._agenda.at(now_ns + DRAIN_LOOK_NS, lambda at_ns: self._look(name, at_ns))
            return
        role = self._draining.pop(name)
        if role is None:
            self._world.leave(name, now_ns)
        else:
            self._world.take_role(name, role, now_ns)
