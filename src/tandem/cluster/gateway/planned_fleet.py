"""Which workers a planner has, waits for and has given orders to, and which it leaves alone.

Tells apart what the planner ordered, what an operator did by hand, and what happened by itself: the
state behind `autoscaling`, from the workers' reports. It has no plan and sends nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandem.cluster.audit import invariant
from tandem.cluster.gateway.members import Member, Members
from tandem.cluster.gateway.operations import Drains, OperatorHolds
from tandem.cluster.gateway.plan_actions import FleetState, ScaledPool
from tandem.facts.fleet import Role
from tandem.messages.gateway import DrainAsked, StartFailed, UndrainAsked
from tandem.messages.planning import PlannedStart

# A start that takes so many times as long as it should counts as failed, but for the least time.
START_PATIENCE = 3
LEAST_PATIENCE_S = 60.0
# A worker that died is started again by whoever launched it: so much longer than a start may that
# take before another one is wanted in its place.
RETURN_MARGIN_S = 10.0


@dataclass(frozen=True, slots=True)
class Start:
    """A worker that is expected up until `until_ns`. Where the planner has `asked` for it, whoever
    launches processes is to start it; others come by themselves."""

    role: Role
    until_ns: int
    asked: bool


@dataclass(slots=True)
class Seen:
    """The role state that a worker reported last, and since when it is up."""

    incarnation: str
    role: Role
    accepting: bool
    since_ns: int


class PlannedFleet:
    """Workers of these `pools`, and all others that a gateway has, from `now_ns` on. What operators
    change is left alone for `hold_s`."""

    def __init__(
        self,
        pools: Sequence[ScaledPool],
        hold_s: float,
        members: Members,
        drains: Drains,
        *,
        now_ns: int,
    ) -> None:
        self.pools = tuple(pools)
        self.own = frozenset(worker for pool in pools for worker in pool.workers)
        self.holds = OperatorHolds(hold_s)
        self.failed_starts = 0
        self._startup_s = max(pool.startup_s for pool in pools)
        self._members, self._drains = members, drains
        self._starting: dict[str, Start] = {}
        # Orders of the planner under way: the role to be taken, None for a worker that is to go.
        self._draining: dict[str, Role | None] = {}
        self._seen: dict[str, Seen] = {}
        # How workers that were lost stood, with the planner's order if there was one: a worker may
        # only have been out of touch.
        self._lost: dict[str, tuple[Seen, dict[str, Role | None]]] = {}
        # Names whose start has failed, and until when they are not tried again.
        self._failed_ns: dict[str, int] = {}
        # The first workers are on their way.
        for pool in pools:
            for worker in pool.workers[: pool.count]:
                self._expect(worker, pool.role, self._back_ns(now_ns), asked=False)
        self._first = set(self._starting)

    def reconfigure(self, pools: Sequence[ScaledPool], hold_s: float) -> None:
        """Other pools and bounds from now on. Starts of names that there are no more are not
        wanted any longer; their workers that are up count as joined by hand."""
        self.pools = tuple(pools)
        self.own = frozenset(worker for pool in pools for worker in pool.workers)
        self.holds.reconfigure(hold_s)
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
        for those that go."""
        return self._draining

    def start_asked(self, worker: str, role: Role, now_ns: int) -> None:
        """The planner wants this worker up."""
        self._expect(worker, role, now_ns + self._patience_ns(), asked=True)

    def drain_ordered(self, worker: str, role: Role | None) -> None:
        """The planner has the worker drain and then take this role, or (None) go."""
        self._draining[worker] = role

    def worker_joined(self, member: Member, now_ns: int) -> None:
        """It registers: a new process, or one that has forgotten the gateway."""
        worker, seen = member.name, self._seen.get(member.name)
        if seen is not None and seen.incarnation == member.registration.incarnation:
            self.role_state_changed(member, now_ns)
            return
        self._starting.pop(worker, None)
        self._failed_ns.pop(worker, None)
        self._first.discard(worker)
        before, order = self._lost.pop(worker, (None, {}))
        if before is not None and before.incarnation == member.registration.incarnation:
            self._seen[worker] = before
            self._draining.update(order)
            self.role_state_changed(member, now_ns)
            if member.accepting:
                # An order that it has not begun is not sent again.
                self._draining.pop(worker, None)
            return
        incarnation, accepting = member.registration.incarnation, member.accepting
        self._seen[worker] = Seen(incarnation, member.role, accepting, since_ns=now_ns)
        if not accepting:
            self.holds.worker_drained(worker, member.role)
        elif worker in self.holds:
            self.holds.hold(worker, "restarted", member.role, now_ns)

    def role_state_changed(self, member: Member, now_ns: int) -> None:
        """A worker has reported its role state. What the planner did not order, an operator did."""
        worker, seen = member.name, self._seen[member.name]
        was_accepting, had_role = seen.accepting, seen.role
        seen.accepting, seen.role = member.accepting, member.role
        if not member.accepting:
            if was_accepting and worker not in self._draining:
                self.holds.worker_drained(worker, had_role)
            return
        if worker in self._draining:
            if was_accepting and member.role is had_role:
                # The order has not reached it yet.
                return
            wanted = self._draining.pop(worker)
            if member.role is not wanted:
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
        ordered = worker in self._draining
        wanted = self._draining.pop(worker, None)
        if died:
            self._lost[worker] = seen, {worker: wanted} if ordered else {}
            if worker in self.own:
                self._expect(worker, wanted or seen.role, self._back_ns(now_ns), asked=False)
        elif not ordered or wanted is not None:
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
            self._failed_ns[event.worker] = now_ns + self._patience_ns()

    def drains(self, worker: str) -> bool:
        """Whether an order of the planner's to this worker is under way."""
        return worker in self._draining

    def operator_takes(self, worker: str) -> None:
        """An operator's order replaces that of the planner's under way."""
        del self._draining[worker]
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
        self._failed_ns = {
            worker: until_ns for worker, until_ns in self._failed_ns.items() if until_ns > now_ns
        }

    def fleet_state(self) -> FleetState:
        """Who is up and on the way, for the actions of one plan."""
        members = list(self._members)
        serving = {
            member.name: member.role
            for member in members
            if member.accepting and member.name not in self._draining
        }
        flipping = {worker: role for worker, role in self._draining.items() if role is not None}
        starting = {worker: start.role for worker, start in self._starting.items()}
        by_hand: dict[str, DrainAsked] = {}
        returning: dict[str, Role] = {}
        for member in members:
            asked = self._drains.under_way(member.name)
            if asked is None or member.name in self._draining:
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
            blocked=frozenset([*self._failed_ns, *(member.name for member in members)]),
        )

    def audit(self) -> None:
        """Assert that it agrees with the gateway on who is there."""
        names = {member.name for member in self._members}
        invariant(set(self._seen) == names, "the planned fleet is made of the members")
        invariant(set(self._draining) <= names, "the planner's orders are for members")
        invariant(not names & set(self._starting), "nobody who is up is still expected")

    def _expect(self, worker: str, role: Role, until_ns: int, *, asked: bool) -> None:
        self._starting[worker] = Start(role, until_ns, asked)

    def _back_ns(self, now_ns: int) -> int:
        """Until when a worker that comes by itself is waited for."""
        return now_ns + round((self._startup_s + RETURN_MARGIN_S) * 1e9)

    def _patience_ns(self) -> int:
        return round(max(LEAST_PATIENCE_S, START_PATIENCE * self._startup_s) * 1e9)
