"""Drives a planned workload against a server: open loop, closed loop, or both.

Planned requests become HTTP ones, and the events that come back become records. Here is the one
clock of the measuring room.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.bench.client import Client, RequestFailed
from tandem.bench.responses import Chunk
from tandem.bench.workload import ContentSource, Conversation, PlannedRequest
from tandem.report.record import Ending, MeasuredRequest

Clock = Callable[[], float]


def start_clock() -> Clock:
    """A clock that reads 0 now and never goes back."""
    started_s = time.perf_counter()
    return lambda: time.perf_counter() - started_s


def nanoseconds(instant_s: float) -> int:
    """An instant or a duration as records hold it."""
    return round(instant_s * 1e9)


Send = Callable[[PlannedRequest, MeasuredRequest, Clock], Awaitable[None]]
"""Sends one request and fills in its record; failures go into the record, not up."""


@dataclass(frozen=True)
class Pacing:
    """`open_loop` sends at the instants of the workload, whatever the server does; otherwise the
    next conversation starts when one of `concurrency` ends. In the open loop `concurrency` bounds
    what is in flight; None is no bound."""

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


CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


@dataclass(frozen=True)
class Asking:
    """How every request of a run is asked. `vocabulary_tokens` None sends words, not token ids;
    `ignore_eos` makes the answer exactly as long as planned; `token_ids` asks for the answer's."""

    model: str
    path: str = COMPLETION_PATH
    vocabulary_tokens: int | None = None
    ignore_eos: bool = True
    temperature: float = 0.0
    token_ids: bool = False


class Asker:
    """A `Send` for `run_load`."""

    def __init__(self, client: Client, asking: Asking, content: ContentSource) -> None:
        self._client = client
        self._asking = asking
        self._content = content

    def body(self, request: PlannedRequest) -> dict[str, Any]:
        """The request in the OpenAI shape. The prompt is made here, not in the plan: all prompts of
        a long trace would not fit into memory."""
        asking = self._asking
        body: dict[str, Any] = {
            "model": asking.model,
            "max_tokens": request.output_tokens,
            "temperature": asking.temperature,
            "seed": request.index,
        }
        if asking.ignore_eos:
            body["ignore_eos"] = True
        if asking.token_ids:
            body["return_token_ids"] = True
        if asking.path == CHAT_PATH:
            content = self._content.text(request.segments)
            body["messages"] = [{"role": "user", "content": content}]
        elif asking.vocabulary_tokens is None:
            body["prompt"] = self._content.text(request.segments)
        else:
            body["prompt"] = self._content.token_ids(request.segments, asking.vocabulary_tokens)
        return body

    async def send(self, request: PlannedRequest, record: MeasuredRequest, clock: Clock) -> None:
        """Fills in `record`; why it failed becomes its `reason`."""
        with contextlib.suppress(RequestFailed):
            await self.ask(request, record, clock)

    async def ask(
        self,
        request: PlannedRequest,
        record: MeasuredRequest,
        clock: Clock,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """The same, with headers of its own, and the `RequestFailed` is raised as well."""
        question = Question(self._asking.path, self.body(request), headers)
        await ask_and_record(self._client, question, record, clock)


@dataclass(frozen=True, slots=True)
class Question:
    """One HTTP request that is to be streamed."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] | None = None


OnTokens = Callable[[Sequence[int]], None]
"""Called at once for every event that carries tokens: their ids, where the server tells them."""


async def ask_and_record(
    client: Client,
    question: Question,
    record: MeasuredRequest,
    clock: Clock,
    on_tokens: OnTokens | None = None,
) -> None:
    """Streams the answer and fills in `record`. Raises the `RequestFailed` that stands there."""
    record.arrival_ns = nanoseconds(clock())
    try:
        stream = client.stream(question.path, question.body, question.headers)
        async with contextlib.aclosing(stream) as chunks:
            observer = _Observer(record)
            async for chunk in chunks:
                observer.observe(chunk, nanoseconds(clock()))
                if on_tokens is not None:
                    for choice in chunk.choices:
                        if choice.carries_tokens or choice.token_ids:
                            on_tokens(choice.token_ids or ())
        record.end_ns = nanoseconds(clock())
        observer.conclude()
    except RequestFailed as failure:
        record.end_ns = nanoseconds(clock())
        record.ending, record.reason = Ending.FAILED, str(failure)
        raise


class _Observer:
    """Fills a record from the events of one stream."""

    def __init__(self, record: MeasuredRequest) -> None:
        self._record = record
        self._events = 0
        self._counted = False

    def observe(self, chunk: Chunk, now_ns: int) -> None:
        record = self._record
        for choice in chunk.choices:
            if choice.carries_tokens:
                if record.first_token_ns < 0:
                    record.first_token_ns = now_ns
                else:
                    record.gaps_ns.append(now_ns - record.last_token_ns)
                record.last_token_ns = now_ns
                self._events += 1
            record.finish_reason = choice.finish_reason or record.finish_reason
        if chunk.usage is not None:
            record.prompt_tokens = chunk.usage.prompt_tokens
            record.emitted_tokens = chunk.usage.completion_tokens
            record.cached_tokens = chunk.usage.cached_tokens
            self._counted = True

    def conclude(self) -> None:
        record = self._record
        if not self._counted:
            # Without the server's own count, an event is taken for a token.
            record.emitted_tokens = self._events
        if record.first_token_ns < 0 and record.emitted_tokens:
            # Every token printed as nothing: the end is the first sign of the answer.
            record.first_token_ns = record.last_token_ns = record.end_ns
        record.ending = Ending.FINISHED
        if record.emitted_tokens == 0:
            record.ending, record.reason = Ending.FAILED, "the answer has no tokens"
