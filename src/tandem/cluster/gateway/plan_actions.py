"""From the numbers of workers that a plan wants to changes of single workers: who starts, who
drains and goes, who takes another role. Pure: the same fleet and plan give the same actions."""

from dataclasses import dataclass, field

from tandem.cost.worker import WorkerCost
from tandem.facts.fleet import Role
from tandem.messages.planning import ActionKind, PlannedAction
from tandem.policy.planning.contract import Plan


@dataclass(frozen=True, slots=True)
class ScaledPool:
    """Workers alike that a planner may start and stop. `workers` are the names that may be up, in
    the order in which they are started, the first `count` of them with the cluster; at least
    `min_count` of them stay. A new one takes requests `startup_s` after it was asked for. Workers
    of the pool register with its `name`."""

    role: Role
    workers: tuple[str, ...]
    count: int
    min_count: int
    cost: WorkerCost
    startup_s: float = 60.0
    name: str = ""

    @property
    def max_count(self) -> int:
        return len(self.workers)


@dataclass(slots=True)
class FleetState:
    """Who is up and on the way at one instant; `actions` changes it as it goes along.

    `serving` are workers that take requests, by name with their role, `coming` those that start or
    flip, with the role that they will have. `since_ns` is when a serving worker joined. What
    operators have `held` is left as it is; `blocked` names are not started now. `spares` stand by
    with the role that they have, `spares_coming` start for that; there are to be `wanted_spares`.
    """

    pools: tuple[ScaledPool, ...]
    serving: dict[str, Role]
    coming: dict[str, Role]
    flipping: set[str]
    since_ns: dict[str, int]
    held: frozenset[str] = frozenset()
    blocked: frozenset[str] = frozenset()
    spares: dict[str, Role] = field(default_factory=dict)
    spares_coming: dict[str, Role] = field(default_factory=dict)
    wanted_spares: int = 0
    _actions: list[PlannedAction] = field(default_factory=list)

    def actions(self, plan: Plan) -> tuple[PlannedAction, ...]:
        """What is to be done for the plan, in order: flips, migrations, then starts and stops; at
        last whoever is missing among the spares."""
        for flip in plan.flips:
            self._flip(flip.worker, Role(flip.role))
        for move in plan.moves:
            if self._may_touch(move.source) and self._may_touch(move.target):
                self._actions.append(
                    PlannedAction(
                        ActionKind.MIGRATE, move.source, target=move.target, tokens=move.tokens
                    )
                )
        for role, wanted in ((Role.PREFILL, plan.prefill), (Role.DECODE, plan.decode)):
            if wanted is not None:
                self._reach(role, wanted)
        self._reach_spares()
        return tuple(self._actions)

    def after(self, plan: Plan) -> dict[str, Role]:
        """Who would take requests in which role once all of the plan is done."""
        self.actions(plan)
        return self.serving | self.coming

    def _flip(self, worker: str, role: Role) -> None:
        if not self._may_touch(worker) or role is self.serving[worker]:
            return
        if not self._dispensable(worker):
            return
        del self.serving[worker]
        self.coming[worker] = role
        self.flipping.add(worker)
        self._actions.append(PlannedAction(ActionKind.FLIP, worker, role))

    def _reach(self, role: Role, wanted: int) -> None:
        """Start or drain workers until so many have the role, those on their way included."""
        here = [worker for worker, has in self.serving.items() if has is role]
        coming = [worker for worker, has in self.coming.items() if has is role]
        missing = wanted - len(here) - len(coming)
        # Who stands by takes requests at once, and best in the role that it has.
        for worker in sorted(self.spares, key=lambda each: (self.spares[each] is not role, each)):
            if missing > 0 and worker not in self.held:
                self._activate(worker, role)
                missing -= 1
        # Hardware that was bought for this role first.
        for pool in sorted(self.pools, key=lambda each: each.role is not role):
            for worker in pool.workers:
                if missing > 0 and self._may_start(worker):
                    self.coming[worker] = role
                    self._actions.append(PlannedAction(ActionKind.START, worker, role))
                    missing -= 1
        # The newest go first: their caches are the coldest.
        for worker in sorted(here, key=lambda each: (-self.since_ns[each], each)):
            if missing < 0 and self._may_touch(worker) and self._spares(worker):
                self._let_go(worker)
                missing += 1

    def _activate(self, worker: str, role: Role) -> None:
        del self.spares[worker]
        self.coming[worker] = role
        self.flipping.add(worker)
        self._actions.append(PlannedAction(ActionKind.ACTIVATE, worker, role))

    def _let_go(self, worker: str) -> None:
        """It goes, or stays as a spare where one is missing."""
        role = self.serving.pop(worker)
        if len(self.spares) + len(self.spares_coming) < self.wanted_spares:
            self.spares[worker] = role
            self._actions.append(PlannedAction(ActionKind.SPARE, worker))
        else:
            self._actions.append(PlannedAction(ActionKind.STOP, worker))

    def _reach_spares(self) -> None:
        """Start or stop spares until there are as many as wanted, some of each role."""
        for worker in sorted(self.spares)[self.wanted_spares :]:
            if worker not in self.held:
                del self.spares[worker]
                self._actions.append(PlannedAction(ActionKind.STOP, worker))
        while len(self.spares) + len(self.spares_coming) < self.wanted_spares:
            roles = [*self.spares.values(), *self.spares_coming.values()]
            free = [
                (roles.count(pool.role), place, worker, pool.role)
                for place, pool in enumerate(self.pools)
                for worker in pool.workers
                if self._may_start(worker)
            ]
            if not free:
                return
            _, _, worker, role = min(free, key=lambda each: each[:2])
            self.spares_coming[worker] = role
            self._actions.append(PlannedAction(ActionKind.START_SPARE, worker, role))

    def _may_start(self, worker: str) -> bool:
        # A name that lives, in whatever state, is blocked or here.
        return not (
            worker in self.serving
            or worker in self.coming
            or worker in self.spares_coming
            or worker in self.blocked
            or worker in self.held
        )

    def _may_touch(self, worker: str) -> bool:
        return worker in self.serving and worker not in self.held

    def _spares(self, worker: str) -> bool:
        """Whether its pool may become smaller, and everybody's work is still done without it. A
        worker of no pool was joined by hand, and is not the planner's to send away."""
        pool = next((each for each in self.pools if worker in each.workers), None)
        if pool is None or not self._dispensable(worker):
            return False
        staying = [each for each in pool.workers if each in self.serving or each in self.flipping]
        return len(staying) > pool.min_count

    def _dispensable(self, worker: str) -> bool:
        """Whether others take what this worker takes."""
        role = self.serving[worker]
        others = [has for each, has in self.serving.items() if each != worker]
        prefills = not role.prefills or any(other.prefills for other in others)
        decodes = not role.decodes or any(other.decodes for other in others)
        return prefills and decodes
