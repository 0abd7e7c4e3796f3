"""Start and end of every process of the live world: its log, the seconds of its start-up,
the life of its parent, its event loop, and an end that neither takes long nor hangs."""

import asyncio
import atexit
import ctypes
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from tandem.config.options import ServeOptions
from tandem.facts.errors import InvalidConfiguration, TandemError
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.launching.launcher import ExitCode
from tandem.live.log_format import begin_log
from tandem.messages.node import Leave

logger = logging.getLogger(__name__)
T = TypeVar("T")

# The interpreter lets another thread run after so long. By default it is 5 ms, and a loop that has
# to wait for it after each call that gives its turn away soon waits for 20 ms beside a thread that
# computes: the engine's, or one that tokenises.
SWITCH_S = 0.0005
# What a process that was told to end while it loaded may take to give back what it has: a question
# to a gateway that does not answer is over by then.
HALF_LOADED_S = 4.0
PR_SET_PDEATHSIG = 1
_ENDING = (signal.SIGINT, signal.SIGTERM)


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
        # That a reader has gone is the interpreter's to report.
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    sys.exit(code)


def end_as(name: str, work: Callable[[], Leave]) -> None:
    """Do the `work` of a process of a cluster, and log how it ended. Raises `SystemExit` with an
    `ExitCode` unless it left as it should."""
    try:
        left = work()
    except InvalidConfiguration as error:
        logger.error("%s cannot start: %s", name, error)
        raise SystemExit(ExitCode.MISCONFIGURED) from error
    except TandemError as error:
        logger.error("%s failed: %s", name, error, exc_info=error)
        raise SystemExit(ExitCode.FAILED) from error
    if left.reason:
        logger.error("%s ends: %s", name, left.reason)
    else:
        logger.info("%s has left", name)
    if code := exit_code(left):
        raise SystemExit(code)


def exit_code(left: Leave) -> int:
    """The status of a process that leaves like this."""
    return ExitCode.UNWELCOME if left.reason else ExitCode.AGAIN if left.again else 0


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


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Until an event loop takes the signals, SIGINT and SIGTERM end the process within
    `HALF_LOADED_S`, with the code 0: one that only loads has nothing to finish. A second signal
    does what it does by default. In another thread than the main one, which has the signals,
    nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.getsignal(number) for number in _ENDING]

    def end(_number: int, _frame: object) -> None:
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
        # Not everything that loads lets the exception through, or ends its threads.
        timer = threading.Timer(HALF_LOADED_S, os._exit, (0,))
        timer.daemon = True
        timer.start()
        raise SystemExit(0)

    for number in _ENDING:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in zip(_ENDING, before, strict=True):
            signal.signal(number, handler)


def run_ended_by_signals(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run what this gives within `ended_by_signals`. A signal waits until the loop is made: half of
    one complains when it goes."""
    came: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in _ENDING} if main else {}
    # Masks are of threads, and libraries have some that take signals, too.
    for number in handlers:
        signal.signal(number, lambda came_now, _frame: came.append(came_now))
    with asyncio.Runner() as runner:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for each in came:
            signal.raise_signal(each)
        return runner.run(work())


class StartUp:
    """Logs every phase with its seconds, and at the end their sum; and says both in one line."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """A phase lasts as long as the block."""
        began_ns = now_ns()
        yield
        self._took(name, (now_ns() - began_ns) / NS_PER_S)

    def so_far(self, name: str) -> None:
        """A phase that began with the process and ends here."""
        self._took(name, process_age_s())

    def note(self, text: str) -> None:
        """What was chosen on the way."""
        logger.info("%s: %s", self._who, text)

    def ready(self) -> None:
        logger.info("%s: ready after %.2f s", self._who, process_age_s())

    def summary(self) -> str:
        """How long it took until now, and how much of that each phase."""
        phases = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self._seconds.items())
        return f"started in {process_age_s():.1f} s: {phases}"

    def _took(self, name: str, seconds: float) -> None:
        self._seconds[name] = seconds
        logger.info("%s: %s took %.2f s", self._who, name, seconds)


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


def loop_runner() -> asyncio.Runner:
    """Runs coroutines on uvloop, where their turn comes soon though other threads compute. To be
    made when the process has what it lives with: the collector, which holds the loop, leaves that
    alone (the books of a large KV pool would take it tens of milliseconds, time and again)."""
    gc.freeze()
    sys.setswitchinterval(SWITCH_S)
    return asyncio.Runner(loop_factory=uvloop.new_event_loop)


def end_with_parent(parent: int) -> bool:
    """From now on the kernel kills this process when the thread of the process `parent` that
    started it ends, which for the main thread is the whole parent. Whether this system can do it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "prctl") or library.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)):
        return False
    if os.getppid() != parent:
        # It ended while this process was starting; no signal will come any more.
        os.kill(os.getpid(), signal.SIGKILL)
    return True


def log_of_process(options: ServeOptions, name: str) -> None:
    """Messages of others as the options have it, from this process of a cluster. Our own from INFO
    on at least: how a process started is worth a few lines."""
    begin_log(options.log_level, options.log_format, name)
    ours = logging.getLogger("tandem")
    ours.setLevel(min(logging.INFO, logging.getLogger().level))
