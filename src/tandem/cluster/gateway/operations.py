"""Operators' requests: drains, flips, audits and resets under way, and the workers that the
planner leaves alone because an operator changed them by hand."""

from dataclasses import dataclass, field

from tandem.cluster.gateway.members import Member, Members
from tandem.facts.fleet import Role
from tandem.messages.cluster import Audited, Drain, PrefixCacheEmptied, Undrain
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    DrainAsked,
    GatewayEffect,
    OperationEnded,
    PrefixCacheResetAsked,
    SendToWorker,
    UndrainAsked,
)
from tandem.messages.planning import HeldWorker

Effects = list[GatewayEffect]


@dataclass(slots=True)
class OpenDrain:
    """A drain under way; `begun` once the worker has reported that it takes no new requests."""

    asked: DrainAsked
    begun: bool = False


class Drains:
    """At most one a worker. Every operation ends once, with what has become of it."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._drains: dict[str, OpenDrain] = {}
        self._undrains: dict[str, list[UndrainAsked]] = {}

    def __len__(self) -> int:
        return len(self._drains) + len(self._undrains)

    def under_way(self, worker: str) -> DrainAsked | None:
        """The drain of this worker that has not ended."""
        drain = self._drains.get(worker)
        return None if drain is None else drain.asked

    def supersede(self, worker: str) -> None:
        """Forget the drain of this worker: the next order replaces it, and nobody waits for its
        end."""
        self._drains.pop(worker, None)

    def objection(self, asked: DrainAsked | UndrainAsked, *, replaces: bool = False) -> str:
        """Why that cannot be done; empty when it can. An order that `replaces` one of the planner's
        may come while the worker drains."""
        member = self._members.of_name(asked.worker)
        if member is None:
            known = ", ".join(member.name for member in self._members)
            there = f"there are {known}" if known else "there is none at all"
            return f"no worker is called {asked.worker}; {there}"
        if isinstance(asked, UndrainAsked):
            return f"{asked.worker} takes requests already" if member.accepting else ""
        then_role = asked.order.then_role
        plain = then_role is None and not asked.order.leave
        if not replaces and (asked.worker in self._drains or (plain and not member.accepting)):
            return f"{asked.worker} is being drained already"
        if then_role is member.role:
            return f"{asked.worker} is a {member.role} worker already"
        before = {phase for each in self._members for phase in _phases(each)}
        after = {phase for each in self._members.others(member) for phase in _phases(each)}
        if then_role is not None:
            after |= _phases_of(then_role)
        if missing := sorted(before - after):
            return f"without {asked.worker} no worker would take {' or '.join(missing)}"
        return ""

    def begin(self, asked: DrainAsked | UndrainAsked) -> Drain | Undrain:
        """Begin an operation without objection. Gives the message for the worker."""
        if isinstance(asked, UndrainAsked):
            self._undrains.setdefault(asked.worker, []).append(asked)
            return Undrain()
        self._drains[asked.worker] = OpenDrain(asked)
        return asked.order

    def role_state_reported(self, member: Member) -> Effects:
        """The worker has reported its role state."""
        effects: Effects = []
        problem = "" if member.accepting else f"{member.name} is about to leave"
        for undrain in self._undrains.pop(member.name, ()):
            effects.append(OperationEnded(undrain.operation_id, problem))
        drain = self._drains.get(member.name)
        if drain is None:
            return effects
        if not member.accepting:
            drain.begun = True
        elif drain.begun:
            asked = self._drains.pop(member.name).asked
            done = asked.order.then_role is member.role
            problem = "" if done else f"{member.name} was undrained"
            effects.append(OperationEnded(asked.operation_id, problem))
        return effects

    def worker_registered(self, member: Member) -> Effects:
        """The worker has registered anew. It keeps its role state, but orders that it may not have
        received are sent again."""
        undrains, drain = self._undrains.get(member.name), self._drains.get(member.name)
        if undrains and not member.accepting:
            if drain is not None:
                # It was not received either, and ends when the worker takes requests again.
                drain.begun = True
            return [SendToWorker(member.peer, Undrain())]
        if drain is not None and not drain.begun:
            return [SendToWorker(member.peer, drain.asked.order)]
        return self.role_state_reported(member)

    def emptied(self, member: Member) -> Effects:
        """The draining worker holds nothing any more."""
        drain = self._drains.get(member.name)
        if drain is None or drain.asked.order.then_role is not None or drain.asked.order.leave:
            return []
        del self._drains[member.name]
        return [OperationEnded(drain.asked.operation_id)]

    def gone(self, worker: str, why: str) -> Effects:
        """The worker is no more; `why` is empty when it left with nothing left to do."""
        effects: Effects = []
        for undrain in self._undrains.pop(worker, ()):
            effects.append(OperationEnded(undrain.operation_id, f"{worker} is gone: {why}"))
        drain = self._drains.pop(worker, None)
        if drain is not None:
            left = drain.asked.order.leave and not why
            problem = "" if left else f"{worker} is gone: {why or 'it left'}"
            effects.append(OperationEnded(drain.asked.operation_id, problem))
        return effects


@dataclass(slots=True)
class Broadcast:
    """What every process was told and answers: who has not yet, and the answers of the others."""

    asked: AuditAsked | PrefixCacheResetAsked
    end_ns: int
    waiting: dict[str, None]
    problem: str = ""
    answers: list[Audited | PrefixCacheEmptied] = field(default_factory=list)

    def awaits(self, answer: Audited | PrefixCacheEmptied) -> bool:
        """Whether it is an answer to this that has not come yet."""
        fits = isinstance(self.asked, AuditAsked) == isinstance(answer, Audited)
        return fits and answer.worker in self.waiting

    def ended(self) -> AuditEnded | OperationEnded:
        problem = self.problem
        if self.waiting:
            problem = problem or f"no answer from {', '.join(self.waiting)}"
        number = self.asked.operation_id
        if isinstance(self.asked, PrefixCacheResetAsked):
            return OperationEnded(number, problem)
        audited = [each for each in self.answers if isinstance(each, Audited)]
        workers = sorted(audited, key=lambda each: each.worker)
        return AuditEnded(number, tuple(workers), problem)


class Broadcasts:
    """Those under way, oldest first. Every process answers in the order in which it was told."""

    def __init__(self) -> None:
        self._open: list[Broadcast] = []

    def begin(self, broadcast: Broadcast) -> Effects:
        self._open.append(broadcast)
        return self._finish(broadcast)

    def answered(self, answer: Audited | PrefixCacheEmptied) -> Effects:
        for broadcast in self._open:
            if broadcast.awaits(answer):
                del broadcast.waiting[answer.worker]
                broadcast.answers.append(answer)
                return self._finish(broadcast)
        return []

    def gone(self, worker: str) -> Effects:
        """It will not answer any more."""
        effects: Effects = []
        for broadcast in list(self._open):
            if broadcast.waiting.pop(worker, 0) is None:
                if isinstance(broadcast.asked, PrefixCacheResetAsked):
                    # What lies on its disk is found again by whoever is started next.
                    broadcast.problem = f"{worker} is gone"
                effects += self._finish(broadcast)
        return effects

    def late(self, now_ns: int) -> Effects:
        """Those that have waited long enough end with what there is."""
        if not self._open:
            return []
        ended = [each for each in self._open if each.end_ns <= now_ns]
        self._open = [each for each in self._open if each.end_ns > now_ns]
        return [each.ended() for each in ended]

    def next_wakeup(self) -> int | None:
        return min([each.end_ns for each in self._open]) if self._open else None

    def _finish(self, broadcast: Broadcast) -> Effects:
        if broadcast.waiting:
            return []
        self._open.remove(broadcast)
        return [broadcast.ended()]


def _phases(member: Member) -> set[str]:
    """What the worker takes now."""
    return _phases_of(member.role) if member.accepting else set()


def _phases_of(role: Role) -> set[str]:
    phases = {"prefill"} if role.prefills else set()
    return phases | ({"decode"} if role.decodes else set())


@dataclass(frozen=True, slots=True)
class Hold:
    """`role` is the one that the worker had; `until_ns` None: until it takes requests again."""

    why: str
    role: Role
    until_ns: int | None


class OperatorHolds:
    """By the worker's name, whether it lives or not: what was sent away is not started again."""

    def __init__(self, hold_s: float) -> None:
        self._hold_ns = round(hold_s * 1e9)
        self._holds: dict[str, Hold] = {}

    def reconfigure(self, hold_s: float) -> None:
        """Another fixed time, for the holds to come."""
        self._hold_ns = round(hold_s * 1e9)

    def __contains__(self, worker: str) -> bool:
        return worker in self._holds

    @property
    def workers(self) -> frozenset[str]:
        return frozenset(self._holds)

    def worker_drained(self, worker: str, role: Role) -> None:
        """It takes no new requests, and the planner did not order it."""
        self._holds[worker] = Hold("drained", role, None)

    def worker_back(self, worker: str, role: Role, now_ns: int) -> None:
        """It takes requests again: an operator's drain ends, by an undrain or a flip."""
        hold = self._holds.get(worker)
        if hold is None or hold.until_ns is not None:
            return
        if role is hold.role:
            del self._holds[worker]
        else:
            self.hold(worker, f"flipped to {role}", role, now_ns)

    def hold(self, worker: str, why: str, role: Role, now_ns: int) -> None:
        """Leave it alone from now on for the fixed time."""
        self._holds[worker] = Hold(why, role, now_ns + self._hold_ns)

    def forget(self, worker: str) -> None:
        """It is nobody's but the planner's."""
        self._holds.pop(worker, None)

    def release(self, worker: str) -> bool:
        """The operator gives a worker that takes requests back to the planner; whether it was
        held."""
        return self._holds.pop(worker, None) is not None

    def expire(self, now_ns: int) -> None:
        """Forget holds whose time is over."""
        self._holds = {
            worker: hold
            for worker, hold in self._holds.items()
            if hold.until_ns is None or hold.until_ns > now_ns
        }

    def shown(self, now_ns: int) -> tuple[HeldWorker, ...]:
        """For operators, by name."""
        return tuple(
            HeldWorker(
                worker,
                hold.why,
                None if hold.until_ns is None else max(0, hold.until_ns - now_ns) / 1e9,
            )
            for worker, hold in sorted(self._holds.items())
        )
