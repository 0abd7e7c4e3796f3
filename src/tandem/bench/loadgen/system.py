"""The system under test as LoadGen sees it: takes queries, asks the server, reports tokens.

LoadGen calls from a thread of its own and must never wait for us; all else happens on one event
loop. A query that fails is reported too, without tokens: LoadGen waits for every one.
"""

import asyncio
import contextlib
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from tandem.bench.client import Client, RequestFailed
from tandem.bench.load import Clock, Question, ask_and_record, nanoseconds
from tandem.bench.loadgen.queries import Queries
from tandem.report.record import MeasuredRequest

Issued = Sequence[tuple[int, int]]
"""(LoadGen's name of the query, index of the sample)."""
Issue = Callable[[Issued], None]
StartThread = Callable[[Callable[[], None], Callable[[Exception], None]], None]
"""Starts a thread that keeps no process alive: its work, and who gets what the work raised."""


class Reports(Protocol):
    """What LoadGen is told of a query, by its name. Called on the event loop."""

    def first_token(self, query: int, token_ids: "array[int]") -> None: ...

    def completed(self, query: int, token_ids: "array[int]", tokens: int) -> None:
        """`token_ids` is empty where the server does not tell them, `tokens` 0 for a failure."""
        ...


class SystemUnderTest:
    """Make it where an event loop runs. At most `most_in_flight` requests are under way at once;
    None is no bound. `records` are those of the queries that ended."""

    def __init__(
        self,
        client: Client,
        queries: Queries,
        reports: Reports,
        clock: Clock,
        most_in_flight: int | None = None,
        on_done: Callable[[MeasuredRequest], None] = lambda _: None,
    ) -> None:
        self.records: list[MeasuredRequest] = []
        self._client = client
        self._queries = queries
        self._reports = reports
        self._clock = clock
        self._on_done = on_done
        self._slots = asyncio.Semaphore(most_in_flight) if most_in_flight else None
        self._loop = asyncio.get_running_loop()
        self._tasks: asyncio.TaskGroup | None = None
        self._issued = 0

    def issue(self, queries: Issued) -> None:
        """From any thread; returns at once."""
        self._on_loop(self._begin, queries, nanoseconds(self._clock()))

    async def run(self, test: Callable[[Issue], None], start_thread: StartThread) -> None:
        """Runs the test in a thread until it returns, and raises what it raised. LoadGen cannot be
        stopped: a test that is given up goes on waiting in its thread."""
        ended: asyncio.Future[None] = self._loop.create_future()

        def end(failure: Exception | None) -> None:
            if ended.done():
                return
            if failure is None:
                ended.set_result(None)
            else:
                ended.set_exception(failure)

        def run_test() -> None:
            test(self.issue)
            self._on_loop(end, None)

        async with asyncio.TaskGroup() as self._tasks:
            start_thread(run_test, lambda failure: self._on_loop(end, failure))
            await ended

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        """From any thread. After an interrupt there is no loop any more, and nobody to tell."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call, *arguments)

    def _begin(self, queries: Issued, issued_ns: int) -> None:
        assert self._tasks is not None
        for query, index in queries:
            prompt_tokens, output_tokens = self._queries.lengths(index)
            record = MeasuredRequest(
                request_id=str(index),
                serial=self._issued,
                arrival_ns=-1,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                due_ns=issued_ns,
            )
            self._issued += 1
            self._tasks.create_task(self._answer(query, index, record))

    async def _answer(self, query: int, index: int, record: MeasuredRequest) -> None:
        begun, ids = False, array("i")

        def on_tokens(new_ids: Sequence[int]) -> None:
            nonlocal begun
            ids.extend(new_ids)
            if not begun:
                begun = True
                self._reports.first_token(query, ids)

        with contextlib.suppress(RequestFailed):
            async with self._slots or contextlib.nullcontext():
                question = Question(self._queries.path, self._queries.body(index))
                await ask_and_record(self._client, question, record, self._clock, on_tokens)
        if not begun:
            # LoadGen takes no end without a first token.
            self._reports.first_token(query, ids)
        self._reports.completed(query, ids, record.emitted_tokens if record.finished else 0)
        self.records.append(record)
        self._on_done(record)
