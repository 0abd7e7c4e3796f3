"""A gang of samples, run over the port `Generator` as `policy/scaling` decides: several requests
with one prompt, one budget, and one answer.

Owns the samples until one has won. What is no longer needed is cancelled at once; closing its
stream frees its blocks.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import msgspec

from tandem.api.access_log import AnswerRecord
from tandem.api.app_context import AppContext
from tandem.api.choice import ChoiceDelta, ChoiceReader, Presentation, UsageMeter
from tandem.api.choice_deltas import choice_deltas
from tandem.api.clock_and_entropy import monotonic_s
from tandem.api.degradation import Degradation
from tandem.api.responses import ScalingReport, ScalingSamples, ScalingTokens, Usage
from tandem.api.scaling_request import Judge, Scaling, verdict_sampling
from tandem.api.whole_response import HeldResponse
from tandem.facts.errors import InvalidRequest, Overloaded, TandemError
from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput, sooner
from tandem.facts.serving import Caller
from tandem.policy.scaling.answers import canonical_json
from tandem.policy.scaling.contract import (
    Method,
    Sample,
    SampleState,
    ScalingDecision,
    StopReason,
)
from tandem.policy.scaling.policies import decide
from tandem.policy.scaling.tally import vote_counts
from tandem.text.tool_calls import CallsSoFar

# Deltas of a sample are joined up to so many tokens: each becomes an event of a stream.
_JOINED_TOKENS = 64
# What a kept token, character or alternative takes, about; of the text of a call that is kept for
# follow-ups, what its objects take.
_TOKEN_BYTES = 64
_CHAR_BYTES = 4
_ALTERNATIVE_BYTES = 130
_KEPT_BYTES = 4
# How an answer that the deadline ended is shown.
_CUT = ("length", "deadline")
# The deadline of a request for which no time is left.
_SHORTEST_S = 1e-3


@dataclass(frozen=True, slots=True)
class GangResult:
    """The winner's deltas, as those of choice 0, and what all of it took."""

    deltas: Sequence[ChoiceDelta]
    usage: Usage
    report: ScalingReport


@dataclass(slots=True)
class SampleRun:
    """A sample that was started. Its tokens are read by `reader` once its prompt is known."""

    number: int
    request_id: str
    reader: ChoiceReader | None = None
    deltas: list[ChoiceDelta] = field(default_factory=list)
    tokens: int = 0
    logprob_sum: float = 0.0
    logprobs: int = 0
    verdict: float | None = None
    is_judged: bool = False
    state: SampleState = SampleState.RUNNING
    answer: str | None = None

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def is_cut(self) -> bool:
        """Whether the deadline ended it."""
        last = self.deltas[-1] if self.deltas else None
        return last is not None and (last.finish_reason, last.stop_reason) == _CUT

    @property
    def mean_probability(self) -> float:
        """The geometric mean of its tokens' probabilities; 0 without any."""
        return math.exp(self.logprob_sum / self.logprobs) if self.logprobs else 0.0

    def add_delta(self, delta: ChoiceDelta, *, keeps_logprobs: bool) -> None:
        """The delta, without log-probabilities that nobody asked to see."""
        self.tokens += len(delta.tokens)
        self.logprob_sum += sum(chosen.logprob for _, chosen in delta.shown)
        self.logprobs += len(delta.shown)
        if not keeps_logprobs:
            delta.shown = ()
        delta.choice = 0
        last = self.deltas[-1] if self.deltas else None
        if last is None or len(last.tokens) + len(delta.tokens) > _JOINED_TOKENS:
            self.deltas.append(delta)
            return
        last.text += delta.text
        last.reasoning += delta.reasoning
        last.tokens += delta.tokens
        last.shown = [*last.shown, *delta.shown]
        last.tool_calls += delta.tool_calls
        last.finish_reason, last.stop_reason = delta.finish_reason, delta.stop_reason


class Gang:
    """Use it for one call. `request` is the first sample; what is kept until the winner is known is
    counted in `held`, what it uses in its meter, which is that of `record` from now on.

    The first sample stands for the call in the caller's session, as one turn of it; all other
    requests belong to none. The deadline is that of the whole answer: each request gets what is
    left of it.
    """

    def __init__(
        self,
        context: AppContext,
        scaling: Scaling,
        request: Request,
        presentation: Presentation,
        caller: Caller,
        held: HeldResponse,
        degradation: Degradation,
        record: AnswerRecord | None = None,
    ) -> None:
        self._context, self._scaling, self._plan = context, scaling, scaling.plan
        deadline_s = sooner(request.deadline_s, caller.deadline_s)
        self._due_s = monotonic_s() + deadline_s if deadline_s else math.inf
        self._request, self._presentation = request, presentation
        self._caller = replace(caller, deadline_s=0.0)
        self._others_caller = replace(self._caller, session="", pause_s=None, pin_s=0.0)
        self._held, self._degradation, self._record = held, degradation, record
        self._alternatives = 1 + (request.sampling.top_logprobs or 0)
        self._stem = request.request_id.rpartition("-")[0]
        self._meter = UsageMeter([len(request.prompt_tokens)], self._plan.samples, degradation)
        if record is not None:
            record.meter = self._meter
        self._runs: list[SampleRun] = []
        self._streams: dict[int, AsyncGenerator[ChoiceDelta, None]] = {}
        self._waiting: dict[int, asyncio.Future[ChoiceDelta]] = {}
        self._verdict_tokens = 0
        self._spent_tokens = 0
        self._refusal: TandemError | None = None

    async def run(self) -> GangResult:
        """Returns once the winner is known. Raises `TandemError` where no sample could run, or
        one failed for another reason than want of room or time."""
        self._held.grow(_KEPT_BYTES * self._scaling.follow_up_bytes)
        try:
            decision = self._decide()
            while decision.winner is None:
                for _ in range(decision.start):
                    self._start()
                await self._advance()
                decision = self._decide()
            # Whatever still runs has done its part: it counts as stopped, not as aborted.
            for number in self._streams:
                self._context.generator.satisfied(self._runs[number].request_id)
        finally:
            await self._end_streams()
        if self._refusal is not None and not any(run.deltas for run in self._runs):
            raise self._refusal
        assert decision.winner is not None
        winner = self._runs[decision.winner]
        deltas = self._ended_deltas(winner, decision)
        if winner.reader is not None and deltas[-1].finish_reason == "tool_calls":
            self._context.generator.tools_called(self._caller, winner.reader.called_tools)
        if self._record is not None and deltas[-1].finish_reason is not None:
            self._record.note_finish(0, deltas[-1].finish_reason)
            self._record.note_content(0, [token for each in deltas for token in each.tokens])
        return GangResult(deltas, self._meter.usage(), self._report(winner, decision))

    def _decide(self) -> ScalingDecision:
        samples = [Sample(run.state, run.answer, self._score(run) or 0.0) for run in self._runs]
        is_late = self._left_s() <= 0 or any(run.is_cut for run in self._runs)
        return decide(self._plan, samples, self._spent_tokens, is_late=is_late)

    def _left_s(self) -> float:
        """Of the deadline; it may have passed."""
        return self._due_s - monotonic_s()

    def _score(self, run: SampleRun) -> float | None:
        if not self._plan.scored or run.state is not SampleState.FINISHED:
            return None
        return run.mean_probability if self._scaling.judge is None else run.verdict

    def _start(self) -> None:
        number = len(self._runs)
        run = SampleRun(number, f"{self._stem}-{number}")
        self._runs.append(run)
        stream = self._streams[number] = self._sample_deltas(run)
        self._waiting[number] = asyncio.ensure_future(anext(stream))

    async def _advance(self) -> None:
        """Reads on until a sample has ended, or the budget is spent."""
        budget_tokens = self._plan.budget_tokens or math.inf
        running = len(self._streams)
        while len(self._streams) == running and self._spent_tokens < budget_tokens:
            await asyncio.wait(self._waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            # In the order of the samples, so that equal timing gives equal answers.
            for number in sorted(n for n, task in self._waiting.items() if task.done()):
                await self._take(self._runs[number], self._waiting.pop(number))

    async def _take(self, run: SampleRun, task: "asyncio.Future[ChoiceDelta]") -> None:
        try:
            delta = task.result()
        except StopAsyncIteration:
            del self._streams[run.number]
            if run.is_cut:
                # It has no vote, like those that a budget stops.
                return
            run.state = SampleState.FINISHED
            run.answer = self._answer_of(run)
            # Many may end in one turn, and each takes a millisecond or two to read.
            await asyncio.sleep(0)
        except (Overloaded, InvalidRequest) as error:
            # A sample that has no room, or a round whose prompt has grown too long.
            if isinstance(error, InvalidRequest) and not run.number:
                raise
            del self._streams[run.number]
            run.state, run.deltas, self._refusal = SampleState.LOST, [], error
        else:
            self._count(run, delta)
            stream = self._streams[run.number]
            self._waiting[run.number] = asyncio.ensure_future(anext(stream))

    def _count(self, run: SampleRun, delta: ChoiceDelta) -> None:
        self._meter.count_delta(delta)
        self._spent_tokens += len(delta.tokens)
        if run.is_judged:
            self._verdict_tokens += len(delta.tokens)
            return
        kept_bytes = _TOKEN_BYTES * len(delta.tokens) + _CHAR_BYTES * len(delta.text)
        if self._scaling.shows_logprobs:
            kept_bytes += _ALTERNATIVE_BYTES * self._alternatives * len(delta.shown)
        self._held.grow(kept_bytes)
        if self._record is not None and delta.tokens:
            self._record.note_tokens(run.number, len(delta.tokens))
        run.add_delta(delta, keeps_logprobs=self._scaling.shows_logprobs)

    async def _sample_deltas(self, run: SampleRun) -> AsyncGenerator[ChoiceDelta, None]:
        """One sample from its prompt to its score. The deltas of a verdict count tokens alone."""
        request, choice = self._sample_request(run), run.number
        if self._plan.method is Method.RE_QUERY and run.number:
            before = self._runs[run.number - 1]
            request, choice = await self._follow_up(request, before.text, self._scaling.ask)
        run.reader = ChoiceReader(choice, self._context.text, self._presentation)
        lookup = self._context.no_cache_use().look_up(self._timed(request))
        caller = self._others_caller if run.number else self._caller
        deltas = choice_deltas(lookup, run.reader, caller, self._degradation)
        async with aclosing(deltas):
            async for delta in deltas:
                yield delta
        if self._scaling.judge is not None and not run.is_cut:
            verdict = self._verdict_deltas(run, request, self._scaling.judge)
            async with aclosing(verdict):
                async for delta in verdict:
                    yield delta

    async def _verdict_deltas(
        self, run: SampleRun, request: Request, judge: Judge
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """Has the sample that `request` made judged. One that is too long to be judged, or finds no
        room, has the least score."""
        run.is_judged, run.verdict = True, 0.0
        run.request_id = f"{self._stem}-{self._plan.samples + run.number}"
        sampling = verdict_sampling(request.sampling)
        request = replace(request, request_id=run.request_id, sampling=sampling)
        with contextlib.suppress(InvalidRequest, Overloaded):
            request, choice = await self._follow_up(request, run.text, judge.prompt)
            timed, caller = self._timed(request), self._others_caller
            outputs = self._context.generator.generate(timed, caller)
            async with aclosing(outputs):
                async for output in outputs:
                    if output.logprobs:
                        run.verdict = self._yes_share(output.tokens[0], output.logprobs[0], judge)
                    cached_tokens = output.cached_tokens
                    yield ChoiceDelta(choice, tokens=output.tokens, cached_tokens=cached_tokens)
                    if output.finish_reason is not None:
                        return

    def _sample_request(self, run: SampleRun) -> Request:
        """Its tokens fit into what is left of the budget, and its seed is its own."""
        sampling = self._request.sampling
        max_tokens = sampling.max_tokens
        if self._plan.budget_tokens is not None:
            max_tokens = max(1, min(max_tokens, self._plan.budget_tokens - self._spent_tokens))
        sampling = replace(
            sampling,
            seed=sampling.seed_of_choice(run.number),
            max_tokens=max_tokens,
            min_tokens=min(sampling.min_tokens, max_tokens),
        )
        return replace(self._request, request_id=run.request_id, sampling=sampling)

    def _timed(self, request: Request) -> Request:
        """With what is left of the deadline; something is, for 0 would be no deadline."""
        if self._due_s == math.inf:
            return request
        return replace(request, deadline_s=max(_SHORTEST_S, self._left_s()))

    async def _follow_up(self, request: Request, answer: str, ask: str) -> tuple[Request, int]:
        """The request with the prompt that asks about an answer, and the choice that its tokens are
        counted as. Raises `InvalidRequest` for a prompt that is too long."""
        follow_up, first_prompt = self._scaling.follow_up, self._request.prompt_tokens
        assert follow_up is not None
        size = self._scaling.follow_up_bytes + len(answer) + len(ask)
        prompt = await self._context.intake.run_in_thread(
            size, lambda: follow_up(first_prompt, answer, ask), self._caller.account
        )
        room_tokens = self._context.generator.card.context_tokens - len(prompt)
        if room_tokens < 1:
            raise InvalidRequest("scaling", "has no room for a further round in the context")
        max_tokens = min(request.sampling.max_tokens, room_tokens)
        min_tokens = min(request.sampling.min_tokens, max_tokens)
        sampling = replace(request.sampling, max_tokens=max_tokens, min_tokens=min_tokens)
        choice = self._meter.add_prompt(len(prompt))
        return replace(request, prompt_tokens=prompt, sampling=sampling), choice

    def _yes_share(self, token: int, chosen: TokenLogprobs, judge: Judge) -> float:
        """The probability of the judge's yes among its yes and no: of all likely tokens that are
        one of the words or its beginning."""
        likely: Mapping[int, float] = dict(chosen.top) | {token: chosen.logprob}
        yes = no = 0.0
        for each, logprob in likely.items():
            word = self._context.text.token_bytes.bytes_of(each).decode("utf-8", "replace")
            word = word.strip().casefold()
            begins_yes = bool(word) and judge.yes.startswith(word)
            begins_no = bool(word) and judge.no.startswith(word)
            yes += math.exp(logprob) if begins_yes and not begins_no else 0.0
            no += math.exp(logprob) if begins_no and not begins_yes else 0.0
        return yes / (yes + no) if yes + no else 0.0

    def _answer_of(self, run: SampleRun) -> str | None:
        """What it votes for: the tools that it calls, else what is read out of its text."""
        made = CallsSoFar()
        for delta in run.deltas:
            for part in delta.tool_calls:
                made.add(part)
        calls = made.calls()
        if not calls:
            return self._scaling.read_answer(run.text)
        return "\n".join(f"{call.name} {canonical_json(call.arguments)}" for call in calls)

    async def _end_streams(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)
        for stream in self._streams.values():
            await stream.aclose()

    def _report(self, winner: SampleRun, decision: ScalingDecision) -> ScalingReport:
        assert decision.stopped_by is not None
        states = [run.state for run in self._runs]
        samples = [Sample(run.state, run.answer) for run in self._runs]
        of_samples = sum(run.tokens for run in self._runs)
        scores = [self._score(run) for run in self._runs]
        return ScalingReport(
            method=self._plan.method.value,
            answer=winner.answer,
            votes=dict(vote_counts(samples)) if self._plan.votes else {},
            winner=winner.number,
            stopped_by=decision.stopped_by.value,
            decided_early=decision.stopped_by in (StopReason.VOTE, StopReason.CONFIDENCE)
            and (SampleState.RUNNING in states or len(states) < self._plan.samples),
            samples=ScalingSamples(
                started=len(states),
                finished=states.count(SampleState.FINISHED),
                cancelled=states.count(SampleState.RUNNING),
                refused=states.count(SampleState.LOST),
            ),
            tokens=ScalingTokens(
                answer=winner.tokens, samples=of_samples, verifier=self._verdict_tokens
            ),
            scores=scores if self._plan.scored else msgspec.UNSET,
        )

    def _ended_deltas(self, winner: SampleRun, decision: ScalingDecision) -> Sequence[ChoiceDelta]:
        """Those of the winner, the last with a finish reason also where the gang stopped first."""
        if not winner.deltas or winner.deltas[-1].finish_reason is None:
            text = self._context.text
            reader = winner.reader or ChoiceReader(0, text, self._presentation)
            is_late = decision.stopped_by is StopReason.DEADLINE
            reason = FinishReason.DEADLINE if is_late else FinishReason.LENGTH
            rest = reader.delta_of(TokenOutput((), finish_reason=reason))
            winner.add_delta(rest, keeps_logprobs=self._scaling.shows_logprobs)
        return winner.deltas
