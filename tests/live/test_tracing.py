"""Traces from the front door to a receiver of OTLP, all parts real: the SDK, the sockets, a gateway
and its toy workers."""

import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.api.tracing import CallTracer
from tandem.config.options import ServeOptions
from tandem.config.tracing import check_tracing
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.facts.serving import Caller, Generator
from tandem.facts.tracing import Span, TraceContext
from tandem.live import otlp, span_pipe
from tandem.live.gateway.history import unpacked
from tandem.live.otlp import CallSampler, OtlpTracer, SenderSetup, SpanSender
from tandem.live.span_pipe import HandedSpan, SpanPipe
from tandem.live.tracing import tracer
from tandem.observe.spans import request_span
from tandem.text.model import TextModel
from tests.cluster.ledger_engine import LedgerEngine
from tests.live.otlp_receiver import ReceivedSpan, Receiver, receiving
from tests.live.toy_cluster import (
    GatedLedger,
    ToyWorker,
    make_gateway,
    make_worker,
    read,
    request,
    serving,
    until,
    working,
)
from tests.text.tiny_checkpoint import write_checkpoint
from tests.waiting import until as wait_until

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=7"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
ASKED = {"prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9], "max_tokens": 6, "ignore_eos": True}
EXPLAIN_BYTES = 1 << 20
SERVER, INTERNAL = 2, 1


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return TextModel.load(write_checkpoint(tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture
def soon(monkeypatch):
    """Nobody waits five seconds for a batch."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as received:
        yield received


@contextmanager
def tracing(url: str) -> Iterator[OtlpTracer]:
    """By a process of its own."""
    made = tracer(ServeOptions(otlp_traces_endpoint=url), "g0")
    try:
        yield made
    finally:
        made.stop_sending()


@contextmanager
def sending(receiver: Receiver) -> Iterator[SpanSender]:
    """In this process."""
    sender = SpanSender(SenderSetup(f"{receiver.url}/v1/traces", "g0"))
    try:
        yield sender
    finally:
        sender.stop_sending()


def handed(span: Span, *, is_below: bool = False, **headers: str) -> HandedSpan:
    return HandedSpan(span, CallSampler().begin_call(headers), is_below)


class Spans:
    """A tracer that keeps what it gets."""

    lost_spans = 0

    def __init__(self, ratio: float = 1.0) -> None:
        self.begin_call = CallSampler(ratio).begin_call
        self.calls: list[tuple[Span, TraceContext]] = []
        self.requests: list[tuple[Span, TraceContext]] = []

    def record_call(self, span: Span, call: TraceContext) -> None:
        self.calls.append((span, call))

    def record_below(self, span: Span, parent: TraceContext) -> None:
        self.requests.append((span, parent))

    def record_history(self, history: bytes, model: str, parent: TraceContext) -> None:
        self.record_below(request_span(unpacked(history), model), parent)


class Lines(list):
    """An access log in memory."""

    lost_lines = 0

    def write(self, line: bytes) -> None:
        self.append(json.loads(line))


@asynccontextmanager
async def front(generator: Generator, text: TextModel, tracer: CallTracer, lines: Lines):
    app = build_app(generator, text, ApiConfig(), lines, tracer=tracer)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http


async def call_of(receiver: Receiver) -> ReceivedSpan:
    await until(lambda: receiver.named("POST /v1/completions"))
    (call,) = receiver.named("POST /v1/completions")
    return call


@pytest.mark.usefixtures("soon")
async def test_a_call_is_one_trace_over_all_its_workers(receiver, text):
    ledgers: dict[str, LedgerEngine] = {}
    workers = ToyWorker("p0", Role.PREFILL, ledgers), ToyWorker("d0", Role.DECODE, ledgers)
    lines = Lines()
    with tracing(receiver.url) as traces:
        gateway = make_gateway(spans=traces, explain_bytes=EXPLAIN_BYTES)
        async with (
            serving(gateway) as endpoint,
            working(*workers, at=endpoint),
            front(gateway, text, traces, lines) as http,
        ):
            await until(lambda: gateway.ready)
            answer = await http.post("/v1/completions", json=ASKED | {"n": 2}, headers=SAMPLED)
            assert answer.status_code == 200, answer.text
            call = await call_of(receiver)
    assert (call.trace_id, call.parent_id, call.state) == (TRACE, PARENT, "vendor=7")
    assert call.kind == SERVER
    assert lines[0]["trace_id"] == TRACE
    assert call.attributes["tandem.call_id"] == lines[0]["request_id"]
    assert call.attributes["http.response.status_code"] == 200
    assert call.attributes["http.route"] == "/v1/completions"
    assert call.attributes["gen_ai.operation.name"] == "text_completion"
    assert call.attributes["gen_ai.usage.input_tokens"] == 9
    assert call.attributes["gen_ai.usage.output_tokens"] == 12
    assert call.attributes["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert set(call.attributes["tandem.workers"]) == {"p0", "d0"}
    assert call.resource["service.name"] == "tandem"
    assert call.resource["service.instance.id"] == "g0"
    receiver.assert_nested()
    choices = receiver.below(call)
    assert [choice.name for choice in choices] == ["llm_request"] * 2
    for choice in choices:
        parts = {part.name: part for part in receiver.below(choice)}
        assert list(parts) == ["queue", "route", "prefill", "kv_transfer", "decode"]
        assert parts["prefill"].attributes["tandem.worker"] == "p0"
        assert parts["prefill"].attributes["tandem.wait_s"] >= 0
        assert parts["decode"].attributes["tandem.worker"] == "d0"
        assert parts["kv_transfer"].attributes["tandem.source"] == "p0"
        assert parts["kv_transfer"].end_ns <= parts["decode"].start_ns
        assert parts["route"].attributes["tandem.prefill_candidates"] == ["p0"]
        assert parts["route"].attributes["tandem.predicted_ttft_s"] > 0
        assert parts["route"].kind == INTERNAL
        assert "admission" in choice.events
        assert choice.attributes["gen_ai.usage.output_tokens"] == 6
    assert {span.trace_id for span in receiver.spans} == {TRACE}


async def test_a_worker_that_dies_is_a_failover():
    first, second = ToyWorker("w0"), ToyWorker("w1")
    spans = Spans()
    gateway = make_gateway(spans=spans, explain_bytes=EXPLAIN_BYTES)
    async with serving(gateway) as endpoint, working(first, second, at=endpoint):
        await until(lambda: len(list(gateway.machine.members)) == 2)
        trace = spans.begin_call({})
        stream = gateway.generate(request("a", max_tokens=150), Caller(trace=trace))
        drawn = len((await anext(stream)).tokens)
        holder = first if not first.machine.idle else second
        holder.engine.gate.clear()
        await holder.stop()
        async for output in stream:
            drawn += len(output.tokens)
        assert drawn == 150
        await read(gateway, request("b"))
    ((whole, parent),) = spans.requests
    assert parent == trace
    lost = holder.registration.worker
    taken = (second if holder is first else first).registration.worker
    (failover,) = [part for part in whole.children if part.name == "failover"]
    assert failover.attributes["tandem.lost_worker"] == lost
    assert failover.attributes["tandem.recomputed_tokens"] > 0
    for name in ("prefill", "decode"):
        parts = [part for part in whole.children if part.name == name]
        assert [part.attributes["tandem.worker"] for part in parts] == [lost, taken]


@asynccontextmanager
async def one_worker(text: TextModel, spans: Spans, lines: Lines):
    """The front door over a worker in this process."""
    engine = GatedLedger()
    engine.gate.set()
    worker = make_worker(engine, spans=spans)
    await worker.start()
    try:
        async with front(worker, text, spans, lines) as http:
            yield http
    finally:
        await worker.stop()
    assert not worker._traced


async def test_one_worker_in_this_process_has_its_phases(text):
    spans = Spans()
    async with one_worker(text, spans, Lines()) as http:
        answer = await http.post("/v1/completions", json=ASKED)
        assert answer.status_code == 200, answer.text
    ((call, context),) = spans.calls
    ((whole, parent),) = spans.requests
    assert parent == context
    assert not context.parent_span_id
    assert [part.name for part in whole.children] == ["queue", "prefill", "decode"]
    assert whole.attributes["gen_ai.usage.output_tokens"] == 6
    assert call.start_ns <= whole.start_ns <= whole.end_ns <= call.end_ns


@pytest.mark.parametrize(
    ("headers", "ratio", "sampled"),
    [({}, 1.0, True), ({}, 0.0, False), (SAMPLED, 0.0, True), (UNSAMPLED, 1.0, False)],
)
async def test_a_client_decides_whether_its_calls_are_traced(headers, ratio, sampled, text):
    """Where it does not say, the ratio does. In the log every call has its trace."""
    spans, lines = Spans(ratio), Lines()
    async with one_worker(text, spans, lines) as http:
        await http.post("/v1/completions", json=ASKED, headers=headers)
        await http.get("/health")
    assert len(spans.calls) == len(spans.requests) == sampled
    (line,) = lines
    assert len(line["trace_id"]) == 32
    assert (line["trace_id"] == TRACE) == bool(headers)


async def test_a_refused_call_is_a_span_with_its_error(text):
    spans = Spans()
    async with front(make_worker(GatedLedger(), spans=spans), text, spans, Lines()) as http:
        # It has not started.
        answer = await http.post("/v1/completions", json=ASKED)
        assert answer.status_code == 503
        missing = await http.post("/v1/nothing", json={})
        assert missing.status_code == 404
    refused, missed = [span for span, _ in spans.calls]
    assert (refused.name, refused.error) == ("POST /v1/completions", "not_ready")
    assert refused.attributes["error.type"] == "not_ready"
    assert (missed.name, missed.error) == ("POST", "")
    assert missed.attributes["http.response.status_code"] == 404


def test_the_variables_of_the_sdk_count(receiver, monkeypatch):
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=lab")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue")
    with sending(receiver) as sender:
        sender.send(handed(Span("one", 1, 2)))
    (span,) = receiver.spans
    assert span.resource["service.name"] == "mine"
    assert span.resource["deployment.environment"] == "lab"
    assert receiver.headers["x-team"] == "blue"
    assert CallSampler().begin_call({}).sampled
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    assert not CallSampler().begin_call({}).sampled
    monkeypatch.delenv("OTEL_TRACES_SAMPLER")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not CallSampler().begin_call(SAMPLED).sampled


@pytest.mark.parametrize("queued", ["none", "0", "3"])
def test_variables_that_cannot_be_are_one_line(queued, receiver, monkeypatch):
    """A batch is 512 spans."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", queued)
    with pytest.raises(InvalidConfiguration, match="OTEL_BSP_") as told:
        SpanSender(SenderSetup(receiver.url, "g0"))
    assert "\n" not in str(told.value)


@pytest.mark.usefixtures("soon")
def test_spans_that_cannot_be_sent_are_counted(receiver, monkeypatch):
    """Those that a receiver refuses, and those that find the queue full."""
    receiver.status = 400
    with sending(receiver) as sender:
        sender.send(handed(Span("a", 1, 4, children=(Span("b", 2, 3),)), is_below=True))
        wait_until(lambda: sender.lost_spans == 2)
    receiver.status, receiver.asked = 200, 0
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    receiver.gate.clear()
    with sending(receiver) as sender:
        for number in range(4):
            sender.send(handed(Span(f"first {number}", 1, 2)))
        wait_until(lambda: receiver.asked)
        for number in range(7):
            sender.send(handed(Span(f"second {number}", 1, 2)))
        assert sender.lost_spans == 3
        receiver.gate.set()
    assert [span.name for span in receiver.spans][4:] == [f"second {each}" for each in range(4)]


def test_a_receiver_that_does_not_answer_holds_nobody_up(receiver, monkeypatch):
    monkeypatch.setattr(otlp, "LINGER_S", 0.05)
    receiver.gate.clear()
    with sending(receiver) as sender:
        sender.send(handed(Span("one", 1, 2)))
    assert not receiver.spans


@pytest.mark.usefixtures("soon")
async def test_spans_that_are_lost_elsewhere_are_a_metric(receiver, text):
    """By the process that sends them, by one that has ended, and by a queue that is full."""
    receiver.status = 400
    with tracing(receiver.url) as traces:
        async with front(make_worker(GatedLedger()), text, traces, Lines()) as http:
            traces.record_call(Span("one", 1, 2), traces.begin_call({}))
            await until(lambda: traces.lost_spans == 1)
            page = (await http.get("/metrics")).text
    assert 'tandem:trace_lost_spans_total{model_name="toy"} 1.0' in page


def test_what_the_pipe_cannot_take_is_counted(monkeypatch, caplog):
    monkeypatch.setattr(span_pipe, "FLUSH_S", 0.005)
    whole = handed(Span("a", 1, 4, children=(Span("b", 2, 3),)))
    gone = SpanPipe((sys.executable, "-c", ""))
    gone._process.wait()
    gone.hand_over(whole)
    wait_until(lambda: gone.lost_spans() == 2)
    gone.hand_over(whole)
    assert gone.lost_spans() == 4
    gone.close_pipe()
    assert caplog.text.count("the process that sends traces has ended") == 1
    full = SpanPipe((sys.executable, "-c", "import sys; sys.stdin.read()"), queued_bytes=10)
    full.hand_over(whole)
    full.close_pipe()
    assert full.lost_spans() == 2


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://host:4317", "http://", "http://h:x"])
def test_an_endpoint_that_is_none_is_one_line(url):
    with pytest.raises(InvalidConfiguration) as told:
        check_tracing(ServeOptions(otlp_traces_endpoint=url))
    assert str(told.value).startswith("otlp-traces-endpoint: expected a URL")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http"])
def test_packages_that_are_missing_are_one_line(monkeypatch, missing):
    """Nothing is needed where nobody asks for it."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == missing else found(name)
    )
    assert tracer(ServeOptions(), "g0") is None
    with pytest.raises(InvalidConfiguration, match=r"pip install 'tandem\[otel\]'$") as told:
        check_tracing(ServeOptions(otlp_traces_endpoint="http://localhost:4318"))
    assert "\n" not in str(told.value)


def test_a_gateway_that_remembers_nothing_has_no_traces():
    options = ServeOptions(otlp_traces_endpoint="http://localhost:4318")
    with pytest.raises(InvalidConfiguration, match="give explain_memory more than 0"):
        check_tracing(options, 0)
    check_tracing(options, 1024)
