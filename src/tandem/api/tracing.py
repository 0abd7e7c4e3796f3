"""Tracing: the ASGI middleware that gives a call its span, under the span that its client sends
along (W3C's Trace Context). Names of attributes are OpenTelemetry's."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.api.access_log import AnswerRecord, CallRecord, call_record
from tandem.api.auth import LOOKED_AT_PATHS, TRACE
from tandem.api.clock_and_entropy import monotonic_ns
from tandem.api.errors import REQUEST_ID
from tandem.api.openapi import Handler
from tandem.facts.tracing import Attribute, Span, SpanSink, TraceContext

_METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"})
_PATH_CHARS = 256
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


class CallTracer(SpanSink, Protocol):
    """Begins the spans of calls, and gets them when they have ended. `lost_spans` were lost since
    the start."""

    @property
    def lost_spans(self) -> int: ...

    def begin_call(self, headers: Mapping[str, str]) -> TraceContext:
        """The span of a call with these headers, which begins now. Never waits, never fails."""
        ...

    def record_call(self, span: Span, call: TraceContext) -> None:
        """That span, now that it has ended. Never waits, never fails."""
        ...


class Tracing:
    """The outermost layer: records the span of each call that is sampled. `paths` are those of
    endpoints, by what handles them."""

    def __init__(self, app: ASGIApp, tracer: CallTracer, paths: Mapping[Handler, str]) -> None:
        self._app, self._tracer, self._paths = app, tracer, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in LOOKED_AT_PATHS:
            await self._app(scope, receive, send)
            return
        trace = scope[TRACE] = self._tracer.begin_call(Headers(scope=scope))
        if not trace.sampled:
            await self._app(scope, receive, send)
            return
        record: CallRecord | None = None
        try:
            with call_record(scope) as record:
                await self._app(scope, receive, send)
        finally:
            if record is not None:
                path = self._paths.get(scope["endpoint"]) if "endpoint" in scope else None
                self._tracer.record_call(_call_span(scope, record, path), trace)


class LostSpans(Collector):
    """How many spans were lost, as a metric."""

    def __init__(self, tracer: CallTracer, model_name: str) -> None:
        self._tracer, self._model_name = tracer, model_name

    def collect(self) -> Iterator[Metric]:
        name, text = "trace_lost_spans", "Spans that traces miss"
        lost = CounterMetricFamily(name, text, labels=("model_name",))
        lost.add_metric((self._model_name,), self._tracer.lost_spans)
        yield lost


def _call_span(scope: Scope, record: CallRecord, path: str | None) -> Span:
    """Of a call that has ended, to the endpoint with this path (None: to none)."""
    method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
    attributes: dict[str, Attribute] = {
        "http.request.method": method,
        "http.response.status_code": record.status,
        "url.path": scope["path"][:_PATH_CHARS],
        "url.scheme": scope["scheme"],
        "tandem.call_id": scope.get(REQUEST_ID, ""),
    }
    if path is not None:
        attributes["http.route"] = path
    if operation := _OPERATIONS.get(path or ""):
        attributes["gen_ai.operation.name"] = operation
        attributes["gen_ai.provider.name"] = "tandem"
    if record.answer is not None:
        attributes |= _of_answer(record.answer)
    code = record.code(scope)
    if code is not None:
        attributes["error.type"] = code
    error = code or str(record.status) if record.status >= 500 else ""
    name = method if path is None else f"{method} {path}"
    return Span(name, record.began_ns, monotonic_ns(), attributes, error=error)


def _of_answer(answer: AnswerRecord) -> dict[str, Attribute]:
    usage = answer.meter.usage()
    attributes: dict[str, Attribute] = {
        "gen_ai.request.model": answer.model,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.response.finish_reasons": answer.finish_reasons,
        "tandem.stream": answer.stream,
        "tandem.workers": tuple(answer.served_by.workers),
    }
    if answer.answers > 1:
        attributes["gen_ai.request.choice.count"] = answer.answers
    return attributes
