"""Traces by OpenTelemetry's SDK, the one module that knows it. In a server its sampler decides
which calls are traced (`OtlpTracer`). Spans are sent in batches, by OTLP over HTTP, from a process
beside that, which runs this module as well. The SDK's variables (`OTEL_…`) count in both.

Spans come to the SDK once they have ended, and are made as its exporters take them
(`ReadableSpan`); its own `Tracer` would begin each anew.
"""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, ParentBasedTraceIdRatio
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    NoOpTracer,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
)

from tandem import __version__
from tandem.config.environment import queued_spans
from tandem.config.options import LogFormat, LogLevel
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.tracing import Span, TraceContext
from tandem.kv.threads import SupervisedThread, no_harm
from tandem.live.clock import unix_offset_ns
from tandem.live.gateway.history import unpacked
from tandem.live.log_format import begin_log
from tandem.live.span_pipe import (
    COUNT_BYTES,
    LENGTH_BYTES,
    Handed,
    HandedHistory,
    HandedSpan,
    SpanPipe,
)
from tandem.observe.spans import request_span

# Under its own name, which is another one while this is what was started.
logger = logging.getLogger("tandem.live.otlp")

# What waits may take so long at the end.
LINGER_S = 2.0
_SCOPE = InstrumentationScope("tandem", __version__)
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class SenderSetup(msgspec.Struct, frozen=True):
    """What the process that sends spans is told: where they go, and of which `process` they are."""

    endpoint: str
    process: str
    log_level: LogLevel = "warning"
    log_format: LogFormat = "text"


class CallSampler:
    """Begins spans of calls. Of those whose clients do not say, `sample_ratio` are traced; 1 leaves
    it to the SDK's variables, which trace all unless they are set."""

    def __init__(self, sample_ratio: float = 1.0) -> None:
        sampler = None if sample_ratio == 1 else ParentBasedTraceIdRatio(sample_ratio)
        provider = TracerProvider(sampler, shutdown_on_exit=False)
        is_disabled = isinstance(provider.get_tracer("tandem"), NoOpTracer)
        self._sampler = ALWAYS_OFF if is_disabled else provider.sampler
        self._ids = provider.id_generator

    def begin_call(self, headers: Mapping[str, str]) -> TraceContext:
        """See `CallTracer`."""
        context = extract(headers)
        parent = get_current_span(context).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self._ids.generate_trace_id()
        sampled = self._sampler.should_sample(context, trace_id, "call", SpanKind.SERVER)
        state = sampled.trace_state
        return TraceContext(
            trace_id=f"{trace_id:032x}",
            span_id=f"{self._ids.generate_span_id():016x}",
            sampled=sampled.decision is Decision.RECORD_AND_SAMPLE,
            parent_span_id=f"{parent.span_id:016x}" if parent.is_valid else "",
            trace_state=state.to_header() if state else "",
            unix_offset_ns=unix_offset_ns(),
        )


class OtlpTracer:
    """The `Tracer` of a server. Use it from one thread. Raises `InvalidConfiguration` for variables
    that cannot be."""

    def __init__(self, setup: SenderSetup, sample_ratio: float = 1.0) -> None:
        queued_spans()
        self.begin_call = CallSampler(sample_ratio).begin_call
        told = msgspec.json.encode(setup).decode()
        self._pipe = SpanPipe((sys.executable, "-m", "tandem.live.otlp", told))

    @property
    def lost_spans(self) -> int:
        """See `CallTracer`."""
        return self._pipe.lost_spans()

    def record_call(self, span: Span, call: TraceContext) -> None:
        """See `CallTracer`."""
        self._pipe.hand_over(HandedSpan(span, call, is_below=False))

    def record_below(self, span: Span, parent: TraceContext) -> None:
        """See `SpanSink`."""
        self._pipe.hand_over(HandedSpan(span, parent, is_below=True))

    def record_history(self, history: bytes, model: str, parent: TraceContext) -> None:
        """See `SpanSink`."""
        self._pipe.hand_over(HandedHistory(history, model, parent))

    def stop_sending(self) -> None:
        """See `Tracer`."""
        self._pipe.close_pipe()


class CountingExporter(SpanExporter):
    """Another exporter, with how many spans it was given, and how many of them were lost (`told`
    after each batch); its own log says why."""

    def __init__(self, exporter: SpanExporter, told: Callable[[], None]) -> None:
        self._exporter, self._told = exporter, told
        self.taken_spans = 0
        self.lost_spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken_spans += len(spans)
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self.lost_spans += len(spans)
        self._told()
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class SpanSender:
    """Sends spans in batches, in a thread of the SDK's. `told` gets how many were lost so far. Use
    it from one thread. Raises `InvalidConfiguration` for variables that cannot be."""

    def __init__(self, setup: SenderSetup, told: Callable[[int], None] = lambda _: None) -> None:
        own = {"service.name": "tandem", "service.version": __version__}
        resource = Resource.create(own | {"service.instance.id": setup.process})
        # What its operator says of it in the environment counts more.
        self._resource = resource.merge(OTELResourceDetector().detect())
        self._ids, self._told = RandomIdGenerator(), told
        self._queued_spans = queued_spans()
        self._exporter = CountingExporter(OTLPSpanExporter(setup.endpoint), self._tell)
        try:
            self._processor = BatchSpanProcessor(self._exporter, max_queue_size=self._queued_spans)
        except ValueError as error:
            raise InvalidConfiguration(f"the variables OTEL_BSP_… do not fit: {error}") from error
        self._handed_spans = 0
        self._refused_spans = 0

    @property
    def lost_spans(self) -> int:
        """That it refused, or the receiver did not take."""
        return self._refused_spans + self._exporter.lost_spans

    def send(self, handed: Handed) -> None:
        """With the next batch, unless too many wait."""
        call = handed.call
        if isinstance(handed, HandedHistory):
            span = request_span(unpacked(handed.history), handed.model)
            handed = HandedSpan(span, call, is_below=True)
        if handed.is_below:
            above = _context(call, int(call.span_id, 16))
            self._send_below(handed.span, above, call.unix_offset_ns)
            return
        parent = None
        if call.parent_span_id:
            parent = _context(call, int(call.parent_span_id, 16), is_remote=True)
        own = _context(call, int(call.span_id, 16))
        self._send(handed.span, own, parent, SpanKind.SERVER, call.unix_offset_ns)

    def stop_sending(self) -> None:
        """Send what waits, for a moment at most."""
        # It would wait for half a minute, and for a receiver that does not answer.
        stopping = SupervisedThread("last spans", self._processor.shutdown, no_harm)
        stopping.start()
        stopping.join(LINGER_S)
        if stopping.alive:
            self._exporter.shutdown()

    def _send_below(self, span: Span, above: SpanContext, offset_ns: int) -> None:
        own = SpanContext(
            *(above.trace_id, self._ids.generate_span_id(), False, _SAMPLED, above.trace_state)
        )
        for child in span.children:
            self._send_below(child, own, offset_ns)
        self._send(span, own, above, SpanKind.INTERNAL, offset_ns)

    def _send(
        self,
        span: Span,
        own: SpanContext,
        above: SpanContext | None,
        kind: SpanKind,
        offset_ns: int,
    ) -> None:
        """A full queue of the SDK would lose its oldest without a word."""
        if self._handed_spans - self._exporter.taken_spans >= self._queued_spans:
            self._refused_spans += 1
            return
        self._handed_spans += 1
        self._processor.on_end(
            ReadableSpan(
                span.name,
                own,
                above,
                self._resource,
                span.attributes,
                [Event(e.name, e.attributes, e.at_ns + offset_ns) for e in span.events],
                kind=kind,
                status=Status(StatusCode.ERROR, span.error) if span.error else _UNSET,
                start_time=span.start_ns + offset_ns,
                end_time=span.end_ns + offset_ns,
                instrumentation_scope=_SCOPE,
            )
        )

    def _tell(self) -> None:
        self._told(self.lost_spans)


def _context(call: TraceContext, span_id: int, *, is_remote: bool = False) -> SpanContext:
    state = TraceState.from_header([call.trace_state]) if call.trace_state else None
    return SpanContext(int(call.trace_id, 16), span_id, is_remote, _SAMPLED, state)


def send_spans(setup: SenderSetup, pipe: BinaryIO, told: Callable[[int], None]) -> None:
    """Send what comes through the pipe, up to its end. Raises `InvalidConfiguration`."""
    sender = SpanSender(setup, told)
    decode: Callable[[bytes], Handed] = msgspec.msgpack.Decoder(Handed).decode
    try:
        while length := pipe.read(LENGTH_BYTES):
            sender.send(decode(pipe.read(int.from_bytes(length))))
    finally:
        sender.stop_sending()


def main() -> None:
    """What a `SpanPipe` starts as `python -m`; the last word is the set-up as JSON."""
    setup = msgspec.json.decode(sys.argv[-1], type=SenderSetup)
    begin_log(setup.log_level, setup.log_format, f"{setup.process}-traces")
    output = sys.stdout.fileno()
    os.set_blocking(output, False)

    def told(lost_spans: int) -> None:
        # A later number counts as well as this one.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(output, lost_spans.to_bytes(COUNT_BYTES))

    try:
        send_spans(setup, sys.stdin.buffer, told)
    except InvalidConfiguration as error:
        logger.error("no traces are sent: %s", error)
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
