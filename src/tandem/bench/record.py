"""What happened to one request, as its client saw it. Instants are seconds from the run's start."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """Times and counts of one request; `error` is empty unless it failed.

    `due_s` is when the workload wanted it sent, `sent_s` when it was; latencies count from
    `sent_s`. `gaps_s` are the times between events that carry tokens. `cached_tokens` is None where
    the server does not report its prefix cache.
    """

    index: int
    due_s: float
    sent_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    finish_reason: str | None = None
    error: str = ""

    @property
    def succeeded(self) -> bool:
        return not self.error

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.sent_s

    @property
    def latency_s(self) -> float:
        """From sending to the last event."""
        return self.ended_s - self.sent_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None for answers of one token."""
        if self.first_token_s is None or self.output_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)
