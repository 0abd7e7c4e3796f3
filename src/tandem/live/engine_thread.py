"""The thread in which the engine runs plans, one after the other."""

import asyncio
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from tandem.facts.steps import StepPlan, StepResult
from tandem.kv.threads import SupervisedThread


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
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = SupervisedThread("engine", self._work, self._tell_failure)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    def stop(self, timeout_s: float | None = None) -> None:
        """Finish what was submitted, then end; wait for that, at most so long if it is said."""
        self._plans.put(None)
        self._thread.join(timeout_s)

    def _work(self) -> None:
        assert self._loop is not None
        self._run(self._loop)

    def _tell_failure(self, failure: Exception) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._on_failure, failure)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        self._engine.adopt_thread()
        depth = 1 if self._engine.asynchronous else 0
        launched: deque[PendingStep] = deque()
        while (plan := self._plans.get()) is not None:
            launched.append(self._engine.launch(plan))
            while len(launched) > depth or (launched and self._plans.empty()):
                loop.call_soon_threadsafe(self._on_result, launched.popleft().result())
        while launched:
            loop.call_soon_threadsafe(self._on_result, launched.popleft().result())
