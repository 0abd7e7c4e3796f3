"""The driver of a machine on an event loop: takes what has happened from an inbox, hands it to the
machine together, has its effects performed, and sets one timer for when the machine wants to be
woken. Gateways, workers and processes of the shared pool run on this one loop.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from tandem.live.clock import NS_PER_S, now_ns
from tandem.messages.node import NodeEvent

E = TypeVar("E")
F = TypeVar("F")
R = TypeVar("R")
E_in = TypeVar("E_in", contravariant=True)
F_out = TypeVar("F_out", covariant=True)


class Machine(Protocol[E_in, F_out]):
    """What is driven: decides and remembers, and neither waits nor reads a clock."""

    def handle_together(self, events: Sequence[E_in], now_ns: int, /) -> Sequence[F_out]:
        """Events of one instant, perhaps none; gives what is to be done."""
        ...

    def next_wakeup(self) -> int | None:
        """The instant at which it wants the time, if nothing happens before."""
        ...


class EventInbox(Generic[E]):
    """Events from any thread, until the driver takes them: many writers, one reader. Events of one
    writer keep their order; those that come within one turn of the loop are taken together, or as
    many of the first as `together` counts."""

    def __init__(self, together: Callable[[Sequence[E]], int] | None = None) -> None:
        self._together = together
        self._events: deque[E] = deque()
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None

    def __len__(self) -> int:
        return len(self._events)

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """The reader lives on this loop. What came before waits for it."""
        self._loop = loop
        self._news.set()

    def enqueue(self, event: E) -> None:
        """On the loop."""
        self._events.append(event)
        self._news.set()

    def enqueue_threadsafe(self, event: E) -> None:
        """From any thread; events that come after the loop has ended are nobody's any more."""
        self._events.append(event)
        self._wake()

    def fail(self, failure: Exception) -> None:
        """From any thread: the reader gets this raised, whatever else waits."""
        self._failure = self._failure or failure
        self._wake()

    async def next_events(self) -> list[E]:
        """The next events, in order; waits for news. Raises what `fail` was given."""
        await self._news.wait()
        self._news.clear()
        if self._failure:
            raise self._failure
        events = self.waiting_events()
        if self._events:
            self._news.set()
        return events

    def waiting_events(self) -> list[E]:
        """The next events, of those that are here."""
        count = len(self._events)
        if self._together and count > 1:
            count = self._together(self._events)
        return [self._events.popleft() for _ in range(count)]

    def _wake(self) -> None:
        if self._loop is None:
            return
        # A closed loop raises it: then nobody is left to wake.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)


class Driver(Generic[E, F, R]):
    """Drives one machine on one event loop. `perform` does what the machine wants done, at the
    instant at which it was decided; it gives None to go on, and anything else to end with.
    `time_passed` is the event that wakes a machine."""

    def __init__(
        self,
        machine: Machine[E, F],
        inbox: EventInbox[E],
        perform: Callable[[Sequence[F], int], R | None],
        time_passed: E | None = None,
    ) -> None:
        self._machine = machine
        self._inbox = inbox
        self._perform = perform
        self._time_passed = time_passed
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns: int | None = None

    async def run(self) -> R:
        """Until `perform` gives an end. What the machine raises, or the inbox was failed with, is
        raised. The machine is asked once before anything has happened."""
        loop = asyncio.get_running_loop()
        self._inbox.open(loop)
        try:
            while True:
                events = await self._inbox.next_events()
                if (end := self.turn(events)) is not None:
                    return end
                self._set_timer(loop)
                if self._inbox:
                    # Others have their turn between two batches.
                    await asyncio.sleep(0)
        finally:
            if self._timer:
                self._timer.cancel()

    def turn(self, events: Sequence[E]) -> R | None:
        """Hand the machine these, and have its effects performed."""
        instant_ns = now_ns()
        return self._perform(self._machine.handle_together(events, instant_ns), instant_ns)

    def settle(self) -> None:
        """After the end of `run`: hand the machine all that is left in the inbox."""
        self.turn(self._inbox.waiting_events())
        while self._inbox:
            self.turn(self._inbox.waiting_events())

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        wakeup_ns = self._machine.next_wakeup()
        if wakeup_ns == self._due_ns:
            return
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._due_ns = wakeup_ns
        if wakeup_ns is not None:
            delay_s = max(0, wakeup_ns - now_ns()) / NS_PER_S
            self._timer = loop.call_later(delay_s, self._wake)

    def _wake(self) -> None:
        self._timer = self._due_ns = None
        assert self._time_passed is not None, "a machine without `time_passed` wants to be woken"
        self._inbox.enqueue(self._time_passed)


Inbox = EventInbox[NodeEvent]
