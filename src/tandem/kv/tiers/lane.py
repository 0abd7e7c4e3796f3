"""The thread that works for one tier: one that hangs holds up no other."""

import os
from collections import deque
from collections.abc import Callable
from threading import Condition, get_native_id

from tandem.kv.threads import SupervisedThread

# Does a little, and says whether that was all.
Step = Callable[[], bool]


class Lane:
    """Works off steps, each until it is over, in the order they were posted; but before every
    single step of the others it looks for urgent ones. So what somebody waits for is held up by
    one step of what nobody waits for, and is over before anything posted after it that may take
    its bytes away.

    `post` and `close` may be called from any thread and return at once. `failed` is called when
    the thread breaks. `nice` is its priority, 19 the lowest."""

    def __init__(self, name: str, failed: Callable[[], None], *, nice: int = 0) -> None:
        self._failed = failed
        self._nice = nice
        self._urgent: deque[Step] = deque()
        self._others: deque[Step] = deque()
        self._closing = False
        self._changed = Condition()
        self._thread = SupervisedThread(f"kv {name}", self._work, self._broke)

    def start(self) -> None:
        self._thread.start()

    def post(self, step: Step, *, urgent: bool = False) -> None:
        with self._changed:
            (self._urgent if urgent else self._others).append(step)
            self._changed.notify()

    def close(self) -> None:
        """The thread ends when nothing is left to do."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended by then."""
        self._thread.join(timeout_s)
        return not self._thread.alive

    def _broke(self, failure: Exception) -> None:
        """No step is worked off any more: the process ends."""
        del failure
        self._failed()

    def _work(self) -> None:
        if self._nice:
            # On Linux a thread has a priority of its own.
            os.setpriority(os.PRIO_PROCESS, get_native_id(), self._nice)
        while (steps := self._next()) is not None:
            if steps[0]():
                steps.popleft()

    def _next(self) -> deque[Step] | None:
        """Those to go on with, as soon as there are any; None when all is over."""
        with self._changed:
            while True:
                if self._urgent:
                    return self._urgent
                if self._others:
                    return self._others
                if self._closing:
                    return None
                self._changed.wait()
