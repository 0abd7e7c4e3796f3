"""Which part of the recorded demand is like the present one.

After a shift of the load, what came before it says which shape would have been right then. So a
simulation is given the longest stretch, up to now, whose requests look like the latest ones.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Protocol, TypeVar

from tandem.policy.planning.pools import mean


class Recorded(Protocol):
    """What a stretch is chosen by."""

    arrival_ns: int
    prompt_tokens: int
    output_tokens: int


R = TypeVar("R", bound=Recorded)

# The latest requests: so many seconds of them, and so many at least.
RECENT_S = 60.0
RECENT_REQUESTS = 48
# Loads are alike while their mean lengths are no further apart than this factor.
ALIKE = 1.5


def settled(requests: Sequence[R], now_ns: int, window_s: float, most: int) -> Sequence[R]:
    """The last of the `requests` (oldest first) that are like the latest: those of `window_s`, or
    of a half, a quarter and so on of it, at most the last `most`."""
    arrival_ns = attrgetter("arrival_ns")

    def since(seconds: float) -> Sequence[R]:
        first = bisect_left(requests, now_ns - round(seconds * 1e9), key=arrival_ns)
        return requests[max(first, len(requests) - most) :]

    recent = since(RECENT_S)
    if len(recent) < RECENT_REQUESTS:
        recent = requests[-min(RECENT_REQUESTS, most) :]
    span_s = window_s
    while span_s > RECENT_S:
        stretch = since(span_s)
        if len(stretch) <= len(recent):
            return stretch
        if _alike(stretch, recent):
            return stretch
        span_s /= 2
    return since(RECENT_S)


def _alike(these: Sequence[R], those: Sequence[R]) -> bool:
    return _near(
        mean([each.prompt_tokens for each in these]), mean([each.prompt_tokens for each in those])
    ) and _near(
        mean([each.output_tokens for each in these]), mean([each.output_tokens for each in those])
    )


def _near(one: float, other: float) -> bool:
    return max(one, other) <= ALIKE * max(1.0, min(one, other))
