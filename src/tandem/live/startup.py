"""How long each phase of a process's start takes, for its log."""

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tandem.live.clock import NS_PER_S, now_ns

logger = logging.getLogger(__name__)


class StartUp:
    """Logs every phase with its seconds, and at the end their sum."""

    def __init__(self, who: str) -> None:
        self._who = who

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase lasts as long as the block."""
        began_ns = now_ns()
        yield
        logger.info("%s: %s took %.2f s", self._who, name, (now_ns() - began_ns) / NS_PER_S)

    def so_far(self, name: str) -> None:
        """A phase that began with the process and ends here."""
        logger.info("%s: %s took %.2f s", self._who, name, process_age_s())

    def note(self, text: str) -> None:
        """What was chosen on the way."""
        logger.info("%s: %s", self._who, text)

    def ready(self) -> None:
        logger.info("%s: ready after %.2f s", self._who, process_age_s())


def process_age_s() -> float:
    """Seconds since the system started this process (Linux; elsewhere not a number)."""
    try:
        with Path("/proc/self/stat").open() as file:
            # The name of the program stands in brackets and may hold anything.
            fields = file.read().rpartition(")")[2].split()
    except FileNotFoundError:
        return math.nan
    started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
