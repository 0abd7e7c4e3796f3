"""Turns planned requests into HTTP ones and the events that come back into records."""

import contextlib
from dataclasses import dataclass
from typing import Any

from tandem.bench.client import Client, RequestFailed
from tandem.bench.responses import Chunk
from tandem.bench.stopwatch import Clock, nanoseconds
from tandem.bench.workload import ContentSource, PlannedRequest
from tandem.report.record import Ending, MeasuredRequest

CHAT_PATH = "/v1/chat/completions"
COMPLETION_PATH = "/v1/completions"


@dataclass(frozen=True)
class Asking:
    """How every request of a run is asked. `vocabulary_tokens` None sends words, not token ids;
    `ignore_eos` makes the answer exactly as long as planned."""

    model: str
    path: str = COMPLETION_PATH
    vocabulary_tokens: int | None = None
    ignore_eos: bool = True
    temperature: float = 0.0


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
        body = self.body(request)
        record.arrival_ns = nanoseconds(clock())
        try:
            stream = self._client.stream(self._asking.path, body)
            async with contextlib.aclosing(stream) as chunks:
                observer = _Observer(record)
                async for chunk in chunks:
                    observer.observe(chunk, nanoseconds(clock()))
            record.end_ns = nanoseconds(clock())
            observer.conclude()
        except RequestFailed as failure:
            record.end_ns = nanoseconds(clock())
            record.ending, record.reason = Ending.FAILED, str(failure)


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
