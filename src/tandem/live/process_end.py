"""How a process ends: without taking apart what the system takes back at once, and, when something
in it hangs, all the same."""

import atexit
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

logger = logging.getLogger(__name__)


def run_to_the_end(work: Callable[[], object]) -> None:
    """Do all the `work` of a process and end it, with the code of a `SystemExit` or with 0.

    The interpreter would free every object of torch one by one, a third of a second of computing,
    before the system takes the memory back anyway. All else is done that it does: threads have
    finished, what was registered with `atexit` runs, what was written is out."""
    code = 0
    try:
        work()
    except SystemExit as end:
        if isinstance(end.code, str):
            raise
        code = end.code or 0
    if not _threads_work():
        atexit._run_exitfuncs()
        # A reader who has gone is the interpreter's to tell.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def _threads_work() -> bool:
    """Whether there are others than this one that the process has to wait for."""
    others = set(threading.enumerate()) - {threading.current_thread()}
    return not all(thread.daemon for thread in others)


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
