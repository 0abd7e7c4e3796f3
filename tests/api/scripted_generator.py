"""A generator that says what a test tells it to, and remembers what was asked and what still runs.

It keeps the port's contract: end-of-sequence stops, max_tokens limits, closing frees.
"""

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field, replace

from prometheus_client.core import GaugeMetricFamily, Metric

from tandem.facts.errors import LeftOut
from tandem.facts.rate_limits import Allowance
from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput
from tandem.facts.serving import ANYBODY, Caller, ModelCard
from tandem.text.model import TextModel

PATIENCE_S = 20.0
CONTEXT_TOKENS = 512


@dataclass(slots=True)
class Script:
    """What to say next. `hold_after` tokens it says nothing more until it is closed or its deadline
    has passed, also where only the requests with the numbers `held` are; after `fail_after` tokens
    it raises `failure`. By number, `refusals` are raised at once, and `logprobs` are those of every
    token. Choices that are `left_out` are none; all others say that they are `degraded`."""

    answer: str = "hello world"
    answers: list[str] = field(default_factory=list)
    tokens_per_output: int = 1
    hold_after: int | None = None
    fail_after: int = 0
    failure: Exception | None = None
    cached_tokens: int = 0
    finish_reason: FinishReason = FinishReason.STOP
    model_identity: str | None = "scripted"
    degraded: str = ""
    left_out: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()
    refusals: dict[int, Exception] = field(default_factory=dict)
    logprobs: dict[int, float] = field(default_factory=dict)

    def holds(self, request: Request) -> bool:
        if self.hold_after is None:
            return False
        return not self.held or number_of(request) in self.held


def number_of(request: Request) -> int:
    """At the end of its id: which choice of the call it is."""
    return int(request.request_id.rpartition("-")[2])


class ScriptedGenerator:
    """One script for all requests; `answers` differ by the number at the end of the request id."""

    def __init__(self, text: TextModel) -> None:
        self.script = Script()
        self.ready = True
        self.failed = False
        self.requests: list[Request] = []
        self.callers: list[Caller] = []
        self.running: set[str] = set()
        self.satisfied_ids: list[str] = []
        self.allowances: dict[str, Allowance] = {}
        self.called_tools: list[tuple[str, tuple[str, ...]]] = []
        self.resets: list[bool] = []
        # Which of both was called, in order.
        self.endings: list[str] = []
        self._text = text
        self._changed = threading.Condition()
        self._card = ModelCard(
            names=("tiny", "org/tiny"),
            context_tokens=CONTEXT_TOKENS,
            vocabulary_tokens=text.tokenizer.vocabulary_tokens,
            end_token_ids=text.tokenizer.end_token_ids,
            created_s=1_700_000_000,
        )

    @property
    def card(self) -> ModelCard:
        return self._card

    @property
    def model_identity(self) -> str | None:
        return self.script.model_identity

    def tools_called(self, caller: Caller, tools: Sequence[str]) -> None:
        self.called_tools.append((caller.session, tuple(tools)))
        self.endings.append("tools_called")

    def satisfied(self, request_id: str) -> None:
        self.satisfied_ids.append(request_id)
        self.endings.append("satisfied")

    def service_class(self, caller: Caller) -> str:
        return caller.headers.get("x-tier", "")

    def allowance(self, account: str) -> Allowance | None:
        return self.allowances.get(account)

    async def reset_prefix_cache(self, *, external: bool) -> None:
        self.resets.append(external)

    def metric_families(self) -> list[Metric]:
        return [GaugeMetricFamily("up", "Always 1", value=1)]

    async def generate(
        self, request: Request, caller: Caller = ANYBODY
    ) -> AsyncGenerator[TokenOutput, None]:
        script = self.script
        with self._changed:
            self.requests.append(request)
            self.callers.append(caller)
            self.running.add(request.request_id)
            self._changed.notify_all()
        try:
            if number_of(request) in script.refusals:
                raise script.refusals[number_of(request)]
            if request.choice in script.left_out:
                raise LeftOut("no room", 0.0)
            for output in self._outputs(request, script):
                yield replace(output, degraded=script.degraded)
                await asyncio.sleep(0)
                if script.holds(request) and output.finish_reason is None:
                    await asyncio.sleep(request.deadline_s or math.inf)
                    yield TokenOutput((), finish_reason=FinishReason.DEADLINE)
                    return
        finally:
            with self._changed:
                self.running.remove(request.request_id)
                self._changed.notify_all()

    def wait_until_running(self, count: int) -> None:
        """Blocks the test until `count` sequences run; fails loudly if that never happens."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.running) == count, PATIENCE_S)

    def _outputs(self, request: Request, script: Script) -> Iterator[TokenOutput]:
        answer = script.answers[number_of(request)] if script.answers else script.answer
        tokens = list(self._text.tokenizer.encode(answer, add_special_tokens=False))
        stops = request.sampling.stop_token_ids
        tokens += [] if script.finish_reason is not FinishReason.STOP else list(stops[:1])
        return _with_prompt(request, self._cut(request, script, tokens))

    def _cut(self, request: Request, script: Script, tokens: list[int]) -> Iterator[TokenOutput]:
        limit = request.sampling.max_tokens
        ends = [place + 1 for place, t in enumerate(tokens) if t in request.sampling.stop_token_ids]
        tokens = tokens[: min([limit, *ends])]
        stopped = bool(ends) and len(tokens) == ends[0]
        if script.hold_after is not None and script.holds(request):
            yield self._output(request, tokens[: script.hold_after], script)
        for start in range(0, max(1, len(tokens)), script.tokens_per_output):
            if script.failure is not None and start >= script.fail_after:
                raise script.failure
            end = start + script.tokens_per_output
            output = self._output(request, tokens[start:end], script)
            if end < len(tokens):
                yield output
                continue
            reason = FinishReason.LENGTH if not stopped else script.finish_reason
            yield TokenOutput(output.tokens, output.logprobs, reason, stopped, output.cached_tokens)

    def _output(self, request: Request, tokens: list[int], script: Script) -> TokenOutput:
        wanted = request.sampling.top_logprobs
        logprobs = ()
        if wanted is not None:
            logprob = script.logprobs.get(number_of(request), -0.5)
            logprobs = tuple(
                TokenLogprobs(logprob, 1, tuple((other, -0.5 - other) for other in range(wanted)))
                for _ in tokens
            )
        return TokenOutput(tuple(tokens), logprobs, cached_tokens=script.cached_tokens)


def _with_prompt(request: Request, outputs: Iterator[TokenOutput]) -> Iterator[TokenOutput]:
    """Place p of the prompt has the log-probability -p / 4, whatever stands there, and rank 2."""
    wanted = request.sampling.prompt_logprobs
    if wanted is not None:
        top = tuple((other, -0.5 - other) for other in range(wanted))
        places = range(1, len(request.prompt_tokens))
        scores = tuple(TokenLogprobs(-place / 4, 2, top) for place in places)
        yield replace(next(outputs), prompt_logprobs=scores)
    yield from outputs
