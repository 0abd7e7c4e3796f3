"""A receiver of OTLP over HTTP on a real socket: what a collector takes, in memory."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

Value = str | bool | int | float | list


@dataclass(frozen=True)
class ReceivedSpan:
    """Ids are hexadecimal; instants are Unix times in nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Value]
    events: list[str]
    error: str
    state: str
    resource: dict[str, Value]


@dataclass
class Receiver:
    """What has come so far. With a `status` other than 200 nothing is taken; while the `gate` is
    shut nobody is answered. `headers` are those of the last request."""

    url: str = ""
    status: int = 200
    spans: list[ReceivedSpan] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    asked: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    def named(self, name: str) -> list[ReceivedSpan]:
        return [span for span in self.spans if span.name == name]

    def below(self, parent: ReceivedSpan) -> list[ReceivedSpan]:
        """As they began."""
        found = [span for span in self.spans if span.parent_id == parent.span_id]
        return sorted(found, key=lambda span: (span.start_ns, span.end_ns))

    def assert_nested(self) -> None:
        """Every span lies within the one above it, if that is here, and is of its trace."""
        by_id = {span.span_id: span for span in self.spans}
        assert len(by_id) == len(self.spans)
        for span in self.spans:
            assert span.start_ns <= span.end_ns
            if above := by_id.get(span.parent_id):
                assert above.trace_id == span.trace_id
                assert above.start_ns <= span.start_ns
                assert span.end_ns <= above.end_ns, (span.name, above.name)


@contextmanager
def receiving() -> Iterator[Receiver]:
    """It listens while the block runs."""
    received = Receiver()
    received.gate.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/v1/traces"
            received.headers = dict(self.headers)
            received.asked += 1
            received.gate.wait()
            if received.status == 200:
                received.spans += spans_of(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(received.status)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    received.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield received
    finally:
        received.gate.set()
        server.shutdown()
        server.server_close()
        thread.join()


def spans_of(request: ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for of_resource in request.resource_spans:
        resource = named_values(of_resource.resource.attributes)
        for scope in of_resource.scope_spans:
            for span in scope.spans:
                yield _received(span, resource)


def named_values(pairs: Sequence[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _received(span: trace_pb2.Span, resource: dict[str, Value]) -> ReceivedSpan:
    failed = span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    return ReceivedSpan(
        *(span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.name, span.kind),
        *(span.start_time_unix_nano, span.end_time_unix_nano, named_values(span.attributes)),
        [event.name for event in span.events],
        span.status.message if failed else "",
        span.trace_state,
        resource,
    )


def _value(value: AnyValue) -> Value:
    if value.HasField("array_value"):
        return [_value(each) for each in value.array_value.values]
    found: Value = getattr(value, value.WhichOneof("value"))
    return found
