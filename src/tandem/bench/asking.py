"""Turns planned requests into HTTP ones and the events that come back into records."""

import contextlib
from dataclasses import dataclass
from typing import Any

from tandem.bench.chunks import Chunk
from tandem.bench.client import Client, RequestFailed
from tandem.bench.content import ContentSource
from tandem.bench.record import RequestRecord
from tandem.bench.stopwatch import Clock
from tandem.bench.workload import PlannedRequest

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

    async def send(self, request: PlannedRequest, record: RequestRecord, clock: Clock) -> None:
        """Fills in `record`; a failure becomes its `error`."""
        body = self.body(request)
        record.prompt_tokens = request.prompt_tokens
        record.sent_s = clock()
        try:
            stream = self._client.stream(self._asking.path, body)
            async with contextlib.aclosing(stream) as chunks:
                observer = _Observer(record)
                async for chunk in chunks:
                    observer.observe(chunk, clock())
            record.ended_s = clock()
            observer.conclude()
        except RequestFailed as failure:
            record.ended_s = clock()
            record.error = str(failure)


class _Observer:
    """Fills a record from the events of one stream."""

    def __init__(self, record: RequestRecord) -> None:
        self._record = record
        self._last_s: float | None = None
        self._events = 0
        self._counted = False

    def observe(self, chunk: Chunk, now_s: float) -> None:
        record = self._record
        for choice in chunk.choices:
            if choice.carries_tokens:
                if self._last_s is None:
                    record.first_token_s = now_s
                else:
                    record.gaps_s.append(now_s - self._last_s)
                self._last_s = now_s
                self._events += 1
            record.finish_reason = choice.finish_reason or record.finish_reason
        if chunk.usage is not None:
            record.prompt_tokens = chunk.usage.prompt_tokens
            record.output_tokens = chunk.usage.completion_tokens
            record.cached_tokens = chunk.usage.cached_tokens
            self._counted = True

    def conclude(self) -> None:
        record = self._record
        if not self._counted:
            # Without the server's own count, an event is taken for a token.
            record.output_tokens = self._events
        if record.first_token_s is None and record.output_tokens:
            # Every token printed as nothing: the end is the first sign of the answer.
            record.first_token_s = record.ended_s
        if record.output_tokens == 0:
            record.error = "the answer has no tokens"
