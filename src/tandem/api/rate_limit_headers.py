"""Rate limit headers: OpenAI's `x-ratelimit-*`, on the answers to calls of accounts with limits."""

from collections.abc import Iterator
from math import ceil

from tandem.facts.rate_limits import Allowance, Budget

NAMES = tuple(
    f"x-ratelimit-{figure}-{what}"
    for what in ("requests", "tokens")
    for figure in ("limit", "remaining", "reset")
)


def rate_limit_headers(allowance: Allowance) -> dict[str, str]:
    """What is left, as the client is told."""
    return {
        **dict(_headers("requests", allowance.requests)),
        **dict(_headers("tokens", allowance.tokens)),
    }


def _headers(what: str, budget: Budget | None) -> Iterator[tuple[str, str]]:
    if budget is not None:
        yield f"x-ratelimit-limit-{what}", str(budget.per_minute)
        yield f"x-ratelimit-remaining-{what}", str(budget.remaining)
        yield f"x-ratelimit-reset-{what}", duration_text(budget.full_s)


def duration_text(seconds: float) -> str:
    """As OpenAI writes it: `0s`, `20ms`, `7.66s`, `6m0s`, `1h0m5s`. Never less than it is."""
    milliseconds = ceil(seconds * 1e3)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{milliseconds / 1e3:g}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
