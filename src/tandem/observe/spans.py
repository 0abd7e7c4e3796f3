"""The spans of one request, made once it has ended: from its gateway's history of it, or from the
instants that the one worker of a process knows. Pure; what sends them is elsewhere.

Names are those of OpenTelemetry's conventions, and of vLLM where they mean the same; all others
begin with `tandem.`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tandem.facts.tracing import Attribute, Span, SpanEvent
from tandem.messages.operator import RequestEvent, RequestHistory
from tandem.observe.metrics import FAILED, NS_PER_S, RequestClock

# As vLLM names the span of a request.
REQUEST_SPAN = "llm_request"
# Decisions that begin or end a span; the others are events of the request's own.
_OF_SPANS = frozenset({"routing", "dispatch", "prefill", "transfer", "decode", "takeover"})
_NO_ATTRIBUTES: Mapping[str, Attribute] = {}


def request_span(history: RequestHistory, model: str) -> Span:
    """Of a request that has ended. Where its history has lost a decision, the spans that began with
    it are missing."""
    attempts = _attempts(history)
    arrival_ns = history.arrival_ns
    children = [span for each in attempts for span in _spans_of(each, history)]
    children += _failovers(attempts, arrival_ns)
    events = tuple(
        SpanEvent(event.kind, arrival_ns + event.after_ns, _named(event) | {"text": event.text})
        for event in history.events
        if event.kind not in _OF_SPANS
    )
    error = history.reason if history.ending == "failed" else ""
    end_ns = arrival_ns + history.end_ns
    attributes = _of_request(history, attempts[0], model)
    return Span(
        REQUEST_SPAN, arrival_ns, end_ns, attributes, events, tuple(_ordered(children)), error
    )


def local_request_span(
    request_id: str, clock: RequestClock, reason: str, end_ns: int, model: str
) -> Span:
    """Of a request that ended for this `reason` at the one worker of this process."""
    arrived_ns, scheduled_ns = clock.arrived_ns, clock.scheduled_ns
    first_ns, last_ns = clock.first_token_ns, clock.last_token_ns
    attributes = _usage(
        request_id, model, (clock.prompt_tokens, clock.cached_tokens), clock.answer_tokens
    )
    attributes["gen_ai.request.max_tokens"] = clock.max_tokens
    attributes["gen_ai.response.finish_reasons"] = (reason,)
    attributes["gen_ai.latency.e2e"] = (end_ns - arrived_ns) / NS_PER_S
    children = [Span("queue", arrived_ns, scheduled_ns or end_ns)]
    if scheduled_ns:
        children.append(Span("prefill", scheduled_ns, first_ns or end_ns))
        attributes["gen_ai.latency.time_in_queue"] = (scheduled_ns - arrived_ns) / NS_PER_S
    if first_ns:
        children.append(Span("decode", first_ns, last_ns))
        attributes["gen_ai.latency.time_to_first_token"] = (first_ns - arrived_ns) / NS_PER_S
        attributes["gen_ai.latency.time_in_model_prefill"] = (first_ns - scheduled_ns) / NS_PER_S
        attributes["gen_ai.latency.time_in_model_decode"] = (last_ns - first_ns) / NS_PER_S
    error = "its answer broke off" if reason == FAILED else ""
    return Span(REQUEST_SPAN, arrived_ns, end_ns, attributes, (), tuple(children), error)


@dataclass(frozen=True, slots=True)
class _Attempt:
    """What became of a request from its arrival, or the takeover before, up to the `takeover`
    behind, or its end (None). Instants are nanoseconds since the arrival."""

    start_ns: int
    end_ns: int
    events: Sequence[RequestEvent]
    takeover: RequestEvent | None

    def first(self, kind: str) -> RequestEvent | None:
        return next((event for event in self.events if event.kind == kind), None)

    def all(self, kind: str) -> list[RequestEvent]:
        return [event for event in self.events if event.kind == kind]


def _attempts(history: RequestHistory) -> list[_Attempt]:
    """In their order; one at least."""
    attempts: list[_Attempt] = []
    start_ns, events = 0, list[RequestEvent]()
    for event in history.events:
        if event.kind == "takeover":
            attempts.append(_Attempt(start_ns, event.after_ns, events, event))
            start_ns, events = event.after_ns, []
        elif event.kind in _OF_SPANS:
            events.append(event)
    return [*attempts, _Attempt(start_ns, history.end_ns, events, None)]


def _spans_of(attempt: _Attempt, history: RequestHistory) -> Iterator[Span]:
    """Queue, route, prefill, KV transfers and decodes of one attempt, as far as it came."""

    def span(
        name: str, start_ns: int, end_ns: int, attributes: Mapping[str, Attribute] = _NO_ATTRIBUTES
    ) -> Span:
        arrival_ns, end_ns = history.arrival_ns, max(start_ns, min(end_ns, attempt.end_ns))
        return Span(name, arrival_ns + start_ns, arrival_ns + end_ns, attributes)

    routing, dispatch = attempt.first("routing"), attempt.first("dispatch")
    if routing is None or dispatch is None:
        yield span("queue", attempt.start_ns, attempt.end_ns)
        return
    routed_ns = routing.after_ns
    yield span("queue", attempt.start_ns, routed_ns)
    yield span("route", routed_ns, routed_ns, _of_route(routing, dispatch))
    placed = dict(dispatch.figures)
    prefill, decode = placed.get("prefill", ""), placed.get("decode", "")
    computed = attempt.first("prefill")
    computed_ns = attempt.end_ns if computed is None else computed.after_ns
    figures = {} if computed is None else _named(computed)
    yield span("prefill", routed_ns, computed_ns, {"tandem.worker": prefill} | figures)
    decodes = attempt.all("decode")
    for transfer in attempt.all("transfer"):
        arrivals_ns = (each.after_ns for each in decodes if each.after_ns >= transfer.after_ns)
        arrived_ns = next(arrivals_ns, attempt.end_ns)
        yield span("kv_transfer", transfer.after_ns, arrived_ns, _named(transfer))
    begins = [(each.after_ns, _named(each)) for each in decodes]
    if computed is not None and prefill == decode:
        begins.insert(0, (computed_ns, {"tandem.worker": decode}))
    is_last = attempt.takeover is None and history.last_token_ns >= 0
    last_ns = history.last_token_ns if is_last else attempt.end_ns
    ends_ns = [*(begin_ns for begin_ns, _ in begins[1:]), last_ns]
    for (begin_ns, attributes), end_ns in zip(begins, ends_ns, strict=False):
        yield span("decode", begin_ns, end_ns, attributes)


def _failovers(attempts: Sequence[_Attempt], arrival_ns: int) -> Iterator[Span]:
    """From each takeover on until all that was known is computed again."""
    for lost, next_one in pairwise(attempts):
        takeover, computed = lost.takeover, next_one.first("prefill")
        assert takeover is not None
        attributes = _named(takeover) | {"tandem.reason": takeover.text}
        end_ns = next_one.end_ns
        if computed is not None:
            end_ns, again = computed.after_ns, _named(computed)
            tokens, cached = again.get("tandem.tokens"), again.get("tandem.cached_tokens")
            if isinstance(tokens, int) and isinstance(cached, int):
                attributes["tandem.recomputed_tokens"] = tokens - cached
        yield Span("failover", arrival_ns + lost.end_ns, arrival_ns + end_ns, attributes)


def _ordered(spans: Sequence[Span]) -> list[Span]:
    """As they began."""
    return sorted(spans, key=lambda span: (span.start_ns, span.end_ns))


def _of_route(routing: RequestEvent, dispatch: RequestEvent) -> dict[str, Attribute]:
    """Where it goes, why, and what was predicted: lists of one phase run parallel to its
    candidates."""
    attributes = _named(dispatch)
    attributes["tandem.reason"] = dispatch.text
    candidates: dict[str, list[str]] = {}
    figures: dict[str, list[float]] = {}
    for name, value in routing.figures:
        # `ttft_s` of the chosen pair, `prefill WORKER ttft_s` of a candidate.
        phase, _, rest = name.partition(" ")
        worker, _, figure = rest.rpartition(" ")
        if not worker:
            attributes[f"tandem.predicted_{name}"] = value
        elif not isinstance(value, str):
            if figure == "score":
                candidates.setdefault(f"tandem.{phase}_candidates", []).append(worker)
            figures.setdefault(f"tandem.{phase}_candidates.{figure}", []).append(value)
    return attributes | candidates | figures


def _of_request(history: RequestHistory, first: _Attempt, model: str) -> dict[str, Attribute]:
    tokens = history.prompt_tokens, history.cached_tokens
    attributes = _usage(history.request_id, model, tokens, history.emitted_tokens)
    attributes["gen_ai.request.max_tokens"] = history.max_tokens
    attributes["gen_ai.latency.e2e"] = history.end_ns / NS_PER_S
    attributes["tandem.ending"] = history.ending
    if history.ending == "finished":
        attributes["gen_ai.response.finish_reasons"] = (history.reason,)
    elif history.reason:
        attributes["tandem.reason"] = history.reason
    for name, value in (
        ("gen_ai.conversation.id", history.session),
        ("tandem.tenant", history.tenant),
        ("tandem.service_class", history.service_class),
    ):
        if value:
            attributes[name] = value
    routing, computed = first.first("routing"), first.first("prefill")
    if routing is not None:
        attributes["gen_ai.latency.time_in_queue"] = routing.after_ns / NS_PER_S
        if computed is not None:
            prefill_ns = computed.after_ns - routing.after_ns
            attributes["gen_ai.latency.time_in_model_prefill"] = prefill_ns / NS_PER_S
    if history.first_token_ns >= 0:
        decode_ns = history.last_token_ns - history.first_token_ns
        attributes["gen_ai.latency.time_to_first_token"] = history.first_token_ns / NS_PER_S
        attributes["gen_ai.latency.time_in_model_decode"] = decode_ns / NS_PER_S
    return attributes


def _usage(
    request_id: str, model: str, prompt_tokens: tuple[int, int], output_tokens: int
) -> dict[str, Attribute]:
    """`prompt_tokens` are all, and those that were found cached."""
    return {
        "gen_ai.request.id": request_id,
        "gen_ai.request.model": model,
        "gen_ai.usage.input_tokens": prompt_tokens[0],
        "gen_ai.usage.cache_read.input_tokens": prompt_tokens[1],
        "gen_ai.usage.output_tokens": output_tokens,
    }


def _named(event: RequestEvent) -> dict[str, Attribute]:
    """Its figures under our names; counts are whole numbers."""
    return {
        f"tandem.{name}": int(value) if not isinstance(value, str) and _counts(name) else value
        for name, value in event.figures
    }


def _counts(name: str) -> bool:
    return name.endswith("tokens")
