"""The engine of a worker of several ranks, as its leader runs it: every rank gets every plan, in
the same order, and the last stage draws.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from tandem.facts.steps import StepPlan, StepResult
from tandem.live.engine_thread import PendingStep, PlanRunner, WorkQueueThread
from tandem.live.ranks.ranks import Ranks
from tandem.messages.ranks import TokensLanded


class StageEngine(PlanRunner, Protocol):
    """An engine of one stage of several, as `engine.engine.Engine`."""

    def take_landed(
        self, step_id: int, tokens: tuple[int, ...], counts: tuple[int, ...] = ()
    ) -> None:
        """The tokens that the step drew elsewhere, so many in each row (empty: one)."""
        ...


@dataclass(frozen=True, slots=True)
class MeetingEngine:
    """The engine of one tensor rank. A step that draws nothing has no sum to wait for in its last
    layer; still, what has landed must have been computed on all ranks, because blocks are then
    published or given to others. So they `meet` at its end."""

    engine: StageEngine
    meet: Callable[[], object]

    @property
    def asynchronous(self) -> bool:
        return self.engine.asynchronous

    def adopt_thread(self) -> None:
        self.engine.adopt_thread()

    def launch(self, plan: StepPlan) -> PendingStep:
        step = self.engine.launch(plan)
        if not plan.samples.any():
            self.meet()
        return step

    def take_landed(
        self, step_id: int, tokens: tuple[int, ...], counts: tuple[int, ...] = ()
    ) -> None:
        self.engine.take_landed(step_id, tokens, counts)


@dataclass(frozen=True, slots=True)
class TensorEngine:
    """A `PlanRunner` for a worker of one stage: every rank draws the same tokens, so the leader's
    own are the result."""

    engine: PlanRunner
    ranks: Ranks

    @property
    def asynchronous(self) -> bool:
        return self.engine.asynchronous

    def adopt_thread(self) -> None:
        self.engine.adopt_thread()

    def launch(self, plan: StepPlan) -> PendingStep:
        self.ranks.send_to_ranks(plan)
        return self.engine.launch(plan)


class PipelineThread:
    """As `EngineThread`, for several stages: results come from the last one, on their own, while
    the first already computes the next plan. `earlier` are the followers that do not draw.

    `on_result` and `on_failure` are called on the event loop that `start` is given.
    """

    def __init__(
        self,
        engine: StageEngine,
        ranks: Ranks,
        *,
        earlier: Collection[int],
        on_result: Callable[[StepResult], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self._engine = engine
        self._ranks = ranks
        self._earlier = earlier
        self._on_result = on_result
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = WorkQueueThread[StepPlan | StepResult](self._run_plans, self._engine_failed)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def submit(self, plan: StepPlan) -> None:
        self._thread.submit(plan)

    def land(self, result: StepResult) -> None:
        """The last stage has drawn; from any thread. The tokens come before every plan that the
        news of them leads to."""
        assert self._loop is not None
        self._thread.submit(result)
        self._loop.call_soon_threadsafe(self._on_result, result)

    def stop(self, timeout_s: float | None = None) -> None:
        self._thread.finish()
        self._thread.join(timeout_s)

    def _run_plans(self) -> None:
        self._engine.adopt_thread()
        for work in self._thread.work():
            if isinstance(work, StepPlan):
                self._ranks.send_to_ranks(work)
                self._engine.launch(work)
            elif work.tokens:
                landed = TokensLanded(work.step_id, work.tokens, work.token_counts)
                self._engine.take_landed(landed.step_id, landed.tokens, landed.counts)
                self._ranks.send_to_ranks(landed, self._earlier)

    def _engine_failed(self, failure: Exception) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._on_failure, failure)
