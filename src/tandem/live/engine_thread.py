"""The thread in which the engine runs plans, one after the other.

It supervises the engine: whatever the engine raises is logged, ends the thread, and is told to
the owner, who fails the requests that depended on it.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

from tandem.facts.steps import StepPlan, StepResult

logger = logging.getLogger(__name__)


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
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._engine = engine
        self._on_result = on_result
        self._on_failure = on_failure
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._supervise, name="engine", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    def stop(self) -> None:
        """Finish what was submitted, then end."""
        self._plans.put(None)
        self._thread.join()

    def _supervise(self) -> None:
        assert self._loop is not None
        try:
            self._run(self._loop)
        except Exception as failure:
            logger.exception("the engine failed")
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
