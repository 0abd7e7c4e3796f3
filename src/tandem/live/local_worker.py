"""A worker in this process: the worker machine on the event loop, its engine in a thread.

Performs the machine's effects and nothing more; all deciding is in the machine.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import replace
from functools import partial

from tandem.cluster.worker.machine import NO_ADAPTER, WorkerMachine
from tandem.engine.adapters import AdapterCache
from tandem.facts.adapter import Adapter
from tandem.facts.blocks import NO_SALT
from tandem.facts.errors import (
    EngineFailed,
    InvalidConfiguration,
    InvalidRequest,
    Overloaded,
    Rejection,
    RequestFailed,
)
from tandem.facts.fleet import Role
from tandem.facts.metrics import MetricFamily
from tandem.facts.overview import Overview, RequestDetail, RequestLine, WorkerOverview
from tandem.facts.rate_limits import Allowance
from tandem.facts.request import FinishReason, Request, TokenOutput, sooner
from tandem.facts.serving import ANYBODY, Caller, ModelCard
from tandem.facts.slo import IN_BACKGROUND, LOWER_ONLY, ClientPriorities
from tandem.facts.steps import Placement, StepResult
from tandem.facts.tracing import SpanSink, TraceContext
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.driver import Driver, EventInbox
from tandem.live.engine_thread import EngineThread, PlanRunner
from tandem.live.gateway.history import Asker, RequestHistories
from tandem.live.mailbox import Mailbox, Mailboxes
from tandem.live.request_view import latest_requests, request_details
from tandem.messages.router import Explain
from tandem.messages.worker import (
    EmitTokens,
    FailRequest,
    PrefixCacheReset,
    Refuse,
    ReportBlocks,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    StepDone,
    WorkerEffect,
    WorkerEvent,
)
from tandem.observe.metrics import RequestClock, ShownAdapters, WorkerMetrics
from tandem.observe.spans import local_request_span
from tandem.report.record import Ending

logger = logging.getLogger(__name__)

# Of what is remembered of the requests of the last hour.
HISTORY_BYTES = 32 << 20
Input = Request | RequestsAborted | PrefixCacheReset | StepDone


class LocalWorker:
    """The `Generator` port over one engine in this process. Use it from one event loop, between
    `start` and `stop`. Clients may choose their priority within `priorities`. An adapter that the
    engine's `adapters` do not hold is loaded before its request is queued: no step waits for it.
    Metrics have what is `shown` of them. Spans of requests go to `spans`, if there are any."""

    def __init__(
        self,
        card: ModelCard,
        machine: WorkerMachine,
        engine: PlanRunner,
        priorities: ClientPriorities = LOWER_ONLY,
        adapters: AdapterCache | None = None,
        shown: ShownAdapters | None = None,
        spans: SpanSink | None = None,
    ) -> None:
        self._adapters, self._shown = adapters, shown
        self.card = card
        self.machine = machine
        self._spans = spans
        # The open requests of calls that are traced.
        self._traced: dict[str, TraceContext] = {}
        request_ended = None if spans is None else self._request_ended
        self.metrics = WorkerMetrics(card.names[0], machine, shown, request_ended)
        self._engine_thread = EngineThread(
            engine, self._step_done, partial(self._died, "the engine failed")
        )
        self._priorities = priorities
        self._mailboxes = Mailboxes()
        self._histories = RequestHistories("", HISTORY_BYTES)
        self._began_ns = now_ns()
        self._inbox = EventInbox[Input]()
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

    @property
    def model_identity(self) -> str | None:
        """See the port `Generator`."""
        return self.machine.config.root.hash(NO_SALT).hex()

    async def start(self) -> None:
        self._engine_thread.start(asyncio.get_running_loop())
        self._task = asyncio.create_task(self._drive(), name="worker machine")
        self._task.add_done_callback(self._task_ended)

    def close(self) -> None:
        """Take no more requests; those still running end with an error."""
        self._close("the server is shutting down", failed=False)

    async def stop(self) -> None:
        """Close, and end the engine's thread after the steps already planned."""
        self.close()
        if self._task:
            self._task.cancel()
        await asyncio.to_thread(self._engine_thread.stop)

    def tools_called(self, caller: Caller, tools: Sequence[str]) -> None:
        """See the port `Generator`. One worker without slower tiers follows no session."""

    def satisfied(self, request_id: str) -> None:
        """See the port `Generator`."""
        at_ns = now_ns()
        self.metrics.requests.ended(request_id, FinishReason.STOP, at_ns)
        self._histories.request_ended(request_id, Ending.FINISHED, str(FinishReason.STOP), at_ns)

    async def overview(self, account: str | None, since_bin: int = 0) -> Overview:
        """See the port `Observed`. One worker that takes both phases."""
        at_ns, requests = now_ns(), self.metrics.requests
        machine = self.machine
        pool, timeline = machine.sequences.pool, requests.timeline
        worker = WorkerOverview(
            worker=self.card.names[0],
            role=Role.BOTH.value,
            state="ready" if self.ready else "draining",
            running=len(machine.sequences.running),
            waiting=len(machine.planner.waiting),
            used_blocks=pool.block_count - pool.free_blocks,
            total_blocks=pool.block_count,
            block_size=machine.config.block_size,
            prompts=requests.begun,
            output_tokens=requests.drawn_tokens,
        )
        queues = requests.queues()
        return Overview(
            server="server",
            model=self.card.names[0],
            up_s=(at_ns - self._began_ns) / NS_PER_S,
            workers=(worker,),
            tiers=(),
            queues=tuple(each for each in queues if account in (None, each.tenant)),
            slos=(),
            bin_s=timeline.bin_ns / NS_PER_S,
            current_bin=timeline.number_at(at_ns),
            bins=tuple(each.shown() for each in timeline.since(since_bin, at_ns)),
            waiting=sum(each.waiting for each in queues),
            running=sum(each.running for each in queues),
            finished=requests.ended_requests,
        )

    async def latest_requests(self, account: str | None, most: int) -> list[RequestLine]:
        """See the port `Observed`."""
        return latest_requests(self._histories, account, most)

    async def request_details(self, account: str | None, name: str) -> list[RequestDetail]:
        """See the port `Observed`."""
        return request_details(self._histories, account, name)

    def service_class(self, caller: Caller) -> str:
        """See the port `Generator`. Only clusters have classes."""
        del caller
        return ""

    def allowance(self, account: str) -> Allowance | None:
        """See the port `Generator`. Only clusters have rate limits."""
        del account
        return None

    async def reset_prefix_cache(self, *, external: bool) -> None:
        """See the port `Generator`. The device is all that this worker has."""
        if self._closed_because:
            raise EngineFailed(self._closed_because)
        # What comes later is handled later.
        self._inbox.enqueue(PrefixCacheReset(external))

    def metric_families(self) -> Iterable[MetricFamily]:
        """See the port `Generator`."""
        return self.metrics.families()

    async def generate(
        self, request: Request, caller: Caller = ANYBODY
    ) -> AsyncGenerator[TokenOutput, None]:
        """See the port `Generator`. Before one engine all callers are of one class, and take turns
        by account."""
        if self._closed_because:
            raise EngineFailed(self._closed_because)
        if request.adapter is not None:
            await self._hold_adapter(request.adapter)
        if request.request_id in self._mailboxes:
            raise InvalidRequest("request_id", f"{request.request_id!r} is already running")
        priority = self._priorities.applied(0, request.priority)
        if caller.background:
            priority = IN_BACKGROUND
        deadline_s = sooner(request.deadline_s, caller.deadline_s)
        request = replace(request, priority=priority, account=caller.account, deadline_s=deadline_s)
        mailbox = self._mailboxes.open(request.request_id, wants_sources=caller.wants_sources)
        if caller.trace is not None:
            self._traced[request.request_id] = caller.trace
        self._inbox.enqueue(request)
        arrival_ns = now_ns()
        self.metrics.requests.arrived(request, arrival_ns)
        asker = Asker(caller.account, "", caller.session, caller.call_id)
        self._histories.request_arrived(request, asker, arrival_ns)
        finished = False
        timer: asyncio.TimerHandle | None = None
        if deadline_s:
            loop, out_of_time = asyncio.get_running_loop(), partial(self._out_of_time, request)
            timer = loop.call_later(deadline_s, out_of_time, mailbox)
        try:
            while not finished:
                output = await mailbox.next_output()
                finished = output.finish_reason is not None
                yield output
        finally:
            if timer is not None:
                timer.cancel()
            self._mailboxes.close(request.request_id)
            if not mailbox.closed:
                self._inbox.enqueue(RequestsAborted((request.request_id,)))
                self.metrics.requests.ended(request.request_id, FinishReason.ABORT, now_ns())
            # Unless it ended before.
            self._ended(request.request_id, Ending.FAILED, "its client left", now_ns())
            self._traced.pop(request.request_id, None)

    async def _hold_adapter(self, adapter: Adapter) -> None:
        """Raises `RequestFailed` when it cannot be had."""
        if self._adapters is None:
            raise RequestFailed(NO_ADAPTER)
        if self._adapters.holds(adapter):
            return
        try:
            await asyncio.to_thread(self._adapters.weights, adapter)
        except InvalidConfiguration as error:
            # The log has the path; clients need not know it.
            logger.warning("an adapter cannot be loaded: %s", error)
            raise RequestFailed(NO_ADAPTER) from error
        if self._shown is not None:
            self._shown.memory()
        if self._closed_because:
            raise EngineFailed(self._closed_because)

    def _request_ended(
        self, request_id: str, clock: RequestClock, reason: str, instant_ns: int
    ) -> None:
        trace = self._traced.pop(request_id, None)
        if trace is not None and self._spans is not None:
            model = self.card.names[0]
            span = local_request_span(request_id, clock, reason, instant_ns, model)
            self._spans.record_below(span, trace)

    def _out_of_time(self, request: Request, mailbox: Mailbox) -> None:
        """Its deadline has passed: it is refused without a token, else ends with what it has."""
        if mailbox.closed:
            return
        self._inbox.enqueue(RequestsAborted((request.request_id,)))
        if mailbox.begun:
            self.metrics.requests.ended(request.request_id, FinishReason.DEADLINE, now_ns())
            reason = str(FinishReason.DEADLINE)
            self._ended(request.request_id, Ending.FINISHED, reason, now_ns())
            mailbox.end(FinishReason.DEADLINE)
        else:
            self.metrics.requests.rejected(request.request_id, Rejection.DEADLINE, now_ns())
            problem = f"no first token came within its deadline of {request.deadline_s:g} s"
            self._ended(request.request_id, Ending.REJECTED, problem, now_ns())
            mailbox.fail(Overloaded(problem, 1.0))

    async def _drive(self) -> None:
        await Driver[Input, WorkerEffect, None](self, self._inbox, self._perform).run()

    def handle_together(self, inputs: Sequence[Input], instant_ns: int) -> Sequence[WorkerEffect]:
        """All that happened within one turn of the loop, so that requests which arrive together are
        planned into one step."""
        aborted = [e.request_ids[0] for e in inputs if isinstance(e, RequestsAborted)]
        # Whoever left within the same turn never arrived.
        arrived = [e for e in inputs if isinstance(e, Request) and e.request_id in self._mailboxes]
        events: list[WorkerEvent] = [e for e in inputs if isinstance(e, StepDone)]
        if arrived:
            events.insert(0, RequestsArrived(tuple(arrived)))
        if aborted:
            events.insert(0, RequestsAborted(tuple(aborted)))
        events[:0] = [event for event in inputs if isinstance(event, PrefixCacheReset)]
        return [effect for event in events for effect in self.machine.handle(event, instant_ns)]

    def next_wakeup(self) -> int | None:
        return self.machine.next_wakeup()

    def _perform(self, effects: Sequence[WorkerEffect], instant_ns: int) -> None:
        for effect in effects:
            match effect:
                case RunStep(plan):
                    self._engine_thread.submit(plan)
                    self.metrics.planned(plan, instant_ns)
                    for placement in plan.placements:
                        self._placed(placement, instant_ns)
                case EmitTokens():
                    self._mailboxes.deliver(effect, self.card.names[0])
                    self.metrics.requests.emitted(effect, instant_ns)
                    self._histories.delivered(effect, instant_ns)
                case Refuse(request_id, error):
                    self._ended(request_id, Ending.REJECTED, str(error), instant_ns)
                    self.metrics.requests.rejected(request_id, Rejection.QUEUE, instant_ns)
                    self._mailboxes.fail(request_id, error)
                case FailRequest(request_id, reason):
                    self._ended(request_id, Ending.FAILED, reason, instant_ns)
                    self.metrics.requests.failed(request_id, instant_ns)
                    self._mailboxes.fail(request_id, RequestFailed(reason))
                case ReportBlocks():
                    pass  # one worker, no router: nobody routes by its cache

    def _placed(self, placement: Placement, instant_ns: int) -> None:
        """Its first step begins, or it goes on after it was put back."""
        resumed = len(placement.tokens) > placement.prompt_tokens
        text = "goes on after it was preempted" if resumed else "its first step begins"
        self._histories.explain(Explain(placement.request_id, "schedule", text), instant_ns)

    def _ended(self, request_id: str, ending: Ending, reason: str, instant_ns: int) -> None:
        self._histories.request_ended(request_id, ending, reason, instant_ns)

    def _step_done(self, result: StepResult) -> None:
        self._inbox.enqueue(StepDone(result))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()):
            logger.error("the worker machine failed", exc_info=failure)
            self._died("the scheduler failed", failure)

    def _died(self, what: str, failure: BaseException) -> None:
        # The log has the cause; this text reaches clients.
        del failure
        self._close(what, failed=True)

    def _close(self, reason: str, *, failed: bool) -> None:
        """From now on nothing is served; whoever waits gets an error."""
        if self._closed_because is None:
            self._closed_because, self._failed = reason, failed
        if failed:
            self.metrics.requests.all_failed(now_ns())
        self._mailboxes.fail_all(EngineFailed(self._closed_because))
