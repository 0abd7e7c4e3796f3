"""What the processes of a simulated cluster have in common: a name, mail, and whether they hang."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from tandem.twin.message_bus import MessageBus

Event = TypeVar("Event")


class Process(ABC, Generic[Event]):
    """One start of a process. `mail` is what it has yet to handle; while it hangs, it handles
    nothing, and once it is not `alive`, nobody does."""

    def __init__(self, name: str, incarnation: str, bus: MessageBus) -> None:
        self.name = name
        self.incarnation = incarnation
        self.peer = f"{name}/{incarnation}"
        self.bus = bus
        self.mail: list[Event] = []
        self.alive = True
        self.hangs = False
        self.resume_ns = 0

    def receive(self, event: Event) -> None:
        """Handled within this instant, in order."""
        if self.alive:
            self.mail.append(event)
            if not self.hangs:
                self.bus.has_mail(self)

    def hang(self, until_ns: int | None, now_ns: int) -> None:
        """Nothing is handled until then; None: for good."""
        end_ns = 1 << 62 if until_ns is None else until_ns
        if end_ns <= max(now_ns, self.resume_ns):
            return
        self.hangs, self.resume_ns = True, end_ns
        if until_ns is not None:
            self.bus.queue.at(until_ns, self._resume)

    def _resume(self, now_ns: int) -> None:
        if self.alive and now_ns == self.resume_ns:
            self.hangs = False
            self.resumed(now_ns)

    @abstractmethod
    def resumed(self, now_ns: int) -> None:
        """It goes on where it stood; what has come meanwhile is handled together."""

    @abstractmethod
    def take_mail(self, now_ns: int) -> None:
        """Handle what was received since the last time."""
