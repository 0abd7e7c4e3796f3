"""Whose work comes next where more of it waits than can run at once? Accounts take turns: one that
asks for much waits for itself."""

import asyncio
from collections import deque

from tandem.api.shares import Shares


class QueueFull(Exception):
    """Too many wait, and of this account as many as of any other."""


class Turns:
    """So many may run, and so many more wait. Use it from one event loop."""

    def __init__(self, running: int, waiting: int) -> None:
        self._free = running
        self._places: Shares[asyncio.Future[None]] = Shares(waiting)
        # In the order in which the accounts have their turns.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        return self._places.held

    async def begin(self, account: str) -> None:
        """Returns when it is this one's turn, which `end` has to end. Raises `QueueFull`, also
        later: who has the most waiting gives up its newest place to another account."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        try:
            victims = self._places.take(turn, account, 1)
        except OverflowError as error:
            raise QueueFull from error
        for victim in victims:
            # One that leaves in this very turn of the loop still has its place, and needs no word.
            if not victim.done():
                victim.set_exception(QueueFull())
        self._queues.setdefault(account, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # It had just come.
                self.end()
            raise
        finally:
            self._places.give_back(turn)

    def end(self) -> None:
        """The turn goes to the next account."""
        while self._queues:
            account = next(iter(self._queues))
            queue = self._queues.pop(account)
            turn = queue.popleft()
            if queue:
                self._queues[account] = queue
            if not turn.done():
                self._places.give_back(turn)
                turn.set_result(None)
                return
        self._free += 1
