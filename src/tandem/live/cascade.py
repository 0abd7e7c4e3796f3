"""Model cascade: two generators as one. The small model tries each request first; where it is not
sure of its answer (`policy/cascade.py`), the large one answers the request from the start.

The small model's tokens are held back here until its answer is known to count: a client gets the
answer of one model, token for token as that model gives it alone.
"""

from array import array
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import msgspec

from tandem.facts.errors import InvalidRequest, Overloaded, RequestFailed
from tandem.facts.metrics import MetricFamily
from tandem.facts.overview import Observed, Overview, RequestDetail, RequestLine
from tandem.facts.rate_limits import Allowance
from tandem.facts.request import (
    CascadeAnswer,
    FinishReason,
    Request,
    TokenLogprobs,
    TokenOutput,
    sooner,
)
from tandem.facts.serving import ANYBODY, Caller, Generator, ModelCard
from tandem.live.clock import NS_PER_S, now_ns
from tandem.live.mailbox import MOST_WAITING_VALUES
from tandem.observe.cascade_metrics import CascadeMetrics, Escalation
from tandem.policy.cascade import Confidence, ConfidenceFloor

# Tokens of an answer that are handed out together once it counts.
_TURN_TOKENS = 64
# With less than this left of a deadline nothing is begun.
_LEAST_S = 1e-3


class LocalGenerator(Generator, Observed, Protocol):
    """A generator in this process, which serves between `start` and `close` or `stop`."""

    async def start(self) -> None: ...

    def close(self) -> None:
        """Take no more requests; those still running end with an error."""
        ...

    async def stop(self) -> None: ...


@dataclass(slots=True)
class HeldAnswer:
    """The small model's answer so far. Log-probabilities are kept where the client wants them
    (`keeps_logprobs`); a token is one value, and so is each of these and each alternative."""

    keeps_logprobs: bool
    values: int = 0
    tokens: "array[int]" = field(default_factory=lambda: array("I"))
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    last: TokenOutput | None = None

    def add(self, output: TokenOutput) -> int:
        """Gives how many values it grew by."""
        values = len(output.tokens)
        self.tokens.extend(output.tokens)
        self.last = output
        if self.keeps_logprobs:
            self.logprobs += output.logprobs
            values += sum(1 + len(each.top) for each in output.logprobs)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
            values += sum(1 + len(each.top) for each in output.prompt_logprobs)
        self.values += values
        return values

    def outputs(self) -> Iterator[TokenOutput]:
        """All of it, a few tokens at a time; the end of it with the last ones."""
        last = self.last or TokenOutput(())
        answer = CascadeAnswer("small")
        for begin in range(0, max(1, len(self.tokens)), _TURN_TOKENS):
            end = begin + _TURN_TOKENS
            is_last = end >= len(self.tokens)
            yield TokenOutput(
                tuple(self.tokens[begin:end]),
                tuple(self.logprobs[begin:end]),
                finish_reason=last.finish_reason if is_last else None,
                stopped_by_token=last.stopped_by_token and is_last,
                cached_tokens=last.cached_tokens,
                degraded=last.degraded,
                cascade=answer,
                prompt_logprobs=self.prompt_logprobs if begin == 0 else None,
            )


class Deadline:
    """Of one request, which began when this was made. 0 seconds: there is none."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._began_ns = now_ns()

    @property
    def left_s(self) -> float:
        """What is left of it; 0 where there is none."""
        if not self._deadline_s:
            return 0.0
        return max(_LEAST_S, self._deadline_s - (now_ns() - self._began_ns) / NS_PER_S)

    @property
    def passed(self) -> bool:
        return bool(self._deadline_s) and self.left_s <= _LEAST_S

    def refusal(self) -> Overloaded:
        problem = f"no first token came within its deadline of {self._deadline_s:g} s"
        return Overloaded(problem, 1.0)


class Cascade:
    """The `Generator` port over a `small` and a `large` one with the same tokens, both of this
    cascade alone. It is served under the large model's card. What is held back of all answers of
    the small model is at most `most_held_values`."""

    def __init__(
        self,
        small: LocalGenerator,
        large: LocalGenerator,
        floor: ConfidenceFloor,
        most_held_values: int = MOST_WAITING_VALUES,
    ) -> None:
        self._small, self._large, self._floor = small, large, floor
        self._most_held_values = most_held_values
        self.held_values = 0
        self.metrics = CascadeMetrics(large.card.names[0])

    @property
    def card(self) -> ModelCard:
        return self._large.card

    @property
    def ready(self) -> bool:
        """Whether both models serve."""
        return self._small.ready and self._large.ready

    @property
    def failed(self) -> bool:
        """Whether the engine of one of the models died: then some requests have no answer."""
        return self._small.failed or self._large.failed

    @property
    def model_identity(self) -> str | None:
        """Of both models and of what decides between them."""
        small, large = self._small.model_identity, self._large.model_identity
        if small is None or large is None:
            return None
        floor = self._floor
        return f"cascade {small} {large} {floor.floor!r} {floor.window_tokens}"

    async def start(self) -> None:
        await self._small.start()
        await self._large.start()

    def close(self) -> None:
        """See `LocalGenerator`."""
        self._small.close()
        self._large.close()

    async def stop(self) -> None:
        try:
            await self._small.stop()
        finally:
            await self._large.stop()

    def satisfied(self, request_id: str) -> None:
        """See the port `Generator`. At most one of the two runs it; the other does not know it."""
        self._small.satisfied(request_id)
        self._large.satisfied(request_id)

    def service_class(self, caller: Caller) -> str:
        """See the port `Generator`."""
        return self._large.service_class(caller)

    def allowance(self, account: str) -> Allowance | None:
        """See the port `Generator`."""
        return self._large.allowance(account)

    def tools_called(self, caller: Caller, tools: Sequence[str]) -> None:
        """See the port `Generator`. Both have seen the session."""
        self._small.tools_called(caller, tools)
        self._large.tools_called(caller, tools)

    async def reset_prefix_cache(self, *, external: bool) -> None:
        """See the port `Generator`. That of both models."""
        await self._small.reset_prefix_cache(external=external)
        await self._large.reset_prefix_cache(external=external)

    async def overview(self, account: str | None, since_bin: int = 0) -> Overview:
        """See the port `Observed`: what the large model says, with both workers."""
        large = await self._large.overview(account, since_bin)
        small = await self._small.overview(account, since_bin)
        return msgspec.structs.replace(large, workers=(*small.workers, *large.workers))

    async def latest_requests(self, account: str | None, most: int) -> list[RequestLine]:
        """See the port `Observed`: of both models, in which a request has the same id."""
        lines = [
            *await self._large.latest_requests(account, most),
            *await self._small.latest_requests(account, most),
        ]
        return sorted(lines, key=lambda line: line.ago_s)[:most]

    async def request_details(self, account: str | None, name: str) -> list[RequestDetail]:
        """See the port `Observed`: the small model's first."""
        return [
            *await self._small.request_details(account, name),
            *await self._large.request_details(account, name),
        ]

    def metric_families(self) -> Iterable[MetricFamily]:
        """Those of each model under its own name, and those of the cascade."""
        return chain(
            self._large.metric_families(), self._small.metric_families(), self.metrics.families()
        )

    async def generate(
        self, request: Request, caller: Caller = ANYBODY
    ) -> AsyncGenerator[TokenOutput, None]:
        """See the port `Generator`. The first output comes when the small model has ended, or with
        the first token of the large one."""
        deadline = Deadline(sooner(request.deadline_s, caller.deadline_s))
        with self._holding(request) as held:
            escalation = await self._ask_small(request, caller, held, deadline)
            if escalation is None:
                self.metrics.answered(None)
                for output in held.outputs():
                    yield output
                return
        if deadline.passed:
            raise deadline.refusal()
        answer = CascadeAnswer("large", escalation.repeatable)
        request = replace(request, deadline_s=deadline.left_s)
        begun = False
        try:
            async with aclosing(
                self._large.generate(request, replace(caller, deadline_s=0.0))
            ) as outputs:
                async for output in outputs:
                    if not begun:
                        self.metrics.answered(escalation)
                    begun = True
                    yield replace(output, cascade=answer)
        except Overloaded as refusal:
            # That of the large model names what was left of the deadline, not the client's own.
            if begun or not deadline.passed:
                raise
            raise deadline.refusal() from refusal

    async def _ask_small(
        self, request: Request, caller: Caller, held: HeldAnswer, deadline: Deadline
    ) -> Escalation | None:
        """Fills `held` with an answer that counts (None), or gives the reason why the large model
        is to answer. Either way the request runs no more in the small one."""
        try:
            async with aclosing(self._small.generate(_scored(request), caller)) as outputs:
                escalation = await self._read(outputs, caller, held)
                if escalation is not None or held.last is None or not held.last.finish_reason:
                    # Enough is known: it counts as stopped, not as aborted.
                    self._small.satisfied(request.request_id)
        except InvalidRequest:
            # One that no model can run is refused by the large one.
            return Escalation.UNFIT
        except RequestFailed:
            return Escalation.FAILED
        except Overloaded:
            if deadline.passed:
                raise
            return Escalation.OVERLOAD
        if escalation is None and self._is_cut_short(request, held):
            return Escalation.UNFIT
        return escalation

    async def _read(
        self, outputs: AsyncGenerator[TokenOutput, None], caller: Caller, held: HeldAnswer
    ) -> Escalation | None:
        """Up to the end of the answer, the stop string that ends it, or the reason to escalate."""
        confidence = Confidence(self._floor)
        ends = caller.end_finder() if caller.end_finder is not None else None
        async for output in outputs:
            # One by one: how many come in one output depends on timing, and must not decide.
            for place, token in enumerate(output.tokens):
                if not confidence.add((output.logprobs[place].logprob,)):
                    return Escalation.CONFIDENCE
                if ends is not None and ends(token):
                    self._hold(held, _cut_after(output, place))
                    return None if confidence.end() else Escalation.CONFIDENCE
            self._hold(held, output)
            if self.held_values > self._most_held_values:
                return Escalation.OVERLOAD
        return None if confidence.end() else Escalation.CONFIDENCE

    def _is_cut_short(self, request: Request, held: HeldAnswer) -> bool:
        """Whether the answer ended with the small model's context, and the large one's goes on."""
        return (
            held.last is not None
            and held.last.finish_reason is FinishReason.LENGTH
            and len(held.tokens) < request.sampling.max_tokens
            and self._small.card.context_tokens < self._large.card.context_tokens
        )

    @contextmanager
    def _holding(self, request: Request) -> Iterator[HeldAnswer]:
        """A place for the small model's answer, given back at the end of the block."""
        held = HeldAnswer(keeps_logprobs=request.sampling.top_logprobs is not None)
        try:
            yield held
        finally:
            self.held_values -= held.values
            held.tokens, held.logprobs, held.prompt_logprobs = array("I"), [], None

    def _hold(self, held: HeldAnswer, output: TokenOutput) -> None:
        self.held_values += held.add(output)


def _scored(request: Request) -> Request:
    """The same request, whose tokens come with their log-probabilities: they change no token."""
    if request.sampling.top_logprobs is not None:
        return request
    return replace(request, sampling=replace(request.sampling, top_logprobs=0))


def _cut_after(output: TokenOutput, place: int) -> TokenOutput:
    """Without what follows the token at `place`, and thus without an end unless it is the last."""
    count = place + 1
    if count == len(output.tokens):
        return output
    return TokenOutput(
        output.tokens[:count],
        output.logprobs[:count],
        cached_tokens=output.cached_tokens,
        degraded=output.degraded,
        prompt_logprobs=output.prompt_logprobs,
    )
