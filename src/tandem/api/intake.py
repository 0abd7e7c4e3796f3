"""What clients' calls cost before anything is generated: bytes held, and work off the event loop.

Bodies of all connections together are bounded in bytes. Parsing and tokenising what is large runs
in a few threads with a bounded queue, which whoever disconnects leaves at once; work under way
cannot be stopped, and is small because of the bounds. Bytes, places and turns are shared by
account: who fills them all stands in its own way alone.
"""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from tandem.api.ambient import fresh_chance
from tandem.api.config import ApiConfig
from tandem.api.refusal import Refusal, Refused
from tandem.api.shares import Shares
from tandem.api.sse import while_connected
from tandem.api.turns import QueueFull, Turns
from tandem.facts.backoff import retry_after

Result = TypeVar("Result")

# About half a millisecond of parsing or tokenising; less work is not worth a thread.
LARGE_BYTES = 8 << 10
THREADS = 2
QUEUED_CALLS = 64
_BYTES_FLOOR = 32 << 20
_BODIES_FLOOR = 8
# Beside these, for bodies of up to `LARGE_BYTES`: large ones leave room for a short chat.
_SMALL_BODIES_BYTES = 2 << 20


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


class HeldBytes:
    """What one call holds of the budget that all calls share. Grows as its body arrives."""

    def __init__(self, intake: "Intake", account: str, task: "asyncio.Task[Any] | None") -> None:
        self.intake = intake
        self.account = account
        self.count = 0
        self.is_cut = False
        self._task = task
        self._shares: Shares[HeldBytes] | None = None

    def take(self, count: int) -> None:
        """Raises `Refused` with 503 where all calls together would hold too much, and no account
        holds more of it than this one would."""
        shares = self.intake.shares_for(self.count + count, self.account)
        more = count if shares is self._shares else self.count + count
        try:
            victims = shares.take(self, self.account, more, keeps=self._task is None)
        except OverflowError as error:
            raise _full() from error
        if shares is not self._shares:
            self.give_back()
        self._shares = shares
        self.count += count
        for victim in victims:
            victim.cut()

    def cut(self) -> None:
        """It has given way to another account: its call ends with a 503."""
        if self._task is not None:
            self.is_cut = self._task.cancel()

    def give_back(self) -> None:
        if self._shares is not None:
            self._shares.give_back(self)


class Intake:
    """One for all calls of a server. Use it from one event loop."""

    def __init__(self, config: ApiConfig, context_tokens: int) -> None:
        self.body_bytes = config.body_bytes(context_tokens)
        self.most_bytes = max(_BYTES_FLOOR, _BODIES_FLOOR * self.body_bytes)
        self._small: Shares[HeldBytes] = Shares(_SMALL_BODIES_BYTES)
        self._large: Shares[HeldBytes] = Shares(self.most_bytes)
        self._turns = Turns(THREADS, QUEUED_CALLS)
        self._threads = ThreadPoolExecutor(THREADS, "intake")

    @property
    def held_bytes(self) -> int:
        return self._small.held + self._large.held

    @property
    def queued_calls(self) -> int:
        return self._turns.waiting

    def check(self, more_bytes: int, account: str = "") -> None:
        """Raises `Refused` with 503 where so many more bytes are too many for `account`."""
        if self.shares_for(more_bytes, account).victims(account, more_bytes) is None:
            raise _full()

    def shares_for(self, size: int, account: str) -> Shares["HeldBytes"]:
        """What a body of so many bytes counts to: small ones have a budget of their own first."""
        fits = size <= LARGE_BYTES and self._small.victims(account, size) is not None
        return self._small if fits else self._large

    @contextmanager
    def holding(self, account: str = "", *, gives_way: bool = False) -> Iterator[HeldBytes]:
        """What is taken within the block is given back at its end. One that `gives_way` may be
        ended within it, with `Refused` and 503, for the sake of an account that holds less."""
        held = HeldBytes(self, account, asyncio.current_task() if gives_way else None)
        try:
            yield held
        except asyncio.CancelledError:
            task = asyncio.current_task()
            # Whoever else ends the task at the same time means it.
            if not held.is_cut or task is None or task.uncancel():
                raise
            raise _full() from None
        finally:
            held.give_back()

    async def run(
        self, request: Request, size: int, work: Callable[[], Result], account: str = ""
    ) -> Result:
        """What `work` gives: run at once where `size` (bytes, characters or values) is small, else
        in a thread, as long as the client stays. Raises what `work` raises, `ClientGone`, and
        `Refused` with 429 where too many wait for a thread, and of `account` most."""
        if size <= LARGE_BYTES:
            return work()
        return await while_connected(request.receive, self._run(work, account))

    async def _run(self, work: Callable[[], Result], account: str) -> Result:
        try:
            await self._turns.begin(account)
        except QueueFull as error:
            raise _busy(429, f"{QUEUED_CALLS} large calls wait to be read already") from error
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, _without_collection, work)
        # The thread is busy until the work ends, even if nobody waits for that any more.
        working.add_done_callback(self._thread_freed)
        return await asyncio.shield(working)

    def _thread_freed(self, working: "asyncio.Future[Any]") -> None:
        self._turns.end()
        if not working.cancelled():
            # Looked at here, a failure that nobody waits for is no news.
            working.exception()


def _full() -> Refused:
    return _busy(503, "the bodies of other calls fill the server; try again in a moment")


def _busy(status: int, problem: str) -> Refused:
    headers = {"Retry-After": retry_after(1.0, fresh_chance())}
    return Refused(Refusal(status, problem, "overloaded", headers=headers))


def _without_collection(work: Callable[[], Result]) -> Result:
    with _no_collection:
        return work()
