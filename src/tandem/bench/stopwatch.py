"""The one clock of the measuring room: seconds since it was started."""

import time
from collections.abc import Callable

Clock = Callable[[], float]


def start_clock() -> Clock:
    """A clock that reads 0 now and never goes back."""
    started_s = time.perf_counter()
    return lambda: time.perf_counter() - started_s


def nanoseconds(instant_s: float) -> int:
    """An instant or a duration as records hold it."""
    return round(instant_s * 1e9)
