"""Histories of requests as a person sees them (`facts.overview`)."""

from tandem.facts.overview import RequestLine, RequestStory, StoryEvent
from tandem.messages.operator import RequestHistory

NS_PER_S = 1e9


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


def request_story(history: RequestHistory, now_ns: int) -> RequestStory:
    """With everything that was decided about it."""
    events = (
        StoryEvent(each.after_ns / NS_PER_S, each.kind, each.text, dict(each.figures))
        for each in history.events
    )
    return RequestStory(request_line(history, now_ns), history.max_tokens, tuple(events))


def _seconds(after_ns: int) -> float | None:
    return None if after_ns < 0 else after_ns / NS_PER_S
