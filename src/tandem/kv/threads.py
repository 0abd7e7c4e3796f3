"""Threads of the KV room: `SupervisedThread`, under which nothing dies in silence,
`WorkerThread`, such a thread with a queue of tasks, and `StepThread`, whose tasks do themselves;
and what engines made of them call (`EngineCalls`).

Whatever is raised in a thread is logged with its traceback, ends the thread, and is handed at once
to the owner, who fails all that depended on it.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Event = TypeVar("Event")
NS_PER_S: Final = 1_000_000_000
# Does a little, and gives whether that was all.
Step = Callable[[], bool]


@dataclass(frozen=True)
class EngineCalls(Generic[Event]):
    """What an engine calls from its threads: `answered` with the end of an order, which must return
    at once; `failed` when a thread broke, and nothing more may end; `now_ns`, a monotonic clock."""

    answered: Callable[[Event], None]
    failed: Callable[[], None]
    now_ns: Callable[[], int]


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
        """Wait for its end, at most `timeout_s`."""
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


class WorkerThread(Generic[Task]):
    """A supervised thread that works off a queue of tasks. Used wherever bytes of KV are moved:
    for every connector, every tier, every TCP peer, and for the coordinator of transfers.

    `work` does a little of a task and gives whether that was all of it; until then the task stays
    at the head of the queue. Before every call the thread looks for urgent tasks: so what somebody
    waits for is held up by one step of what nobody waits for, and is over before any task posted
    after it.

    Methods may be called from any thread and return at once, but `join_worker`."""

    def __init__(
        self,
        name: str,
        work: Callable[[Task], bool],
        *,
        failed: Callable[[Exception, Sequence[Task]], None],
        ended: Callable[[], None] = lambda: None,
        capacity: int | None = None,
        nice: int = 0,
    ) -> None:
        """`failed` gets what `work` raised, and the tasks that will never be worked on, in this
        thread; the task that raised is not among them. `ended` is called in this thread when it
        ends, before `failed` where it failed. At most `capacity` tasks wait. `nice` is the priority
        of the thread, 19 the lowest."""
        self._work = work
        self._on_failure = failed
        self._ended = ended
        self._capacity = capacity
        self._nice = nice
        self._urgent: deque[Task] = deque()
        self._others: deque[Task] = deque()
        self._stopping = False
        self._lock = threading.Lock()
        # A condition wakes its waiter while the lock is still held; a queue of its own is twice as
        # fast. It has one token at most: for a thread that found nothing to do.
        self._idle = False
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._thread = SupervisedThread(name, self._run, self._fail)
        self.failure: Exception | None = None

    def start_worker(self) -> None:
        """Raises `RuntimeError` where the system has no thread left."""
        self._thread.start()

    def post(self, task: Task, *, urgent: bool = False) -> bool:
        """Whether the task will be worked on: not where the thread has failed (then `failure` is
        set), or as many tasks as it may have wait already."""
        with self._lock:
            waiting = len(self._urgent) + len(self._others)
            if self.failure or (self._capacity is not None and waiting >= self._capacity):
                return False
            (self._urgent if urgent else self._others).append(task)
            idle, self._idle = self._idle, False
        if idle:
            self._wakes.put(None)
        return True

    def take_waiting(self) -> list[Task]:
        """Remove the tasks that are not over; from the thread itself. Whoever takes them ends
        them."""
        with self._lock:
            waiting = [*self._urgent, *self._others]
            self._urgent.clear()
            self._others.clear()
        return waiting

    def stop_worker(self) -> None:
        """The thread ends when nothing is left to do."""
        with self._lock:
            self._stopping = True
            idle, self._idle = self._idle, False
        if idle:
            self._wakes.put(None)

    def join_worker(self, timeout_s: float) -> bool:
        """Whether the thread has ended by then."""
        self._thread.join(timeout_s)
        return not self._thread.alive

    @property
    def alive(self) -> bool:
        return self._thread.alive

    def _run(self) -> None:
        if self._nice:
            # On Linux a thread has a priority of its own.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._nice)
        try:
            while (queue := self._next_queue()) is not None:
                # Out of the queue while it is worked on: nobody else takes it meanwhile.
                task = queue.popleft()
                if not self._work(task):
                    queue.appendleft(task)
        finally:
            self._ended()

    def _next_queue(self) -> "deque[Task] | None":
        """The queue to go on with, as soon as one has a task; None when all is over."""
        while True:
            with self._lock:
                if self._urgent:
                    return self._urgent
                if self._others:
                    return self._others
                if self._stopping:
                    return None
                self._idle = True
            self._wakes.get()

    def _fail(self, failure: Exception) -> None:
        with self._lock:
            self.failure = failure
        self._on_failure(failure, self.take_waiting())


class StepThread(WorkerThread[Step]):
    """A worker thread for steps, each until it is over, whose owner ends the process when it fails:
    `failed` is called then, in the thread, unless what was left to do was dropped."""

    def __init__(self, name: str, failed: Callable[[], None], *, nice: int = 0) -> None:
        super().__init__(name, self._take_step, failed=lambda *_: self._report(failed), nice=nice)
        self._dropping = False

    def call(self, action: Callable[[], object], *, urgent: bool = False) -> None:
        """Post a step that is over at once."""

        def step() -> bool:
            action()
            return True

        self.post(step, urgent=urgent)

    def drop_worker(self) -> None:
        """As `stop_worker`, but whatever is not done by now is dropped."""
        self._dropping = True
        self.stop_worker()

    def _take_step(self, step: Step) -> bool:
        return self._dropping or step()

    def _report(self, failed: Callable[[], None]) -> None:
        if not self._dropping:
            failed()
