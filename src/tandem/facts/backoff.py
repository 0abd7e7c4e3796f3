"""Exponential backoff with jitter: many that failed at one instant do not come back at one."""

import math


def spread(wait_s: float, chance: float) -> float:
    """From half of `wait_s` to all of it. `chance` in [0, 1] is drawn for each try; 1 is the
    longest wait."""
    return wait_s * (0.5 + 0.5 * chance)


def backoff_s(first_s: float, most_s: float, failures: int, chance: float) -> float:
    """How long to wait after one more failure than `failures`: twice as long each time, up to
    `most_s`, and `spread`."""
    # No float grows beyond its bounds in a year of failures.
    return spread(min(most_s, first_s * 2.0 ** min(failures, 32)), chance)


def longest() -> float:
    """The chance of those who have none: they wait as long as may be."""
    return 1.0


def retry_after(wait_s: float, chance: float) -> str:
    """What a client is told, in whole seconds: no less than it is to wait, and up to a quarter
    more, or a second."""
    least_s = max(1, math.ceil(wait_s))
    most_s = max(1, least_s // 4)
    return str(least_s + min(most_s, int(chance * (most_s + 1))))
