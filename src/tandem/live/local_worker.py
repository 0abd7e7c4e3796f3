"""A worker in this process: the worker machine on the event loop, its engine in a thread.

Performs the machine's effects and nothing more; all deciding is in the machine.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator

from tandem.facts.errors import EngineFailed, InvalidRequest
from tandem.facts.messages import (
    EmitTokens,
    Refuse,
    ReportBlocks,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    StepDone,
    WorkerEvent,
)
from tandem.facts.request import Request, TokenOutput
from tandem.facts.serving import ModelCard
from tandem.facts.steps import StepResult
from tandem.live.clock import now_ns
from tandem.live.engine_thread import EngineThread, PlanRunner
from tandem.live.mailbox import Mailbox
from tandem.machines.worker import WorkerMachine
from tandem.observe.metrics import WorkerMetrics

logger = logging.getLogger(__name__)


class LocalWorker:
    """The `Generator` port over one engine in this process. Use it from one event loop, between
    `start` and `stop`."""

    def __init__(self, card: ModelCard, machine: WorkerMachine, engine: PlanRunner) -> None:
        self.card = card
        self.machine = machine
        self.metrics = WorkerMetrics(card.names[0], machine)
        self._engine_thread = EngineThread(engine, self._step_landed, self._engine_failed)
        self._mailboxes: dict[str, Mailbox] = {}
        self._arrived: list[Request] = []
        self._aborted: list[str] = []
        self._landed: list[StepResult] = []
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed = False
        self._closed_because: str | None = None

    @property
    def ready(self) -> bool:
        """Whether requests are served: started, and the engine alive."""
        return self._task is not None and self._closed_because is None

    @property
    def failed(self) -> bool:
        """See the port `Generator`. A worker that was stopped has not failed."""
        return self._failed

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._engine_thread.start()
        self._task = asyncio.create_task(self._serve(), name="worker machine")
        self._task.add_done_callback(self._task_ended)

    async def stop(self) -> None:
        """End the engine's thread after the steps already planned; running requests fail."""
        self._close("the server is shutting down", failed=False)
        if self._task:
            self._task.cancel()
        await asyncio.to_thread(self._engine_thread.stop)

    def metrics_text(self) -> bytes:
        return self.metrics.exposition()

    async def generate(self, request: Request) -> AsyncGenerator[TokenOutput, None]:
        """See the port `Generator`."""
        if self._closed_because:
            raise EngineFailed(self._closed_because)
        if request.request_id in self._mailboxes:
            raise InvalidRequest("request_id", f"{request.request_id!r} is already running")
        mailbox = self._mailboxes[request.request_id] = Mailbox()
        self._arrived.append(request)
        self._news.set()
        self.metrics.arrived(request, now_ns())
        finished = False
        try:
            while not finished:
                output = await mailbox.take()
                finished = output.finish_reason is not None
                yield output
        finally:
            del self._mailboxes[request.request_id]
            if not mailbox.closed:
                self._aborted.append(request.request_id)
                self._news.set()
                self.metrics.left(request.request_id)

    async def _serve(self) -> None:
        """Tell the machine all that happened within one turn of the loop, so that requests which
        arrive together are planned into one step."""
        while True:
            await self._news.wait()
            self._news.clear()
            landed, self._landed = self._landed, []
            # Whoever left within the same turn never arrived.
            arrived = tuple(r for r in self._arrived if r.request_id in self._mailboxes)
            self._arrived = []
            aborted, self._aborted = tuple(self._aborted), []
            if aborted:
                self._tell(RequestsAborted(aborted))
            if arrived:
                self._tell(RequestsArrived(arrived))
            for result in landed:
                self._tell(StepDone(result))

    def _tell(self, event: WorkerEvent) -> None:
        instant_ns = now_ns()
        for effect in self.machine.handle(event, instant_ns):
            match effect:
                case RunStep(plan):
                    self._engine_thread.submit(plan)
                    self.metrics.planned(plan, instant_ns)
                case EmitTokens():
                    self._deliver(effect)
                    self.metrics.emitted(effect, instant_ns)
                case Refuse(request_id, error):
                    self.metrics.refused(request_id)
                    if mailbox := self._mailboxes.get(request_id):
                        mailbox.fail(error)
                case ReportBlocks():
                    pass  # one worker, no router: nobody routes by its cache

    def _deliver(self, effect: EmitTokens) -> None:
        for index, request_id in enumerate(effect.request_ids):
            if mailbox := self._mailboxes.get(request_id):
                mailbox.put(effect, index)

    def _step_landed(self, result: StepResult) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._take_result, result)

    def _take_result(self, result: StepResult) -> None:
        self._landed.append(result)
        self._news.set()

    def _engine_failed(self, failure: BaseException) -> None:
        assert self._loop is not None
        text = f"the engine failed: {type(failure).__name__}: {failure}"
        self._loop.call_soon_threadsafe(self._close, text)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()):
            logger.error("the worker machine failed", exc_info=failure)
            self._close(f"the scheduler failed: {type(failure).__name__}: {failure}")

    def _close(self, text: str, *, failed: bool = True) -> None:
        """From now on nothing is served; whoever waits is told."""
        self._failed = self._failed or failed
        if self._closed_because is None:
            self._closed_because = text
        for mailbox in self._mailboxes.values():
            mailbox.fail(EngineFailed(self._closed_because))
