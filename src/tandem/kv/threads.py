"""Threads that may fail in ways nobody foresaw, each under one supervisor: whatever is raised there
is logged with its traceback, ends the thread, and is told at once to the owner, who fails all that
depended on it."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class SupervisedThread:
    """A thread for `work`, not yet started, that keeps no process alive. `failed` gets what `work`
    raised, in that thread: it must fail whatever was asked of the thread and has not been done, and
    see to it that whatever is asked later fails at once; either by itself, or by ending the process
    whose part the thread is."""

    def __init__(
        self, name: str, work: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        self._name = name
        self._work = work
        self._failed = failed
        self._thread = threading.Thread(target=self._supervise, name=name, daemon=True)

    def start(self) -> None:
        """Raises `RuntimeError` where the system has no thread left."""
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for its end, at most so long if it is said."""
        self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _supervise(self) -> None:
        try:
            self._work()
        except Exception as failure:
            logger.exception("the %s thread failed", self._name)
            self._failed(failure)


def no_harm(failure: Exception) -> None:
    """For a thread that nobody waits for: it is logged, and that is all."""
    del failure
