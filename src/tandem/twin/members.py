"""The simulated workers that are up, and their place on the virtual clock: each wakes when its next
step lands, and hears nothing while it hangs."""

from collections.abc import Callable
from dataclasses import dataclass

from tandem.facts.fleet import Role
from tandem.messages.router import LoadReported
from tandem.messages.worker import WorkerEvent
from tandem.twin.agenda import Agenda, Turn
from tandem.twin.scenario import Pool
from tandem.twin.worker import SimulatedEffect, SimulatedWorker

Hear = Callable[[str, list[SimulatedEffect], int], None]
Land = Callable[[str, int], None]


@dataclass(slots=True)
class Member:
    """One worker that is up since `since_ns`. `inbox` keeps what is told to it while it hangs,
    until `thaw_ns`; `wake_ns` is the landing that the agenda knows of; `order` breaks ties between
    workers; `reported` is the last load that the router heard of."""

    worker: SimulatedWorker
    pool: Pool
    role: Role
    order: int
    since_ns: int
    wake_ns: int | None = None
    reported: LoadReported | None = None
    inbox: list[WorkerEvent] | None = None
    thaw_ns: int = 0

    @property
    def hangs(self) -> bool:
        return self.inbox is not None


class Members:
    """`up` holds them by name. What they say is heard by `hear(name, effects, now_ns)`; when a step
    lands, `land(name, now_ns)` has the worker, and whom else it likes, caught up."""

    def __init__(self, agenda: Agenda, hear: Hear, land: Land) -> None:
        self._agenda = agenda
        self._hear = hear
        self._land = land
        self.up: dict[str, Member] = {}

    def tell(self, name: str, event: WorkerEvent, now_ns: int) -> None:
        """A worker that is not up hears nothing."""
        member = self.up.get(name)
        if member is None:
            return
        if member.inbox is not None:
            member.inbox.append(event)
            return
        self._hear(name, member.worker.tell(event, now_ns), now_ns)
        self._watch(member)

    def freeze(self, name: str, duration_ns: int, now_ns: int) -> None:
        """The worker hangs: nothing moves in there, and nothing is heard from or by it."""
        member = self.up[name]
        thaw_ns = now_ns + duration_ns
        longer_ns = thaw_ns - max(now_ns, member.thaw_ns)
        if longer_ns <= 0:
            return
        self._hear(name, member.worker.freeze(longer_ns, now_ns), now_ns)
        if member.inbox is None:
            member.inbox = []
        member.thaw_ns = thaw_ns
        self._watch(member)
        self._agenda.at(thaw_ns, lambda at_ns: self._thaw(member, at_ns))

    def catch_up(self, now_ns: int) -> None:
        """All steps that have landed by now are heard of, in the order of the workers."""
        for name in sorted(self.up, key=lambda each: self.up[each].order):
            self.catch_up_one(name, now_ns)

    def catch_up_one(self, name: str, now_ns: int) -> None:
        member = self.up[name]
        self._hear(name, member.worker.catch_up(now_ns), now_ns)
        self._watch(member)

    def _thaw(self, member: Member, now_ns: int) -> None:
        name = member.worker.name
        if self.up.get(name) is not member or now_ns != member.thaw_ns:
            return
        assert member.inbox is not None
        inbox, member.inbox = member.inbox, None
        for event in inbox:
            self.tell(name, event, now_ns)

    def _wake(self, member: Member, now_ns: int) -> None:
        name = member.worker.name
        if self.up.get(name) is member and member.worker.wake_ns == now_ns:
            member.wake_ns = None
            self._land(name, now_ns)

    def _watch(self, member: Member) -> None:
        """Have the agenda wake the worker when its next step lands; an earlier wish that no longer
        holds is ignored when its instant comes."""
        wake_ns = member.worker.wake_ns
        if wake_ns is None or wake_ns == member.wake_ns:
            return
        member.wake_ns = wake_ns
        self._agenda.at_in_order(
            wake_ns, lambda at_ns: self._wake(member, at_ns), Turn.STEP, member.order
        )
