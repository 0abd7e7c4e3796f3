"""Work under way in the background of a connector: who may stop it, and how its end is told.

Every ticket ends exactly once, whoever is first: the thread that serves it, a cancellation before
that thread has begun, or nobody serving it at all.
"""

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tandem.kv.connector import Completion


@dataclass(slots=True, eq=False)
class Ticket:
    """`stop` says why to end early, and is empty until somebody wants that."""

    number: int
    peer: str
    stop: str = ""
    begun: bool = False


class Tickets:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[int, Ticket] = {}
        self._last_number = 0
        self._closed = ""
        self._completions: queue.SimpleQueue[Completion] = queue.SimpleQueue()

    def open(self, peer: str) -> Ticket:
        with self._lock:
            self._last_number += 1
            ticket = Ticket(self._last_number, peer)
            self._open[ticket.number] = ticket
        if self._closed:
            self.end(ticket, self._closed)
        return ticket

    def begin(self, ticket: Ticket) -> bool:
        """Whether the ticket is still to be served; from then on its server ends it."""
        with self._lock:
            ticket.begun = ticket.number in self._open
            return ticket.begun

    @contextmanager
    def served(self, ticket: Ticket) -> Iterator[None]:
        """The work for a ticket that was begun, which ends it: so does its failure."""
        try:
            yield
        finally:
            # Nothing happens to one that has ended.
            self.end(ticket, "the thread that served it failed")

    def end(self, ticket: Ticket, problem: str = "") -> None:
        with self._lock:
            if self._open.pop(ticket.number, None) is not None:
                self._completions.put(Completion(ticket.number, problem))

    def cancel(self, number: int, why: str = "cancelled") -> None:
        """A ticket that is being served ends when its server looks at `stop`, others now."""
        with self._lock:
            ticket = self._open.get(number)
            if ticket is None:
                return
            ticket.stop = ticket.stop or why
            if not ticket.begun:
                del self._open[number]
                self._completions.put(Completion(number, ticket.stop))

    def cancel_peer(self, peer: str, why: str) -> None:
        with self._lock:
            numbers = [number for number, ticket in self._open.items() if ticket.peer == peer]
        for number in numbers:
            self.cancel(number, why)

    def close(self, why: str) -> None:
        """All tickets end, those to come included."""
        with self._lock:
            self._closed = why
            numbers = list(self._open)
        for number in numbers:
            self.cancel(number, why)

    def poll(self, timeout_s: float) -> list[Completion]:
        found: list[Completion] = []
        try:
            found.append(self._completions.get(timeout=max(timeout_s, 0.0)))
            while True:
                found.append(self._completions.get_nowait())
        except queue.Empty:
            return found
