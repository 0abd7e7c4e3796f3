"""Waiting for what comes about in another thread or process."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], patience_s: float = 60.0, every_s: float = 0.01) -> Any:
    """What the condition gives, once it gives something."""
    end_s = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"not within {patience_s:g} s"
        time.sleep(every_s)
    return found
