"""The last resort of a process that must end: it does, even when something in it hangs."""

import logging
import os
import threading

logger = logging.getLogger(__name__)


def end_within(seconds: float, code: int) -> None:
    """If the process still runs after so many seconds, end it with this exit code, whatever its
    threads are doing."""

    def end() -> None:
        logger.error("the process did not end by itself within %g s: it is ended", seconds)
        logging.shutdown()
        os._exit(code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
