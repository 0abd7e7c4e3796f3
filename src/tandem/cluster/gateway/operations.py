"""Operators' requests under way: drains, flips, and audits that wait for the answers of all
processes."""

from dataclasses import dataclass, field

from tandem.cluster.gateway.members import Member, Members
from tandem.facts.fleet import Role
from tandem.messages.cluster import Audited, Drain, Undrain
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    DrainAsked,
    GatewayEffect,
    OperationEnded,
    SendToWorker,
    UndrainAsked,
)

Effects = list[GatewayEffect]


@dataclass(slots=True)
class Drainage:
    """A drain under way; `begun` once the worker has said that it takes no new requests."""

    asked: DrainAsked
    begun: bool = False

    @property
    def order(self) -> Drain:
        return Drain(self.asked.then_role, self.asked.leave, self.asked.again)


class Drains:
    """At most one a worker. Every operation ends once, with what has become of it."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._drains: dict[str, Drainage] = {}
        self._undrains: dict[str, list[UndrainAsked]] = {}

    def __len__(self) -> int:
        return len(self._drains) + len(self._undrains)

    def under_way(self, worker: str) -> DrainAsked | None:
        """The drain of this worker that has not ended."""
        drainage = self._drains.get(worker)
        return None if drainage is None else drainage.asked

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
        plain = asked.then_role is None and not asked.leave
        if not replaces and (asked.worker in self._drains or (plain and not member.accepting)):
            return f"{asked.worker} is being drained already"
        if asked.then_role is member.role:
            return f"{asked.worker} is a {member.role} worker already"
        before = {phase for each in self._members for phase in _phases(each)}
        after = {phase for each in self._members.others(member) for phase in _phases(each)}
        if asked.then_role is not None:
            after |= _phases_of(asked.then_role)
        if missing := sorted(before - after):
            return f"without {asked.worker} no worker would take {' or '.join(missing)}"
        return ""

    def begin(self, asked: DrainAsked | UndrainAsked) -> Drain | Undrain:
        """What the worker is to be told for an operation without objection."""
        if isinstance(asked, UndrainAsked):
            self._undrains.setdefault(asked.worker, []).append(asked)
            return Undrain()
        self._drains[asked.worker] = Drainage(asked)
        return self._drains[asked.worker].order

    def role_state_reported(self, member: Member) -> Effects:
        """The worker has told how it stands now."""
        effects: Effects = []
        problem = "" if member.accepting else f"{member.name} is about to leave"
        for undrain in self._undrains.pop(member.name, ()):
            effects.append(OperationEnded(undrain.operation_id, problem))
        drainage = self._drains.get(member.name)
        if drainage is None:
            return effects
        if not member.accepting:
            drainage.begun = True
        elif drainage.begun:
            asked = self._drains.pop(member.name).asked
            done = asked.then_role is member.role
            problem = "" if done else f"{member.name} was told to take requests again"
            effects.append(OperationEnded(asked.operation_id, problem))
        return effects

    def presented(self, member: Member) -> Effects:
        """The worker has forgotten what it was told last, but not how it stands: tell it again what
        it may not have heard."""
        undrains, drainage = self._undrains.get(member.name), self._drains.get(member.name)
        if undrains and not member.accepting:
            if drainage is not None:
                # It was not heard either, and ends when the worker takes requests again.
                drainage.begun = True
            return [SendToWorker(member.peer, Undrain())]
        if drainage is not None and not drainage.begun:
            return [SendToWorker(member.peer, drainage.order)]
        return self.role_state_reported(member)

    def emptied(self, member: Member) -> Effects:
        """The draining worker holds nothing any more."""
        drainage = self._drains.get(member.name)
        if drainage is None or drainage.asked.then_role is not None or drainage.asked.leave:
            return []
        del self._drains[member.name]
        return [OperationEnded(drainage.asked.operation_id)]

    def gone(self, worker: str, why: str) -> Effects:
        """The worker is no more; `why` is empty when it left with nothing left to do."""
        effects: Effects = []
        for undrain in self._undrains.pop(worker, ()):
            effects.append(OperationEnded(undrain.operation_id, f"{worker} is gone: {why}"))
        drainage = self._drains.pop(worker, None)
        if drainage is not None:
            left = drainage.asked.leave and not why
            problem = "" if left else f"{worker} is gone: {why or 'it left'}"
            effects.append(OperationEnded(drainage.asked.operation_id, problem))
        return effects


@dataclass(slots=True)
class Inquiry:
    """One audit: who has not answered yet, and what the others said."""

    asked: AuditAsked
    end_ns: int
    problem: str
    waiting: dict[str, None]
    answers: list[Audited] = field(default_factory=list)

    def ended(self) -> AuditEnded:
        answers = tuple(sorted(self.answers, key=lambda each: each.worker))
        problem = self.problem
        if self.waiting:
            problem = problem or f"no answer from {', '.join(self.waiting)}"
        return AuditEnded(self.asked.operation_id, answers, problem)


class Inquiries:
    """Audits under way, oldest first. Every worker answers in the order in which it was asked."""

    def __init__(self) -> None:
        self._open: list[Inquiry] = []

    def begin(self, inquiry: Inquiry) -> Effects:
        self._open.append(inquiry)
        return self._finish(inquiry)

    def answered(self, answer: Audited) -> Effects:
        for inquiry in self._open:
            if answer.worker in inquiry.waiting:
                del inquiry.waiting[answer.worker]
                inquiry.answers.append(answer)
                return self._finish(inquiry)
        return []

    def gone(self, worker: str) -> Effects:
        """It will not answer any more."""
        effects: Effects = []
        for inquiry in list(self._open):
            if inquiry.waiting.pop(worker, 0) is None:
                effects += self._finish(inquiry)
        return effects

    def late(self, now_ns: int) -> Effects:
        """Those that have waited long enough end with what there is."""
        if not self._open:
            return []
        ended = [inquiry for inquiry in self._open if inquiry.end_ns <= now_ns]
        self._open = [inquiry for inquiry in self._open if inquiry.end_ns > now_ns]
        return [inquiry.ended() for inquiry in ended]

    def next_wakeup(self) -> int | None:
        return min([inquiry.end_ns for inquiry in self._open]) if self._open else None

    def _finish(self, inquiry: Inquiry) -> Effects:
        if inquiry.waiting:
            return []
        self._open.remove(inquiry)
        return [inquiry.ended()]


def _phases(member: Member) -> set[str]:
    """What the worker takes now."""
    return _phases_of(member.role) if member.accepting else set()


def _phases_of(role: Role) -> set[str]:
    phases = {"prefill"} if role.prefills else set()
    return phases | ({"decode"} if role.decodes else set())
