"""What clients' calls cost before anything is generated: bytes held, and work off the event loop.

Bodies of all connections together are bounded in bytes. Parsing and tokenising what is large runs
in a few threads with a bounded queue, which whoever disconnects leaves at once; work under way
cannot be stopped, and is small because of the bounds.
"""

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.requests import Request

from tandem.api.config import ApiConfig
from tandem.api.refusal import Refusal, Refused
from tandem.api.sse import while_connected

Result = TypeVar("Result")

# About half a millisecond of parsing or tokenising; less work is not worth a thread.
LARGE_BYTES = 8 << 10
THREADS = 2
QUEUED_CALLS = 64
_BYTES_FLOOR = 32 << 20
_BODIES_FLOOR = 8
_RETRY = {"Retry-After": "1"}


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

    def __init__(self, intake: "Intake") -> None:
        self.intake = intake
        self.count = 0

    def take(self, count: int) -> None:
        """Raises `Refused` with 503 where all calls together would hold too much."""
        self.intake.check(count)
        self.intake.held_bytes += count
        self.count += count


class Intake:
    """One for all calls of a server. Use it from one event loop."""

    def __init__(self, config: ApiConfig, context_tokens: int) -> None:
        self.body_bytes = config.body_bytes(context_tokens)
        self.most_bytes = max(_BYTES_FLOOR, _BODIES_FLOOR * self.body_bytes)
        self.held_bytes = 0
        self.queued_calls = 0
        self._free_threads = asyncio.Semaphore(THREADS)
        self._threads = ThreadPoolExecutor(THREADS, "intake")

    def check(self, more_bytes: int) -> None:
        """Raises `Refused` with 503 where so many more bytes are too many."""
        if self.held_bytes + more_bytes > self.most_bytes:
            problem = "the bodies of other calls fill the server; try again in a moment"
            raise Refused(Refusal(503, problem, "overloaded", headers=_RETRY))

    @contextmanager
    def holding(self) -> Iterator[HeldBytes]:
        """What is taken within the block is given back at its end."""
        held = HeldBytes(self)
        try:
            yield held
        finally:
            self.held_bytes -= held.count

    async def run(self, request: Request, size: int, work: Callable[[], Result]) -> Result:
        """What `work` gives: run at once where `size` (bytes, characters or values) is small, else
        in a thread, as long as the client stays. Raises what `work` raises, `ClientGone`, and
        `Refused` with 429 where too many wait for a thread."""
        if size <= LARGE_BYTES:
            return work()
        if self.queued_calls >= QUEUED_CALLS:
            problem = f"{self.queued_calls} large calls wait to be read already"
            raise Refused(Refusal(429, problem, "overloaded", headers=_RETRY))
        return await while_connected(request.receive, self._run(work))

    async def _run(self, work: Callable[[], Result]) -> Result:
        self.queued_calls += 1
        try:
            await self._free_threads.acquire()
        finally:
            self.queued_calls -= 1
        loop = asyncio.get_running_loop()
        working = loop.run_in_executor(self._threads, _without_collection, work)
        # The thread is busy until the work ends, even if nobody waits for that any more.
        working.add_done_callback(self._thread_freed)
        return await asyncio.shield(working)

    def _thread_freed(self, working: "asyncio.Future[Any]") -> None:
        self._free_threads.release()
        if not working.cancelled():
            # Looked at here, a failure that nobody waits for is no news.
            working.exception()


def _without_collection(work: Callable[[], Result]) -> Result:
    with _no_collection:
        return work()
