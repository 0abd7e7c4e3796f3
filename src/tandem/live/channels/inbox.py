"""What a machine is to be told next, gathered from any thread until the event loop looks."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Generic, TypeVar

from tandem.messages.node import NodeEvent

E = TypeVar("E")


class EventInbox(Generic[E]):
    """Many writers, one reader. Events of one writer keep their order; those that come within one
    turn of the loop are taken together."""

    def __init__(self) -> None:
        self._events: deque[E] = deque()
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._failure: Exception | None = None

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """The reader lives on this loop. What came before waits for it."""
        self._loop = loop
        self._news.set()

    def put(self, event: E) -> None:
        """On the loop."""
        self._events.append(event)
        self._news.set()

    def put_threadsafe(self, event: E) -> None:
        """From any thread; events that come after the loop has ended are nobody's any more."""
        self._events.append(event)
        self._wake()

    def fail(self, failure: Exception) -> None:
        """From any thread: the reader gets this raised, whatever else waits."""
        self._failure = self._failure or failure
        self._wake()

    async def take(self) -> list[E]:
        """All events since the last call, in order; waits for news. Raises what `fail` was
        given."""
        await self._news.wait()
        self._news.clear()
        if self._failure:
            raise self._failure
        return [self._events.popleft() for _ in range(len(self._events))]

    def _wake(self) -> None:
        if self._loop is None:
            return
        # A closed loop raises it: then nobody is left to wake.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news.set)


Inbox = EventInbox[NodeEvent]
