"""The one place of the live world that reads the clock."""

import time

NS_PER_S = 1_000_000_000


def now_ns() -> int:
    """Monotonic, for everything that decides or measures."""
    return time.monotonic_ns()


def wall_clock_s() -> int:
    """Unix time, for what people read."""
    return int(time.time())


def unix_offset_ns() -> int:
    """Unix time less `now_ns`, at this moment: the system may set its clock."""
    return time.time_ns() - time.monotonic_ns()
