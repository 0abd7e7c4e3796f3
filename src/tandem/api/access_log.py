"""The access log: one JSON line for each call once it has ended. No prompt, no answer and no key is
in it. Probes and pages that need no key are left out."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import msgspec
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.api.auth import KEY, OPEN_PATHS, STATUS, TENANT
from tandem.api.choice import ChoiceDelta, UsageMeter
from tandem.api.clock_and_entropy import monotonic_s, unix_time_ns
from tandem.api.degradation import Degradation
from tandem.api.errors import REFUSAL, REQUEST_ID, Refusal
from tandem.api.responses import Finish
from tandem.facts.serving import ServedBy

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
    What is not known is null."""

    time: str
    request_id: str
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


@dataclass(slots=True)
class _Times:
    """Instants of one answer, or of one sample of a gang, in seconds."""

    first_s: float
    last_s: float
    tokens: int = 0


@dataclass(slots=True)
class AnswerRecord:
    """What a generating call asked for, and what its answers are, while they come: their tokens in
    the call's own `meter`, their times here. `is_cached`: none of them is computed."""

    model: str
    service_class: str
    stream: bool
    answers: int
    served_by: ServedBy
    meter: UsageMeter
    degradation: Degradation
    is_cached: bool
    _times: dict[int, _Times] = field(default_factory=dict)
    _finishes: dict[int, Finish] = field(default_factory=dict)

    def note_delta(self, delta: ChoiceDelta) -> None:
        """When it came, and whether an answer ends with it."""
        if delta.tokens:
            self.note_tokens(delta.choice, len(delta.tokens))
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
    """One call from its arrival to its end; `answer` where it came so far."""

    arrival_ns: int
    began_s: float
    answer: AnswerRecord | None = None

    def line(self, scope: Scope, status: int) -> AccessLine:
        """What is known of it at its end."""
        refusal: Refusal | None = scope.get(REFUSAL)
        answer, now_s = self.answer, monotonic_s()
        code = "internal_error" if status == INTERNAL_ERROR else None
        code = code if refusal is None else refusal.code
        if code is None and answer is not None and not answer.whole:
            code = "client_gone"
        line = AccessLine(
            time=_time_text(self.arrival_ns),
            request_id=scope.get(REQUEST_ID, ""),
            tenant=scope.get(TENANT, ""),
            key=scope.get(KEY, "").removeprefix("key ")[:_KEY_CHARS],
            method=scope["method"],
            path=scope["path"][:_PATH_CHARS],
            status=status,
            code=code,
            # Others may repeat what their client wrote.
            reason=refusal.message if refusal is not None and refusal.status == 429 else None,
            total_s=_rounded(now_s - self.began_s),
        )
        return line if answer is None else self._with_answer(line, answer)

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
            ttft_s=None if first_s is None else _rounded(first_s - self.began_s),
            tpot_s=None if tpot_s is None else _rounded(tpot_s),
            finish_reasons=answer.finish_reasons,
            workers=tuple(answer.served_by.workers),
            cascade=answer.degradation.cascade or None,
        )


class AccessLog:
    """The outermost layer: writes the line of each call that has ended."""

    def __init__(self, app: ASGIApp, sink: LineSink) -> None:
        self._app = app
        self._sink = sink
        self._encode = msgspec.json.Encoder().encode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        record = scope[RECORD] = CallRecord(unix_time_ns(), monotonic_s())
        # A fault of ours is answered further out.
        status = INTERNAL_ERROR
        try:
            await self._app(scope, receive, send)
            status = CLIENT_GONE
        except asyncio.CancelledError:
            status = CLIENT_GONE
            raise
        finally:
            line = record.line(scope, scope.get(STATUS, status))
            self._sink.write(self._encode(line) + b"\n")


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
