"""Histories of requests as a person sees them (`facts.overview`)."""

from collections.abc import Iterator

from tandem.facts.overview import DetailEvent, DetailSpan, RequestDetail, RequestLine
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.gateway.history import RequestHistories
from tandem.messages.operator import RequestHistory
from tandem.observe.spans import request_span


def latest_requests(
    histories: RequestHistories, account: str | None, most: int
) -> list[RequestLine]:
    """As the port `Observed` has it."""
    at_ns = now_ns()
    return [request_line(each, at_ns) for each in histories.latest(account, most, at_ns)]


def request_details(
    histories: RequestHistories, account: str | None, name: str
) -> list[RequestDetail]:
    """As the port `Observed` has it."""
    at_ns = now_ns()
    found = histories.find(name, at_ns)
    return [request_detail(each, at_ns) for each in found if account in (None, each.tenant)]


def request_line(history: RequestHistory, now_ns: int) -> RequestLine:
    """A line of a list."""
    decoded = history.emitted_tokens - 1
    decode_ns = history.last_token_ns - history.first_token_ns
    return RequestLine(
        request_id=history.request_id,
        ago_s=(now_ns - history.arrival_ns) / NS_PER_S,
        service_class=history.service_class,
        tenant=history.tenant,
        session=history.session,
        prompt_tokens=history.prompt_tokens,
        cached_tokens=history.cached_tokens,
        output_tokens=history.emitted_tokens,
        ttft_s=_seconds(history.first_token_ns),
        tpot_s=decode_ns / decoded / NS_PER_S if decoded > 0 else None,
        total_s=_seconds(history.end_ns),
        ending=history.ending,
        reason=history.reason,
    )


def request_detail(history: RequestHistory, now_ns: int) -> RequestDetail:
    """With everything that was decided about it."""
    events = (
        DetailEvent(each.after_ns / NS_PER_S, each.kind, each.text, dict(each.figures))
        for each in history.events
    )
    spans = _spans(history) if history.ending else ()
    line = request_line(history, now_ns)
    return RequestDetail(line, history.max_tokens, tuple(events), tuple(spans))


def _spans(history: RequestHistory) -> Iterator[DetailSpan]:
    """Those of its trace."""
    for span in request_span(history, "").children:
        named = span.attributes
        worker = named.get("tandem.worker") or named.get("tandem.target") or ""
        from_s = (span.start_ns - history.arrival_ns) / NS_PER_S
        to_s = (span.end_ns - history.arrival_ns) / NS_PER_S
        # A decision takes no time.
        if span.name != "route":
            yield DetailSpan(span.name.replace("_", " "), str(worker), from_s, to_s)


def _seconds(after_ns: int) -> float | None:
    return None if after_ns < 0 else after_ns / NS_PER_S
