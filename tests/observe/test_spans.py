"""Spans of requests, made of what a gateway or a worker remembers: nested, in order, and none of
what is not known."""

from random import Random

from msgspec import structs

from tandem.facts.slo import Slo
from tandem.facts.tracing import Span
from tandem.messages.operator import RequestEvent, RequestHistory
from tandem.observe.metrics import FAILED, RequestClock
from tandem.observe.spans import local_request_span, request_span

ARRIVAL = 1_000_000


def event(after_ns: int, kind: str, text: str = "", **figures: float | str) -> RequestEvent:
    named = tuple((name.replace("__", " "), value) for name, value in figures.items())
    return RequestEvent(after_ns, kind, text, named)


def routed(after_ns: int, prefill: str, decode: str) -> list[RequestEvent]:
    figures = {"ttft_s": 0.5, "tpot_s": 0.01}
    for phase, worker in (("prefill", prefill), ("decode", decode)):
        figures |= {f"{phase}__{worker}__score": 1.5, f"{phase}__{worker}__ttft_s": 0.5}
    return [
        event(after_ns, "routing", "", **figures),
        event(after_ns, "dispatch", "long", placement="direct", prefill=prefill, decode=decode),
    ]


def computed(after_ns: int, worker: str, tokens: int, cached: int) -> RequestEvent:
    figures = {"worker": worker, "tokens": tokens, "cached_tokens": cached, "wait_s": 0.25}
    return event(after_ns, "prefill", "", **figures)


def history(*events: RequestEvent, **changed) -> RequestHistory:
    made = RequestHistory(
        request_id="g/r",
        arrival_ns=ARRIVAL,
        tenant="acme",
        service_class="",
        session="",
        prompt_tokens=100,
        cached_tokens=16,
        max_tokens=9,
        emitted_tokens=5,
        ending="finished",
        reason="length",
        first_token_ns=60,
        last_token_ns=99,
        end_ns=100,
        events=events,
    )
    return structs.replace(made, **changed)


def told(span: Span) -> list[tuple[str, int, int]]:
    """Names and instants after the arrival of all below it."""
    return [(each.name, each.start_ns - ARRIVAL, each.end_ns - ARRIVAL) for each in span.children]


def assert_nested(span: Span) -> None:
    for child in span.children:
        assert span.start_ns <= child.start_ns <= child.end_ns <= span.end_ns, (span, child)
        assert_nested(child)


def named(span: Span, name: str) -> Span:
    (found,) = [child for child in span.children if child.name == name]
    return found


DISAGGREGATED = (
    event(5, "admission", "admitted"),
    *routed(10, "p0", "d0"),
    event(40, "transfer", "", source="p0", target="d0", tokens=100),
    computed(60, "p0", 100, 16),
    event(70, "decode", "", worker="d0"),
)


def test_prefill_transfer_and_decode_of_two_workers():
    span = request_span(history(*DISAGGREGATED), "tiny")
    assert (span.name, span.start_ns, span.end_ns) == ("llm_request", ARRIVAL, ARRIVAL + 100)
    assert told(span) == [
        ("queue", 0, 10),
        ("route", 10, 10),
        ("prefill", 10, 60),
        ("kv_transfer", 40, 70),
        ("decode", 70, 99),
    ]
    assert_nested(span)
    prefill = named(span, "prefill").attributes
    assert prefill == {
        "tandem.worker": "p0",
        "tandem.tokens": 100,
        "tandem.cached_tokens": 16,
        "tandem.wait_s": 0.25,
    }
    assert named(span, "decode").attributes["tandem.worker"] == "d0"
    assert named(span, "kv_transfer").attributes["tandem.source"] == "p0"
    assert [(each.name, each.at_ns) for each in span.events] == [("admission", ARRIVAL + 5)]
    assert span.attributes["gen_ai.request.model"] == "tiny"
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 16
    assert span.attributes["gen_ai.latency.time_in_queue"] == 10 / 1e9
    assert span.attributes["gen_ai.latency.time_to_first_token"] == 60 / 1e9
    assert span.attributes["gen_ai.latency.time_in_model_decode"] == 39 / 1e9
    assert span.attributes["gen_ai.response.finish_reasons"] == ("length",)


def test_a_route_has_its_candidates_in_parallel_lists():
    route = named(request_span(history(*DISAGGREGATED), "tiny"), "route").attributes
    assert route == {
        "tandem.placement": "direct",
        "tandem.prefill": "p0",
        "tandem.decode": "d0",
        "tandem.reason": "long",
        "tandem.predicted_ttft_s": 0.5,
        "tandem.predicted_tpot_s": 0.01,
        "tandem.prefill_candidates": ["p0"],
        "tandem.decode_candidates": ["d0"],
        "tandem.prefill_candidates.score": [1.5],
        "tandem.decode_candidates.score": [1.5],
        "tandem.prefill_candidates.ttft_s": [0.5],
        "tandem.decode_candidates.ttft_s": [0.5],
    }


def test_one_worker_decodes_what_it_computed():
    span = request_span(history(*routed(10, "w", "w"), computed(60, "w", 100, 0)), "tiny")
    assert told(span)[-2:] == [("prefill", 10, 60), ("decode", 60, 99)]
    assert named(span, "decode").attributes == {"tandem.worker": "w"}


def test_a_takeover_begins_again_and_says_what_was_computed_again():
    events = (
        *DISAGGREGATED,
        event(75, "takeover", "d0 is lost", lost_worker="d0", output_tokens=3),
        *routed(80, "p1", "d1"),
        event(85, "transfer", "", source="p1", target="d1", tokens=103),
        computed(90, "p1", 103, 48),
        event(95, "decode", "", worker="d1"),
    )
    span = request_span(history(*events), "tiny")
    assert_nested(span)
    assert told(span)[4:] == [
        ("decode", 70, 75),
        ("queue", 75, 80),
        ("failover", 75, 90),
        ("route", 80, 80),
        ("prefill", 80, 90),
        ("kv_transfer", 85, 95),
        ("decode", 95, 99),
    ]
    assert named(span, "failover").attributes == {
        "tandem.lost_worker": "d0",
        "tandem.output_tokens": 3,
        "tandem.reason": "d0 is lost",
        "tandem.recomputed_tokens": 55,
    }


def test_a_migration_decodes_on_until_the_next_worker_does():
    events = (
        *routed(10, "a", "a"),
        computed(30, "a", 100, 0),
        event(50, "transfer", "", source="a", target="b", tokens=110),
        event(70, "decode", "", worker="b"),
    )
    span = request_span(history(*events), "tiny")
    assert told(span)[2:] == [
        ("prefill", 10, 30),
        ("decode", 30, 70),
        ("kv_transfer", 50, 70),
        ("decode", 70, 99),
    ]


def test_who_was_refused_only_waited():
    refused = history(
        event(3, "admission", "too late", retry_after_s=2.0),
        ending="rejected",
        reason="too late",
        first_token_ns=-1,
        last_token_ns=-1,
        end_ns=4,
        emitted_tokens=0,
    )
    span = request_span(refused, "tiny")
    assert told(span) == [("queue", 0, 4)]
    assert span.attributes["tandem.reason"] == "too late"
    assert span.events[0].attributes == {"tandem.retry_after_s": 2.0, "text": "too late"}
    assert not span.error
    failed = request_span(structs.replace(refused, ending="failed"), "tiny")
    assert failed.error == "too late"


def test_whatever_a_history_has_lost_the_rest_is_nested():
    """Of drawn histories: without memory decisions are missing, and a request may end anywhere."""
    chance = Random(3)
    whole = (*DISAGGREGATED, event(75, "takeover", "lost"), *routed(80, "p1", "d1"))
    for _ in range(500):
        kept = [each for each in whole if chance.random() < 0.7]
        end_ns = chance.randrange(max([0, *(each.after_ns for each in kept)]), 120)
        first_ns = chance.choice([-1, chance.randrange(end_ns + 1)])
        last_ns = -1 if first_ns < 0 else chance.randrange(first_ns, end_ns + 1)
        drawn = {"first_token_ns": first_ns, "last_token_ns": last_ns, "end_ns": end_ns}
        assert_nested(request_span(history(*kept, **drawn), "tiny"))


def a_clock() -> RequestClock:
    return RequestClock(10, 100, 9, account="", service_class="", slo=Slo())


def test_one_worker_alone_knows_queue_prefill_and_decode():
    clock = a_clock()
    clock.scheduled_ns, clock.first_token_ns, clock.last_token_ns = 20, 50, 90
    clock.answer_tokens, clock.cached_tokens = 5, 32
    span = local_request_span("r", clock, "stop", 95, "tiny")
    assert [(each.name, each.start_ns, each.end_ns) for each in span.children] == [
        ("queue", 10, 20),
        ("prefill", 20, 50),
        ("decode", 50, 90),
    ]
    assert span.attributes["gen_ai.latency.time_to_first_token"] == 40 / 1e9
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 32
    waited = local_request_span("r", a_clock(), "abort", 95, "tiny")
    assert [(each.name, each.end_ns) for each in waited.children] == [("queue", 95)]
    assert not waited.error
    assert local_request_span("r", a_clock(), FAILED, 95, "tiny").error
