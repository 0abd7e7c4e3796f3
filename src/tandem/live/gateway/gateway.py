"""The gateway of a cluster as the API sees it: the `Generator` port over many workers."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tandem.cluster.gateway.configuration import ConfigurationChanged
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.facts.errors import (
    EngineFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    PromptTooLong,
    Rejection,
    TandemError,
)
from tandem.facts.fleet import Role
from tandem.facts.metrics import MetricFamily
from tandem.facts.overview import AppliedChange, ClassSlo, WhatIfChange, WhatIfRun
from tandem.facts.rate_limits import Allowance
from tandem.facts.request import FinishReason, Request, TokenOutput, session_key, sooner
from tandem.facts.serving import ANYBODY, Caller, ModelCard
from tandem.facts.slo import IN_BACKGROUND, Slo
from tandem.facts.tracing import SpanSink
from tandem.live.channels.gateway_channel import ChannelNews
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.gateway.availability import Availability
from tandem.live.gateway.clients import Clients
from tandem.live.gateway.history import Asker, RequestHistories, Traced
from tandem.live.gateway.journal import Journal
from tandem.live.gateway.loop import Channel, GatewayLoop
from tandem.live.gateway.observation import Observation
from tandem.live.gateway.overview import class_slos
from tandem.live.gateway.settings_change import SettingsChange
from tandem.live.gateway.terms import GatewayTerms
from tandem.live.gateway.what_if import WhatIf
from tandem.live.mailbox import Mailbox
from tandem.messages.cluster import Drain
from tandem.messages.gateway import MessageFromWorker, ToolsCalled
from tandem.messages.router import Reject, RequestSubmitted, RequestWithdrawn
from tandem.messages.sharing import RelayedFromGateway
from tandem.observe.adapter_metrics import AdapterNames
from tandem.observe.cluster_metrics import GatewayMetrics
from tandem.policy.admission.contract import MIN_RETRY_S, in_words
from tandem.policy.qos.classes import ServiceClass
from tandem.report.record import Ending

logger = logging.getLogger(__name__)


class Gateway:
    """Use it from one event loop, between `start` and `stop`. Every turn of its machine stands in
    the `journal`, if there is one, whose hashes the machine must use. `simulation` is the command
    that simulates shapes for its planner. Metrics call adapters as `adapter_names` says. Operators
    may ask `what_if` (None: there is no journal), and `change` settings (None: nobody supervises
    it). Spans of requests go to `spans`, if there are any, made from the histories that the terms
    have memory for. What the page shows comes from `observation`."""

    def __init__(
        self,
        card: ModelCard,
        machine: GatewayMachine,
        terms: GatewayTerms,
        journal: Journal | None = None,
        simulation: Sequence[str] = (),
        adapter_names: AdapterNames = dict,
        what_if: WhatIf | None = None,
        change: SettingsChange | None = None,
        spans: SpanSink | None = None,
    ) -> None:
        self.machine = machine
        self._what_if, self._change = what_if, change
        self._journal = journal
        self.metrics = GatewayMetrics(card.names[0], terms.tenants, adapter_names)
        self._card, self._terms = card, terms
        self._prefix = f"{machine.config.gateway}.{terms.incarnation}/"
        self._clients = Clients(self.metrics, terms.max_waiting)
        self._availability = Availability(machine.members, terms.comeback_s)
        settled = self._availability.members_changed
        traced = None if spans is None else _tracing(spans, card.names[0])
        self._histories = RequestHistories(self._prefix, terms.explain_bytes, traced)
        self._loop = GatewayLoop(
            machine,
            self._clients,
            settled,
            journal,
            self._histories,
            self._configuration_taken,
            simulation,
        )
        self.observation = Observation(
            card.names[0],
            machine,
            self.metrics.requests,
            self._histories,
            self._loop.event_log,
            self._slos,
        )
        self._taking: tuple[GatewayTerms, asyncio.Future[None]] | None = None
        self._channel: Channel | None = None
        self._task: asyncio.Task[None] | None = None
        self._failed = False
        self._closed_because: str | None = None

    @property
    def card(self) -> ModelCard:
        """`context_tokens` are those of the worker that holds least: any may get a request."""
        contexts = [member.registration.context_tokens for member in self.machine.members]
        least_tokens = min(contexts, default=self._card.context_tokens)
        if least_tokens >= self._card.context_tokens:
            return self._card
        return replace(self._card, context_tokens=least_tokens)

    @property
    def ready(self) -> bool:
        """Whether requests are served: somebody takes prompts, and somebody decodes; or did so a
        moment ago, and is waited for."""
        if self._task is None or self._closed_because is not None:
            return False
        return self._availability.look(now_ns())

    @property
    def failed(self) -> bool:
        """See the port `Generator`. A gateway that was stopped has not failed, and one without
        workers waits for them."""
        return self._failed

    @property
    def model_identity(self) -> str | None:
        """See the port `Generator`."""
        return self.machine.members.identity

    def enqueue(self, news: ChannelNews) -> None:
        """From the channel, on the event loop."""
        relayed = news.message if isinstance(news, MessageFromWorker) else None
        if isinstance(relayed, RelayedFromGateway):
            # Nothing that decides depends on what is shown: the machine need not see it.
            self.observation.others.received(news.peer, relayed)
        else:
            self._loop.enqueue(news)

    async def reconfigure(self, change: ConfigurationChanged, terms: GatewayTerms) -> None:
        """Returns once the machine decides by the new configuration, and requests that come have
        the new terms. One at a time."""
        assert self._taking is None
        taken = asyncio.get_running_loop().create_future()
        self._taking = terms, taken
        try:
            self._loop.enqueue(change)
            await taken
        finally:
            self._taking = None

    async def start(self, channel: Channel) -> None:
        self._channel = channel
        if self._journal is not None:
            self._journal.start()
        self._loop.open(channel)
        self.observation.others.open(channel)
        self._task = asyncio.create_task(self._loop.run(), name="gateway machine")
        self._task.add_done_callback(self._task_ended)

    def close(self) -> None:
        """Take no more requests; those still running end with an error."""
        self._close("the server is shutting down", failed=False)

    async def stop(self) -> None:
        """Close, and have the workers drop what runs."""
        self.close()
        if self._task is None or self._channel is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._loop.stop_simulating()
        if not self._failed:
            self._loop.settle_all()
        await self._channel.close(self._terms.linger_s)
        if self._journal is not None:
            await asyncio.to_thread(self._journal.stop_recording)

    async def ended(self) -> None:
        """Returns once the gateway has failed or was stopped."""
        if self._task:
            await asyncio.wait([self._task])

    def satisfied(self, request_id: str) -> None:
        """See the port `Generator`."""
        at_ns, request_id = now_ns(), self._prefix + request_id
        if self._clients.satisfied(request_id, at_ns):
            self._loop.enqueue(RequestWithdrawn(request_id, satisfied=True))
        self._histories.request_ended(request_id, Ending.FINISHED, str(FinishReason.STOP), at_ns)

    def service_class(self, caller: Caller) -> str:
        """See the port `Generator`."""
        return self._class_of(caller).name

    def _class_of(self, caller: Caller) -> ServiceClass:
        classes = self.machine.config.router.classes
        return classes.class_of(caller.headers, caller.tenant, background=caller.background)

    def allowance(self, account: str) -> Allowance | None:
        """See the port `Generator`."""
        return self.machine.limits.limiter.allowance(account, now_ns())

    def tools_called(self, caller: Caller, tools: Sequence[str]) -> None:
        """See the port `Generator`."""
        if caller.session and self.machine.pauses is not None:
            self._loop.enqueue(ToolsCalled(caller.account, caller.session, tuple(tools)))

    async def reset_prefix_cache(self, *, external: bool) -> None:
        """See the port `Generator`. Raises `NotReady` where a process has not answered in time."""
        if problem := await self._ended(partial(self._loop.reset_prefix_cache, external)):
            raise NotReady(f"the prefix cache is not reset everywhere: {problem}")

    async def drain(self, worker: str, then_role: str, *, leave: bool) -> None:
        """See the port `Operated`."""
        order = Drain(Role(then_role) if then_role else None, leave)
        if problem := await self._ended(partial(self._loop.drain, worker, order)):
            raise InvalidRequest("worker", f"cannot be drained: {problem}")

    async def undrain(self, worker: str) -> None:
        """See the port `Operated`."""
        if problem := await self._ended(partial(self._loop.undrain, worker)):
            raise InvalidRequest("worker", f"cannot be undrained: {problem}")

    async def apply(self, settings: Sequence[str], seen: int | None) -> AppliedChange:
        """See the port `Operated`."""
        if self._change is None:
            raise InvalidRequest("settings", "cannot be applied: nobody supervises this gateway")
        return await self._change.apply(settings, seen)

    async def what_if(self, change: WhatIfChange) -> list[WhatIfRun]:
        """See the port `Operated`."""
        if self._what_if is None:
            problem = "needs a journal; start the cluster with `journal: {directory: FOLDER}`"
            raise InvalidRequest("what-if", problem)
        return await self._what_if.simulate(change)

    async def _ended(self, ask: Callable[[asyncio.Future[str]], None]) -> str:
        """What kept from being done what is asked of the machine. Raises `EngineFailed`."""
        if self._closed_because or self._task is None:
            raise EngineFailed(self._closed_because or "the gateway has not started")
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        ask(ended)
        waits: set[asyncio.Future[Any]] = {ended, self._task}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            raise EngineFailed(self._closed_because or "the gateway has ended")
        return ended.result()

    def metric_families(self) -> Iterable[MetricFamily]:
        """See the port `Generator`."""
        lost_turns = self._journal.lost_turns if self._journal is not None else 0
        return self.metrics.families(self.machine.status(now_ns()), lost_turns)

    async def generate(
        self, request: Request, caller: Caller = ANYBODY
    ) -> AsyncGenerator[TokenOutput, None]:
        """See the port `Generator`."""
        if self._closed_because:
            raise EngineFailed(self._closed_because)
        _check_length(request, self.card)
        request_id = self._prefix + request.request_id
        service = self._class_of(caller)
        if request.adapter is not None and service.model:
            problem = f"is an adapter of {self._card.names[0]}; your class has another model"
            raise InvalidRequest("model", problem)
        # What a client wishes for shifts its priority only as far as its class lets it.
        priority = service.priority_of(request.priority)
        if caller.background:
            priority = IN_BACKGROUND
        request = replace(
            request,
            request_id=request_id,
            priority=priority,
            account=caller.account,
            session=session_key(caller.account, caller.session),
        )
        asker = Asker(caller.account, service.name, caller.session, caller.call_id, caller.trace)
        slo = self._terms.slo if service.slo.empty else service.slo
        if caller.background:
            # What nobody waits for is promised nothing.
            slo = Slo()
        arrival_ns, deadline_s = now_ns(), sooner(request.deadline_s, caller.deadline_s)
        is_new = self._histories.request_arrived(request, asker, arrival_ns)
        try:
            mailbox, gives_way = self._clients.arrived(request, service.name, slo, caller)
        except TandemError as error:
            if is_new:
                self._refused(request_id, error)
            if caller.call is not None and isinstance(error, Overloaded):
                # Its call is refused as a whole, and may have been charged for it.
                call_id = caller.call.call_id
                self._loop.enqueue(RequestWithdrawn(request_id, rejected=True, call_id=call_id))
            raise
        if gives_way is not None:
            reason = "it gave way to a request of somebody who had fewer"
            self._histories.request_ended(gives_way, Ending.REJECTED, reason, now_ns())
            self._loop.enqueue(RequestWithdrawn(gives_way, rejected=True))
        finished = False
        try:
            deadline_ns = service.deadline_ns(arrival_ns, deadline_s)
            if caller.background:
                deadline_ns = None
            if not self._availability.complete:
                await self._until_somebody_is_back(request, mailbox, arrival_ns, deadline_ns)
            expected = self._expected_tokens(request, caller)
            self._loop.enqueue(
                RequestSubmitted(
                    request,
                    expected,
                    tenant=caller.account,
                    service_class=service.name,
                    session=caller.session,
                    slo=slo,
                    deadline_ns=deadline_ns,
                    answer_due_ns=arrival_ns + round(deadline_s * NS_PER_S) if deadline_s else None,
                    pin_ns=round(self._terms.pin_s(caller, service.longest_pin_s) * NS_PER_S),
                    call=caller.call,
                    pause=self._terms.pause(caller, service.longest_pin_s),
                    arrived_ns=arrival_ns,
                )
            )
            while not finished:
                output = await mailbox.next_output()
                finished = output.finish_reason is not None
                yield output
        except TandemError as error:
            self._refused(request_id, error)
            raise
        finally:
            if self._clients.left(request_id, finished=finished):
                self._histories.request_ended(
                    request_id, Ending.FAILED, "its client left", now_ns()
                )
                self._loop.enqueue(RequestWithdrawn(request_id))

    def _slos(self) -> tuple[ClassSlo, ...]:
        return class_slos(self._terms.slo, self.machine.config.router.classes)

    def _configuration_taken(self) -> None:
        """In the turn of the machine in which it was."""
        if self._taking is not None:
            self._terms, taken = self._taking
            self.metrics.add_tenants(self._terms.tenants)
            self._histories.resize(self._terms.explain_bytes, now_ns())
            if not taken.done():
                taken.set_result(None)

    def _expected_tokens(self, request: Request, caller: Caller) -> float:
        """What the client expects, or else what answers usually have."""
        most_tokens = request.sampling.max_tokens
        if caller.expected_output_tokens is not None:
            return float(min(caller.expected_output_tokens, most_tokens))
        return self._clients.demand.expected_tokens(most_tokens)

    def _refused(self, request_id: str, error: TandemError) -> None:
        """For its history, which may know more already."""
        refused = isinstance(error, Overloaded | NotReady)
        ending = Ending.REJECTED if refused else Ending.FAILED
        self._histories.request_ended(request_id, ending, str(error), now_ns())

    async def _until_somebody_is_back(
        self, request: Request, mailbox: Mailbox, arrival_ns: int, deadline_ns: int | None
    ) -> None:
        """A phase has no worker. The request is counted among those who wait, and comes before the
        machine together with them. Raises `TandemError`."""
        left_s = None if deadline_ns is None else max(0, deadline_ns - now_ns()) / NS_PER_S
        comes_back = asyncio.ensure_future(self._availability.comes_back())
        # Nobody answers it yet: it can only end because it has to give way, or all ends.
        refused = asyncio.ensure_future(mailbox.next_output())
        try:
            waits = {comes_back, refused}
            await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if deadline_ns is not None and not (comes_back.done() or refused.done()):
                due = in_words((deadline_ns - arrival_ns) / NS_PER_S)
                reason = f"its first token was due in {due}: no worker was there by then"
                retry_s = max(MIN_RETRY_S, self._availability.left_s())
                late = Reject(request.request_id, reason, retry_s, Rejection.DEADLINE)
                self._clients.reject(late, now_ns())
                await refused
            if refused.done():
                refused.result()
            if not comes_back.result():
                raise NotReady("no worker has come back that could run this request")
        finally:
            comes_back.cancel()
            refused.cancel()
            await asyncio.gather(comes_back, refused, return_exceptions=True)
        if mailbox.closed:
            # It had to give way in the very turn in which somebody came back.
            await mailbox.next_output()
        _check_length(request, self.card)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()):
            logger.error("the gateway machine failed", exc_info=failure)
            self._close("the gateway failed", failed=True)

    def _close(self, reason: str, *, failed: bool) -> None:
        """From now on nothing is served; whoever waits gets an error."""
        if self._closed_because is None:
            self._closed_because, self._failed = reason, failed
            for request_id in self._clients.demand.open_ids:
                self._loop.enqueue(RequestWithdrawn(request_id))
        self._clients.fail_all(EngineFailed(self._closed_because))


def _tracing(spans: SpanSink, model: str) -> Traced:
    return lambda history, trace: spans.record_history(history, model, trace)


def _check_length(request: Request, card: ModelCard) -> None:
    """Raises `PromptTooLong`."""
    prompt_tokens = len(request.prompt_tokens)
    if prompt_tokens >= card.context_tokens:
        raise PromptTooLong(prompt_tokens, card.context_tokens)
