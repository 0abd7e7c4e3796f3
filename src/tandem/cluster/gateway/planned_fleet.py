"""Which workers a planner has, waits for and has given orders to, and which it leaves alone.

Tells apart what the planner ordered, what an operator did by hand, and what happened by itself: the
state behind `autoscaling`, from the workers' reports. It has no plan and sends nothing.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace

from tandem.cluster.audit import invariant
from tandem.cluster.gateway.members import Member, Members
from tandem.cluster.gateway.operations import Drains, OperatorHolds
from tandem.cluster.gateway.plan_actions import FleetState, ScaledPool
from tandem.facts.fleet import Role
from tandem.messages.gateway import DrainAsked, StartFailed, UndrainAsked
from tandem.messages.planning import PlannedStart, StuckWorker

# A start that takes so many times as long as it should counts as failed, but for the least time.
START_PATIENCE = 3
LEAST_PATIENCE_S = 60.0
# A name whose start fails again and again is tried ever less often, but once in so long.
LONGEST_BACKOFF_S = 3600.0
# A worker that died is started again by whoever launched it: so much longer than a start may that
# take before another one is wanted in its place.
RETURN_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Start:
    """A worker that is expected up until `until_ns`, to serve or to stand by as a `spare`. Where
    the planner has `asked` for it, whoever launches processes is to start it; others come by
    themselves."""

    role: Role
    until_ns: int
    asked: bool
    spare: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """What a draining worker was ordered by the planner: to take this role, or (None) to go.
    `since_ns` is when."""

    role: Role | None
    since_ns: int


@dataclass(frozen=True, slots=True)
class FailedStart:
    """A name whose start has failed `times` in a row, and until when it is not tried again."""

    times: int
    until_ns: int
    why: str


@dataclass(slots=True)
class Seen:
    """The role state that a worker reported last, and since when it is up."""

    incarnation: str
    role: Role
    accepting: bool
    since_ns: int


class PlannedFleet:
    """Workers of these `pools`, and all others that a gateway has, from `now_ns` on. What operators
    change is left alone for `hold_s`; a worker that has not done within `patience_s` what it was
    ordered is not waited for. So many `wanted_spares` are to stand by."""

    def __init__(
        self,
        pools: Sequence[ScaledPool],
        hold_s: float,
        members: Members,
        drains: Drains,
        *,
        now_ns: int,
        patience_s: float = 300.0,
        wanted_spares: int = 0,
    ) -> None:
        self.pools = tuple(pools)
        self.wanted_spares = wanted_spares
        self.own = frozenset(worker for pool in pools for worker in pool.workers)
        self.holds = OperatorHolds(hold_s)
        self.failed_starts = 0
        self._startup_s = max(pool.startup_s for pool in pools)
        self._members, self._drains = members, drains
        self._starting: dict[str, Start] = {}
        self._drain_patience_ns = round(patience_s * 1e9)
        # Orders of the planner under way, and those among them that take too long.
        self._draining: dict[str, Order] = {}
        self._late: set[str] = set()
        # Who stands by, or drains for that, with its role; and who has just come to do so.
        self._spares: dict[str, Role] = {}
        self._new_spares: list[str] = []
        self._seen: dict[str, Seen] = {}
        # How workers that were lost stood, with the planner's order if there was one: a worker may
        # only have been out of touch.
        self._lost: dict[str, tuple[Seen, dict[str, Order]]] = {}
        self._failed: dict[str, FailedStart] = {}
        # The first workers are on their way.
        for pool in pools:
            for worker in pool.workers[: pool.count]:
                self._expect(worker, pool.role, self._back_ns(now_ns), asked=False)
        self._first = set(self._starting)

    def reconfigure(
        self,
        pools: Sequence[ScaledPool],
        hold_s: float,
        *,
        patience_s: float,
        wanted_spares: int,
    ) -> None:
        """Other pools and bounds from now on. Starts of names that there are no more are not
        wanted any longer; their workers that are up count as joined by hand."""
        self.pools = tuple(pools)
        self.own = frozenset(worker for pool in pools for worker in pool.workers)
        self.holds.reconfigure(hold_s)
        self._drain_patience_ns, self.wanted_spares = round(patience_s * 1e9), wanted_spares
        self._startup_s = max(pool.startup_s for pool in pools)
        for worker in [name for name in self._starting if name not in self.own]:
            del self._starting[worker]
        self._first &= self.own

    @property
    def complete(self) -> bool:
        """Whether the workers that start with the cluster have all been up, or are not waited for
        any more: before, there is nothing to plan with."""
        return not self._first

    @property
    def starting(self) -> tuple[PlannedStart, ...]:
        """Workers that the planner wants and that are not up, by name."""
        return tuple(
            PlannedStart(worker, start.role)
            for worker, start in sorted(self._starting.items())
            if start.asked
        )

    @property
    def draining(self) -> Mapping[str, Role | None]:
        """Workers that drain by an order of the planner, with the role that they take then; None
        for those that go. Whoever takes too long is not among them: nobody waits for it."""
        return {
            worker: order.role
            for worker, order in self._draining.items()
            if worker not in self._late
        }

    @property
    def spares(self) -> tuple[str, ...]:
        """Who stands by, or drains for that."""
        return tuple(sorted(self._spares))

    def ready_spares(self) -> int:
        """How many stand by and are not an operator's."""
        return sum(worker not in self.holds for worker in self._spares)

    def stuck(self, now_ns: int) -> tuple[StuckWorker, ...]:
        """Who did not do what it was to do, and that nobody waits for."""
        late = [
            StuckWorker(
                worker,
                f"has been draining for {(now_ns - self._draining[worker].since_ns) / 1e9:.0f} s",
            )
            for worker in self._late
        ]
        failed = [
            StuckWorker(
                worker,
                f"did not start: {failed.why}; tried again in "
                f"{max(0, failed.until_ns - now_ns) / 1e9:.0f} s",
            )
            for worker, failed in self._failed.items()
            if failed.until_ns > now_ns
        ]
        return tuple(sorted([*late, *failed], key=lambda each: each.worker))

    def start_asked(self, worker: str, role: Role, now_ns: int, *, spare: bool = False) -> None:
        """The planner wants this worker up, to serve or to stand by."""
        until_ns = now_ns + self._patience_ns()
        self._starting[worker] = Start(role, until_ns, asked=True, spare=spare)

    def drain_ordered(self, worker: str, role: Role | None, now_ns: int) -> None:
        """The planner has the worker drain and then take this role, or (None) go."""
        self._spares.pop(worker, None)
        self._draining[worker] = Order(role, now_ns)

    def spare_ordered(self, worker: str) -> None:
        """The planner has the worker drain and stand by."""
        self._spares[worker] = self._seen[worker].role

    def take_new_spares(self) -> list[str]:
        """Workers that have come up since the last call, to stand by: they are to be told so."""
        fresh, self._new_spares = self._new_spares, []
        return [worker for worker in fresh if worker in self._spares]

    def spares_not_wanted(self) -> dict[str, Role]:
        """From now on workers that come up take requests. Gives those that stand by and are no
        operator's, which are to take requests again, with their roles."""
        self._starting = {
            worker: replace(start, spare=False)
            for worker, start in self._starting.items()
            if not (start.asked and start.spare)
        }
        for worker in self._new_spares:
            # It takes requests, for it was never drained.
            self._spares.pop(worker, None)
        self._new_spares.clear()
        return {
            worker: role
            for worker, role in sorted(self._spares.items())
            if worker not in self.holds
        }

    def starts_not_wanted(self) -> None:
        """Workers that the planner has asked for need not come up."""
        self._starting = {
            worker: start for worker, start in self._starting.items() if not start.asked
        }

    def worker_joined(self, member: Member, now_ns: int) -> None:
        """It registers: a new process, or one that has forgotten the gateway."""
        worker, seen = member.name, self._seen.get(member.name)
        if seen is not None and seen.incarnation == member.registration.incarnation:
            self.role_state_changed(member, now_ns)
            return
        start = self._starting.pop(worker, None)
        self._failed.pop(worker, None)
        self._first.discard(worker)
        before, order = self._lost.pop(worker, (None, {}))
        if before is not None and before.incarnation == member.registration.incarnation:
            self._seen[worker] = before
            self._draining.update(order)
            self.role_state_changed(member, now_ns)
            if member.accepting:
                # An order that it has not begun is not sent again.
                self._forget_order(worker)
            return
        incarnation, accepting = member.registration.incarnation, member.accepting
        self._seen[worker] = Seen(incarnation, member.role, accepting, since_ns=now_ns)
        if not accepting and member.spare:
            self._spares[worker] = member.role
        elif not accepting:
            self.holds.worker_drained(worker, member.role)
        elif worker in self.holds:
            self.holds.hold(worker, "restarted", member.role, now_ns)
        elif start is not None and start.spare:
            self._spares[worker] = member.role
            self._new_spares.append(worker)

    def role_state_changed(self, member: Member, now_ns: int) -> None:
        """A worker has reported its role state. What the planner did not order, an operator did."""
        worker, seen = member.name, self._seen[member.name]
        was_accepting, had_role = seen.accepting, seen.role
        seen.accepting, seen.role = member.accepting, member.role
        if not member.accepting:
            if member.spare and worker not in self._draining:
                self._spares[worker] = member.role
                self.holds.forget(worker)
            elif worker in self._spares or (was_accepting and worker not in self._draining):
                self._spares.pop(worker, None)
                self.holds.worker_drained(worker, had_role)
            return
        if was_accepting and worker in self._spares:
            # The order has not reached it yet.
            return
        if worker in self._draining:
            if was_accepting and member.role is had_role:
                # The order has not reached it yet.
                return
            wanted = self._forget_order(worker)
            if member.role is not wanted:
                why = "undrained" if member.role is had_role else f"flipped to {member.role}"
                self.holds.hold(worker, why, member.role, now_ns)
        elif self._spares.pop(worker, None) is not None:
            why = "undrained" if member.role is had_role else f"flipped to {member.role}"
            self.holds.hold(worker, why, member.role, now_ns)
        elif not was_accepting:
            self.holds.worker_back(worker, member.role, now_ns)
        elif member.role is not had_role:
            self.holds.hold(worker, f"flipped to {member.role}", member.role, now_ns)

    def worker_gone(self, worker: str, now_ns: int, *, died: bool) -> None:
        """A worker is no more: it died, and is started again by whoever launched it, or it left, as
        the planner or an operator wanted. To be called before its drain is forgotten."""
        seen = self._seen.pop(worker, None)
        if seen is None:
            return
        order = self._draining.get(worker)
        wanted = self._forget_order(worker)
        spare = self._spares.pop(worker, None) is not None
        if died:
            self._lost[worker] = seen, {worker: order} if order is not None else {}
            if worker in self.own:
                back = Start(wanted or seen.role, self._back_ns(now_ns), asked=False, spare=spare)
                self._starting[worker] = back
        elif order is None or wanted is not None:
            self.holds.hold(worker, "sent away", seen.role, now_ns)
            asked = self._drains.under_way(worker)
            if asked is not None and asked.order.again:
                self._expect(worker, seen.role, self._back_ns(now_ns), asked=False)

    def start_failed(self, event: StartFailed, now_ns: int) -> None:
        """A worker that was expected will not come: another one may be started instead."""
        start = self._starting.pop(event.worker, None)
        self._first.discard(event.worker)
        if start is not None and start.asked:
            self.failed_starts += 1
        if event.worker in self.own and self._members.of_name(event.worker) is None:
            before = self._failed.get(event.worker)
            times = 1 if before is None else before.times + 1
            wait_ns = min(self._patience_ns() << min(times - 1, 20), round(LONGEST_BACKOFF_S * 1e9))
            wait_ns = max(wait_ns, self._patience_ns())
            self._failed[event.worker] = FailedStart(times, now_ns + wait_ns, event.reason)

    def drains(self, worker: str) -> bool:
        """Whether an order of the planner's to this worker is under way, or has it stand by."""
        return worker in self._draining or worker in self._spares

    def operator_takes(self, worker: str) -> None:
        """An operator's order replaces that of the planner's."""
        self._forget_order(worker)
        self._spares.pop(worker, None)
        self._drains.supersede(worker)
        self.holds.worker_drained(worker, self._seen[worker].role)

    def operator_releases(self, event: UndrainAsked) -> bool:
        """An operator gives a worker that takes requests back to the planner; whether it was
        held."""
        member = self._members.of_name(event.worker)
        return member is not None and member.accepting and self.holds.release(event.worker)

    def expire(self, now_ns: int) -> None:
        """Whom nobody need wait for or leave alone any longer."""
        self.holds.expire(now_ns)
        for worker, start in list(self._starting.items()):
            if start.until_ns > now_ns:
                continue
            if start.asked:
                self.start_failed(StartFailed(worker, "it has not come up"), now_ns)
            else:
                del self._starting[worker]
                self._first.discard(worker)
        oldest_ns = now_ns - self._drain_patience_ns
        self._late |= {
            worker for worker, order in self._draining.items() if order.since_ns <= oldest_ns
        }

    def fleet_state(self, now_ns: int, dedicated: Set[str]) -> FleetState:
        """Who is up and on the way, for the actions of one plan. Workers that are `dedicated` to
        some classes are left out."""
        members = [member for member in self._members if member.name not in dedicated]
        serving = {
            member.name: member.role
            for member in members
            if member.accepting
            and member.name not in self._draining
            and member.name not in self._spares
        }
        flipping = {worker: role for worker, role in self.draining.items() if role is not None}
        starting = {
            worker: start.role for worker, start in self._starting.items() if not start.spare
        }
        standing_by = {
            worker: start.role for worker, start in self._starting.items() if start.spare
        }
        by_hand: dict[str, DrainAsked] = {}
        returning: dict[str, Role] = {}
        for member in members:
            asked = self._drains.under_way(member.name)
            if asked is None or self.drains(member.name):
                continue
            by_hand[member.name] = asked
            # What an operator flips or restarts will be back.
            then_role = asked.order.then_role
            if not member.accepting and (then_role is not None or asked.order.again):
                returning[member.name] = then_role or member.role
        return FleetState(
            pools=self.pools,
            serving=serving,
            coming={**starting, **flipping, **returning},
            flipping=set(flipping),
            since_ns={worker: seen.since_ns for worker, seen in self._seen.items()},
            held=self.holds.workers | by_hand.keys(),
            blocked=frozenset(
                [
                    *(name for name, each in self._failed.items() if each.until_ns > now_ns),
                    *(member.name for member in self._members),
                ]
            ),
            spares=dict(self._spares),
            spares_coming=standing_by,
            wanted_spares=self.wanted_spares,
        )

    def audit(self) -> None:
        """Assert that it agrees with the gateway on who is there."""
        names = {member.name for member in self._members}
        invariant(set(self._seen) == names, "the planned fleet is made of the members")
        invariant(set(self._draining) <= names, "the planner's orders are for members")
        invariant(self._late <= set(self._draining), "who is late has an order")
        invariant(set(self._spares) <= names, "spares are members")
        invariant(
            not set(self._spares) & set(self._draining), "spares are under no order of the planner"
        )
        invariant(not names & set(self._starting), "nobody who is up is still expected")

    def _forget_order(self, worker: str) -> Role | None:
        """The order to this worker is done or void. The role that it was to take."""
        self._late.discard(worker)
        order = self._draining.pop(worker, None)
        return None if order is None else order.role

    def _expect(self, worker: str, role: Role, until_ns: int, *, asked: bool) -> None:
        self._starting[worker] = Start(role, until_ns, asked)

    def _back_ns(self, now_ns: int) -> int:
        """Until when a worker that comes by itself is waited for."""
        return now_ns + round((self._startup_s + RETURN_MARGIN_S) * 1e9)

    def _patience_ns(self) -> int:
        return round(max(LEAST_PATIENCE_S, START_PATIENCE * self._startup_s) * 1e9)
