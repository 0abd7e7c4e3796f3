"""The instants of each request, and the latency histograms made of them."""

from dataclasses import dataclass

from tandem.facts.request import FinishReason
from tandem.observe.registry import TOKENS, ModelRegistry

NS_PER_S = 1e9


@dataclass(slots=True)
class RequestClock:
    """Instants of one request, in nanoseconds; 0 is "not yet"."""

    arrived_ns: int
    prompt_tokens: int
    scheduled_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    answer_tokens: int = 0


class RequestTimes:
    """Latencies by phase. The caller says when things happened."""

    def __init__(self, registry: ModelRegistry) -> None:
        histogram = registry.histogram
        self._queue = histogram("request_queue_time_seconds", "Arrival to first step")
        self._ttft = histogram("time_to_first_token_seconds", "Arrival to first token")
        self._prefill = histogram("request_prefill_time_seconds", "First step to first token")
        self._gap = histogram("inter_token_latency_seconds", "Gap between two tokens")
        self._tpot = histogram(
            "request_time_per_output_token_seconds", "Mean gap between the tokens of a request"
        )
        self._decode = histogram("request_decode_time_seconds", "First to last token")
        self._total = histogram("e2e_request_latency_seconds", "Arrival to last token")
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens a request", TOKENS)
        self._answer = histogram("request_generation_tokens", "Answer tokens a request", TOKENS)
        reasons = [reason.value for reason in FinishReason]
        self._finished = registry.counters(
            "request_success", "Finished requests by reason", "finished_reason", reasons
        )

    def scheduled(self, clock: RequestClock, now_ns: int) -> None:
        """The request takes part in its first step."""
        clock.scheduled_ns = now_ns
        self._queue.observe((now_ns - clock.arrived_ns) / NS_PER_S)
        self._prompt.observe(clock.prompt_tokens)

    def token(self, clock: RequestClock, now_ns: int) -> None:
        if clock.answer_tokens:
            self._gap.observe((now_ns - clock.last_token_ns) / NS_PER_S)
        else:
            clock.first_token_ns = now_ns
            self._ttft.observe((now_ns - clock.arrived_ns) / NS_PER_S)
            self._prefill.observe((now_ns - clock.scheduled_ns) / NS_PER_S)
        clock.answer_tokens += 1
        clock.last_token_ns = now_ns

    def finished(self, clock: RequestClock, reason: FinishReason, now_ns: int) -> None:
        """The request is over. One that never got a token counts, but has no latency."""
        self._finished[reason.value].inc()
        if not clock.answer_tokens:
            return
        self._answer.observe(clock.answer_tokens)
        self._total.observe((now_ns - clock.arrived_ns) / NS_PER_S)
        decode_s = (clock.last_token_ns - clock.first_token_ns) / NS_PER_S
        self._decode.observe(decode_s)
        if clock.answer_tokens > 1:
            self._tpot.observe(decode_s / (clock.answer_tokens - 1))
