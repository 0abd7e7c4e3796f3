"""Drives a planned workload against anything that can be sent to: open loop, closed loop, or both.

Knows when and in which order to send; what a request is and what its answer means, `send` knows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from tandem.bench.stopwatch import Clock, nanoseconds, start_clock
from tandem.bench.workload import Conversation, PlannedRequest
from tandem.report.record import MeasuredRequest

Send = Callable[[PlannedRequest, MeasuredRequest, Clock], Awaitable[None]]
"""Sends one request and fills in its record; failures go into the record, not up."""


@dataclass(frozen=True)
class Pacing:
    """`open_loop` sends when the workload says, whatever the server does; otherwise the next
    conversation starts when one of `concurrency` ends. In the open loop `concurrency` bounds what
    is in flight; None is no bound."""

    open_loop: bool
    concurrency: int | None = None

    def __post_init__(self) -> None:
        assert self.open_loop or self.concurrency, "a closed loop needs its concurrency"


async def run_load(
    conversations: Sequence[Conversation],
    pacing: Pacing,
    send: Send,
    on_done: Callable[[MeasuredRequest], None] = lambda _: None,
) -> list[MeasuredRequest]:
    """The records of all requests, by index. `on_done` is called as each ends."""
    run = _Run(send, on_done, start_clock())
    if pacing.open_loop:
        await run.open_loop(conversations, pacing.concurrency)
    else:
        assert pacing.concurrency is not None
        await run.closed_loop(conversations, pacing.concurrency)
    return sorted(run.records, key=lambda record: record.serial)


class _Run:
    """One run: the records so far, and how conversations become tasks."""

    def __init__(
        self, send: Send, on_done: Callable[[MeasuredRequest], None], clock: Clock
    ) -> None:
        self.records: list[MeasuredRequest] = []
        self._send = send
        self._on_done = on_done
        self._clock = clock

    async def open_loop(
        self, conversations: Sequence[Conversation], concurrency: int | None
    ) -> None:
        slots = asyncio.Semaphore(concurrency) if concurrency else None
        async with asyncio.TaskGroup() as tasks:
            for conversation in conversations:
                wait_s = conversation.arrival_s - self._clock()
                # A late client must still let the answers be read between two requests.
                await asyncio.sleep(max(0.0, wait_s))
                tasks.create_task(self._converse(conversation, conversation.arrival_s, slots))

    async def closed_loop(self, conversations: Sequence[Conversation], concurrency: int) -> None:
        waiting = iter(conversations)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, len(conversations))):
                tasks.create_task(self._take_turns(waiting))

    async def _take_turns(self, waiting: Iterator[Conversation]) -> None:
        for conversation in waiting:
            await self._converse(conversation, self._clock(), None)

    async def _converse(
        self, conversation: Conversation, due_s: float, slots: asyncio.Semaphore | None
    ) -> None:
        for number, request in enumerate(conversation.turns):
            if number:
                await asyncio.sleep(conversation.think_s)
                due_s = self._clock()
            record = MeasuredRequest(
                request_id=str(request.index),
                serial=request.index,
                arrival_ns=-1,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                due_ns=nanoseconds(due_s),
            )
            if slots is None:
                await self._send(request, record, self._clock)
            else:
                async with slots:
                    await self._send(request, record, self._clock)
            self.records.append(record)
            self._on_done(record)
