"""The thread in which the engine runs plans, one after the other."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from tandem.facts.steps import StepPlan, StepResult
from tandem.kv.threads import SupervisedThread

W = TypeVar("W")


class PendingStep(Protocol):
    """A launched step; `result` waits for the device."""

    def result(self) -> StepResult: ...


class PlanRunner(Protocol):
    """What the thread needs of an engine. `asynchronous`: `launch` returns before the work is
    done, so the next step should be launched before this one's result is awaited."""

    @property
    def asynchronous(self) -> bool: ...

    def adopt_thread(self) -> None:
        """Called once in the thread that will launch."""
        ...

    def launch(self, plan: StepPlan) -> PendingStep: ...


class WorkQueueThread(Generic[W]):
    """The supervised thread of an engine, which takes its work from a queue, in order. `run` pulls
    it from `work`, so that an engine can see whether more waits before it awaits a result; what
    `run` raises goes to `failed`, in the thread."""

    def __init__(self, run: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._queue: SimpleQueue[W | None] = SimpleQueue()
        self._thread = SupervisedThread("engine", run, failed)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: W) -> None:
        """From any thread."""
        self._queue.put(work)

    def finish(self) -> None:
        """End after what was submitted."""
        self._queue.put(None)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end, at most `timeout_s`."""
        self._thread.join(timeout_s)

    def work(self) -> Iterator[W]:
        """In the thread: the next work, as soon as there is some, up to the end."""
        while (work := self._queue.get()) is not None:
            yield work

    @property
    def is_empty(self) -> bool:
        """Whether no more waits at the moment."""
        return self._queue.empty()


class EngineThread:
    """`on_result` and `on_failure` are called on the event loop that `start` is given."""

    def __init__(
        self,
        engine: PlanRunner,
        on_result: Callable[[StepResult], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._on_result = on_result
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = WorkQueueThread[StepPlan](self._run_plans, self._engine_failed)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        self._thread.submit(plan)

    def stop(self, timeout_s: float | None = None) -> None:
        """Finish what was submitted, then end; wait for that, at most `timeout_s`."""
        self._thread.finish()
        self._thread.join(timeout_s)

    def _engine_failed(self, failure: Exception) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._on_failure, failure)

    def _run_plans(self) -> None:
        loop = self._loop
        assert loop is not None
        self._engine.adopt_thread()
        depth = 1 if self._engine.asynchronous else 0
        launched: deque[PendingStep] = deque()
        for plan in self._thread.work():
            launched.append(self._engine.launch(plan))
            while len(launched) > depth or (launched and self._thread.is_empty):
                loop.call_soon_threadsafe(self._on_result, launched.popleft().result())
        while launched:
            loop.call_soon_threadsafe(self._on_result, launched.popleft().result())
