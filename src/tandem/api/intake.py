"""Bounded intake: what clients' calls may cost before anything is generated, in bytes held and in
work off the event loop.

Bodies of all connections together are bounded in bytes. Parsing and tokenising what is large runs
in a few threads with a bounded queue, which whoever disconnects leaves at once; work under way
cannot be stopped, and is small because of the bounds. Bytes, places and turns are shared by
account: who fills them all stands in its own way alone.
"""

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from tandem.api.config import ApiConfig
from tandem.api.errors import Refusal, Refused, retry_header
from tandem.api.streaming import EvictableCall, while_connected
from tandem.facts.fair_shares import FairBudget

Result = TypeVar("Result")

# About half a millisecond of parsing or tokenising; less work is not worth a thread.
LARGE_BYTES = 8 << 10
THREADS = 2
QUEUED_CALLS = 64
_BYTES_FLOOR = 32 << 20
_BODIES_FLOOR = 8
# Beside these, for bodies of up to `LARGE_BYTES`: large ones leave room for a short chat.
_SMALL_BODIES_BYTES = 2 << 20


class HeldBytes:
    """What the body of one call holds of the budget that all calls share. Grows as it arrives."""

    def __init__(self, intake: "Intake", account: str, *, gives_way: bool) -> None:
        self.intake = intake
        self.account = account
        self.count = 0
        self.call = EvictableCall()
        self._gives_way = gives_way
        self._budget: FairBudget[HeldBytes] | None = None

    def hold_bytes(self, count: int) -> None:
        """So many more. Raises `Refused` with 503 where all calls together would hold too much,
        and no account holds more of it than this one would."""
        budget = self.intake.budget_for(self.count + count, self.account)
        more = count if budget is self._budget else self.count + count
        try:
            victims = budget.reserve(self, self.account, more, keeps=not self._gives_way)
        except OverflowError as error:
            raise _full() from error
        if budget is not self._budget:
            self.release_bytes()
        self._budget = budget
        self.count += count
        for victim in victims:
            victim.call.evict()

    async def run_off_loop(self, request: Request, work: Callable[[], Result]) -> Result:
        """`Intake.run_off_loop` for what is done with the whole body."""
        return await self.intake.run_off_loop(request, self.count, work, self.account)

    async def compile_off_loop(self, request: Request, work: Callable[[], Result]) -> Result:
        """The same for what may take long however small the body is."""
        return await self.intake.run_off_loop(request, LARGE_BYTES + 1, work, self.account)

    def release_bytes(self) -> None:
        if self._budget is not None:
            self._budget.give_back(self)


class Intake:
    """One for all calls of a server. Use it from one event loop."""

    def __init__(self, config: ApiConfig, context_tokens: int) -> None:
        self.body_bytes = config.body_bytes(context_tokens)
        self.most_bytes = max(_BYTES_FLOOR, _BODIES_FLOOR * self.body_bytes)
        self._small: FairBudget[HeldBytes] = FairBudget(_SMALL_BODIES_BYTES)
        self._large: FairBudget[HeldBytes] = FairBudget(self.most_bytes)
        self._slots = FairSlots(THREADS, QUEUED_CALLS)
        self._threads = ThreadPoolExecutor(THREADS, "intake")

    @property
    def held_bytes(self) -> int:
        return self._small.held + self._large.held

    @property
    def queued_calls(self) -> int:
        return self._slots.waiting

    def check_room(self, more_bytes: int, account: str = "") -> None:
        """Raises `Refused` with 503 where so many more bytes are too many for `account`."""
        if self.budget_for(more_bytes, account).victims(account, more_bytes) is None:
            raise _full()

    def budget_for(self, size: int, account: str) -> FairBudget[HeldBytes]:
        """What a body of so many bytes counts to: small ones have a budget of their own first."""
        fits = size <= LARGE_BYTES and self._small.victims(account, size) is not None
        return self._small if fits else self._large

    @contextmanager
    def holding_body(self, account: str = "", *, gives_way: bool = False) -> Iterator[HeldBytes]:
        """What is held within the block is released at its end. One that `gives_way` may be ended
        within it, with `Refused` and 503, for the sake of an account that holds less."""
        held = HeldBytes(self, account, gives_way=gives_way)
        try:
            with held.call.refused_if_evicted(_full):
                yield held
        finally:
            held.release_bytes()

    async def run_off_loop(
        self, request: Request, size: int, work: Callable[[], Result], account: str = ""
    ) -> Result:
        """What `work` gives: run at once where `size` (bytes, characters or values) is small, else
        in a thread, as long as the client stays. Raises what `work` raises, `ClientGone`, and
        `Refused` with 429 where too many wait for a thread, and of `account` most."""
        if size <= LARGE_BYTES:
            return work()
        return await while_connected(request.receive, self.run_in_thread(size, work, account))

    async def run_in_thread(
        self, size: int, work: Callable[[], Result], account: str = ""
    ) -> Result:
        """`run_off_loop` for one whose client is watched already."""
        if size <= LARGE_BYTES:
            return work()
        try:
            await self._slots.acquire_slot(account)
        except QueueFull as error:
            raise _busy(429, f"{QUEUED_CALLS} large calls wait to be read already") from error
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, _without_collection, work)
        # The thread is busy until the work ends, even if nobody waits for that any more.
        working.add_done_callback(self._thread_freed)
        return await asyncio.shield(working)

    def _thread_freed(self, working: "asyncio.Future[Any]") -> None:
        self._slots.release_slot()
        if not working.cancelled():
            # Looked at here, a failure that nobody waits for is no news.
            working.exception()


class QueueFull(Exception):
    """Too many wait, and of this account as many as of any other."""


class FairSlots:
    """A semaphore that is fair between accounts: so many may run, so many more wait, and accounts
    take turns, so that one which asks for much waits for itself. Use it from one event loop."""

    def __init__(self, running: int, waiting: int) -> None:
        self._free = running
        self._places: FairBudget[asyncio.Future[None]] = FairBudget(waiting)
        # In the order in which the accounts have their turns.
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        return self._places.held

    async def acquire_slot(self, account: str) -> None:
        """Returns when this one may run, until `release_slot`. Raises `QueueFull`, also later: who
        has the most waiting gives up its newest place to another account."""
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        try:
            victims = self._places.reserve(turn, account, 1)
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
                self.release_slot()
            raise
        finally:
            self._places.give_back(turn)

    def release_slot(self) -> None:
        """The slot goes to the next account."""
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


class _CollectionPause:
    """No garbage collection while anybody is inside. What large bodies are parsed into has no
    cycles, but is so much that the collector would go through all objects of the process, holding
    every thread meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._was_enabled:
                gc.enable()


_no_collection = _CollectionPause()


def _without_collection(work: Callable[[], Result]) -> Result:
    with _no_collection:
        return work()


def _full() -> Refused:
    return _busy(503, "the bodies of other calls fill the server; try again in a moment")


def _busy(status: int, problem: str) -> Refused:
    return Refused(Refusal(status, problem, "overloaded", headers=retry_header()))
