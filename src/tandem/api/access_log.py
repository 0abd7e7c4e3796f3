"""The access log: one JSON line for each call once it has ended. No key is in it, and no prompt and
no answer unless somebody asked for them. Probes and pages that need no key are left out."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.api.auth import KEY, LOOKED_AT_PATHS, STATUS, TENANT, TRACE
from tandem.api.choice import ChoiceDelta, UsageMeter
from tandem.api.clock_and_entropy import monotonic_ns, monotonic_s, unix_time_ns
from tandem.api.degradation import Degradation
from tandem.api.errors import REFUSAL, REQUEST_ID, Refusal
from tandem.api.responses import Finish
from tandem.facts.serving import ServedBy
from tandem.facts.tracing import TraceContext

# Where the scope of a call has its record, if there is a log.
RECORD = "tandem.access_record"
CLIENT_GONE, INTERNAL_ERROR = 499, 500
_PATH_CHARS = 256
_KEY_CHARS = 8


class LineSink(Protocol):
    """Where the lines go. `lost_lines` of them were lost since the start."""

    lost_lines: int

    def write(self, line: bytes) -> None:
        """One line with its end. Never waits."""
        ...


class AccessLine(msgspec.Struct, frozen=True, kw_only=True, rename={"service_class": "class"}):
    """A line. `time` is when the call arrived; `key` tells its API key from others, and is no part
    of it. `cached`: all of the answer came out of the response cache. `code` says why a call was
    refused, or ended early; `reason` says it in words for a 429. `cascade` says which model of a
    cascade answered. Seconds are those of the API server: `ttft_s` up to the first token, `tpot_s`
    the mean of each later one of an answer (of a gang: of a sample), `total_s` up to the last byte.
    What is not known is null. `trace_id` is there where calls are traced; `prompts`, the `texts` of
    answers, and whether they were cut, where the log is to have them."""

    time: str
    request_id: str
    trace_id: str | UnsetType = UNSET
    tenant: str
    key: str
    method: str
    path: str
    status: int
    service_class: str | None = None
    model: str | None = None
    stream: bool | None = None
    answers: int | None = None
    cached: bool | None = None
    code: str | None = None
    reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float
    finish_reasons: tuple[Finish, ...] = ()
    workers: tuple[str, ...] = ()
    cascade: str | None = None
    prompts: tuple[str, ...] | UnsetType = UNSET
    texts: tuple[str, ...] | UnsetType = UNSET
    content_cut: bool | UnsetType = UNSET


@dataclass(slots=True)
class CallContent:
    """What a call asks and is answered, for the log: the `prompts` as the model reads them, and its
    answers as the model writes them, of either the first `limit_bytes` in UTF-8."""

    limit_bytes: int
    prompts: Sequence[Sequence[int]]
    decode: Callable[[Sequence[int]], str]
    _answers: dict[int, list[int]] = field(default_factory=dict)
    _answer_tokens: int = 0

    def note_tokens(self, choice: int, tokens: Sequence[int]) -> None:
        """An answer goes on with these."""
        # A token is a byte at least: one more shows that there is more.
        kept = tokens[: self.limit_bytes + 1 - self._answer_tokens]
        self._answer_tokens += len(kept)
        self._answers.setdefault(choice, []).extend(kept)

    def texts(self) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """Of the prompts, and of the answers that began; and whether something is cut of them."""
        prompts, is_cut = self._spelled(self.prompts)
        answers, also_cut = self._spelled([self._answers[each] for each in sorted(self._answers)])
        return prompts, answers, is_cut or also_cut

    def _spelled(self, sequences: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], bool]:
        texts, left_bytes, is_cut = list[str](), self.limit_bytes, False
        for tokens in sequences:
            spelled = self.decode(tokens[: left_bytes + 1]).encode()
            kept = spelled[:left_bytes]
            left_bytes -= len(kept)
            is_cut = is_cut or len(spelled) > len(kept)
            texts.append(kept.decode(errors="ignore"))
        return tuple(texts), is_cut


@dataclass(slots=True)
class _Times:
    """Instants of one answer, or of one sample of a gang, in seconds."""

    first_s: float
    last_s: float
    tokens: int = 0


@dataclass(slots=True)
class AnswerRecord:
    """What a generating call asked for, and what its answers are, while they come: their tokens in
    the call's own `meter`, their times here where it `is_timed`. `is_cached`: none of them is
    computed. `content` is kept only for a log that is to have it."""

    model: str
    service_class: str
    stream: bool
    answers: int
    served_by: ServedBy
    meter: UsageMeter
    degradation: Degradation
    is_cached: bool
    is_timed: bool = True
    content: CallContent | None = None
    _times: dict[int, _Times] = field(default_factory=dict)
    _finishes: dict[int, Finish] = field(default_factory=dict)

    def note_delta(self, delta: ChoiceDelta) -> None:
        """When it came, and whether an answer ends with it."""
        if delta.tokens and self.is_timed:
            self.note_tokens(delta.choice, len(delta.tokens))
            self.note_content(delta.choice, delta.tokens)
        if delta.finish_reason is not None:
            self.note_finish(delta.choice, delta.finish_reason)

    def note_tokens(self, sequence: int, tokens: int) -> None:
        """So many tokens of this choice, or of this sample of a gang, have come now."""
        now_s = monotonic_s()
        times = self._times.get(sequence)
        if times is None:
            times = self._times[sequence] = _Times(now_s, now_s)
        times.last_s = now_s
        times.tokens += tokens

    def note_content(self, choice: int, tokens: Sequence[int]) -> None:
        """The answer of this choice goes on with these."""
        if self.content is not None:
            self.content.note_tokens(choice, tokens)

    def note_finish(self, choice: int, finish: Finish) -> None:
        """This answer has ended."""
        self._finishes[choice] = finish

    @property
    def whole(self) -> bool:
        """Whether all answers have ended, but those that were left out."""
        return len(self._finishes) == self.answers - len(self.degradation.left_out)

    @property
    def finish_reasons(self) -> tuple[Finish, ...]:
        """In the order of the choices."""
        return tuple(self._finishes[choice] for choice in sorted(self._finishes))

    @property
    def first_token_s(self) -> float | None:
        return min((times.first_s for times in self._times.values()), default=None)

    @property
    def tpot_s(self) -> float | None:
        """Of all answers together; None where none has a second token."""
        gaps = sum(times.tokens - 1 for times in self._times.values())
        spent_s = sum(times.last_s - times.first_s for times in self._times.values())
        return spent_s / gaps if gaps > 0 else None


@dataclass(slots=True)
class CallRecord:
    """One call from its arrival to its end; `answer` where it came so far. Where it `is_logged` the
    times of its tokens are kept, and up to `content_bytes` of what it says."""

    arrival_ns: int
    began_ns: int
    is_logged: bool = False
    content_bytes: int = 0
    answer: AnswerRecord | None = None
    status: int = INTERNAL_ERROR

    def code(self, scope: Scope) -> str | None:
        """Why it was refused, or ended early."""
        refusal: Refusal | None = scope.get(REFUSAL)
        if refusal is not None:
            return refusal.code
        if self.status == INTERNAL_ERROR:
            return "internal_error"
        left = self.answer is not None and not self.answer.whole
        return "client_gone" if left else None

    def line(self, scope: Scope) -> AccessLine:
        """What is known of it at its end."""
        refusal: Refusal | None = scope.get(REFUSAL)
        trace: TraceContext | None = scope.get(TRACE)
        answer, now_s = self.answer, monotonic_s()
        line = AccessLine(
            time=_time_text(self.arrival_ns),
            request_id=scope.get(REQUEST_ID, ""),
            trace_id=UNSET if trace is None else trace.trace_id,
            tenant=scope.get(TENANT, ""),
            key=scope.get(KEY, "").removeprefix("key ")[:_KEY_CHARS],
            method=scope["method"],
            path=scope["path"][:_PATH_CHARS],
            status=self.status,
            code=self.code(scope),
            # Others may repeat what their client wrote.
            reason=refusal.message if refusal is not None and refusal.status == 429 else None,
            total_s=_rounded(now_s - self.began_ns / 1e9),
        )
        if answer is None:
            return line
        line = self._with_answer(line, answer)
        return line if answer.content is None else self._with_content(line, answer.content)

    def _with_answer(self, line: AccessLine, answer: AnswerRecord) -> AccessLine:
        usage, first_s, tpot_s = answer.meter.usage(), answer.first_token_s, answer.tpot_s
        details = usage.prompt_tokens_details
        return msgspec.structs.replace(
            line,
            service_class=answer.service_class,
            model=answer.model,
            stream=answer.stream,
            answers=answer.answers,
            cached=answer.is_cached,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=details.cached_tokens if first_s is not None and details else None,
            output_tokens=usage.completion_tokens,
            ttft_s=None if first_s is None else _rounded(first_s - self.began_ns / 1e9),
            tpot_s=None if tpot_s is None else _rounded(tpot_s),
            finish_reasons=answer.finish_reasons,
            workers=tuple(answer.served_by.workers),
            cascade=answer.degradation.cascade or None,
        )

    def _with_content(self, line: AccessLine, content: CallContent) -> AccessLine:
        prompts, texts, is_cut = content.texts()
        return msgspec.structs.replace(line, prompts=prompts, texts=texts, content_cut=is_cut)


@contextmanager
def call_record(scope: Scope) -> Iterator[CallRecord]:
    """The record of a call, the same for all layers that want one, which knows the status once the
    block has ended."""
    record: CallRecord | None = scope.get(RECORD)
    if record is None:
        record = scope[RECORD] = CallRecord(unix_time_ns(), monotonic_ns())
    # A fault of ours is answered further out.
    status = INTERNAL_ERROR
    try:
        yield record
        status = CLIENT_GONE
    except asyncio.CancelledError:
        status = CLIENT_GONE
        raise
    finally:
        record.status = scope.get(STATUS, status)


class AccessLog:
    """The outermost layer but for tracing: writes the line of each call that has ended, with up to
    `content_bytes` of its prompts, and as many of its answers."""

    def __init__(self, app: ASGIApp, sink: LineSink, content_bytes: int = 0) -> None:
        self._app = app
        self._sink = sink
        self._content_bytes = content_bytes
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in LOOKED_AT_PATHS:
            await self._app(scope, receive, send)
            return
        record: CallRecord | None = None
        try:
            with call_record(scope) as record:
                record.is_logged, record.content_bytes = True, self._content_bytes
                await self._app(scope, receive, send)
        finally:
            if record is not None:
                self._sink.write(self._encode(record.line(scope)) + b"\n")


class LostLines(Collector):
    """How many lines were lost, as a metric."""

    def __init__(self, sink: LineSink, model_name: str) -> None:
        self._sink, self._model_name = sink, model_name

    def collect(self) -> Iterator[Metric]:
        name, text = "access_log_lost_lines", "Lines the access log misses"
        lost = CounterMetricFamily(name, text, labels=("model_name",))
        lost.add_metric((self._model_name,), self._sink.lost_lines)
        yield lost


def _time_text(unix_ns: int) -> str:
    moment = datetime.fromtimestamp(unix_ns / 1e9, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _rounded(seconds: float) -> float:
    return round(seconds, 6)
