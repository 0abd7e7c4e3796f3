"""What a worker does next: takes requests and landed steps, gives plans, tokens and block news.

Knows no clock, no engine and no client: events in, effects out. The engine runs plans strictly in
order, so blocks freed here may be reused by the very next plan.
"""

from collections import deque
from dataclasses import dataclass

from tandem.facts.blocks import CacheRoot
from tandem.facts.errors import InvalidRequest, Overloaded, PromptTooLong, TandemError
from tandem.facts.messages import (
    EmitTokens,
    Refuse,
    ReportBlocks,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    StepDone,
    WorkerEffect,
    WorkerEvent,
)
from tandem.facts.request import FinishReason, Request, TokenLogprobs
from tandem.facts.steps import StepResult
from tandem.machines.plan_builder import PlanBuilder
from tandem.machines.pool import BlockPool
from tandem.machines.residents import Residents
from tandem.machines.sequence import Phase, Sequence
from tandem.machines.step_planner import StepPlanner
from tandem.policy.batching import TokenBudgetBatching


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """`steps_in_flight` is how many steps may wait behind the one that runs (0 or 1); with 1 the
    next step is decided before the tokens of this one are known."""

    block_size: int
    block_count: int
    context_tokens: int
    vocabulary_tokens: int
    max_sequences: int
    batching: TokenBudgetBatching
    root: CacheRoot
    steps_in_flight: int = 1
    prefix_caching: bool = True
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        # One sequence alone must always fit, or it would be preempted for ever.
        assert self.block_size * self.block_count >= self.context_tokens
        assert self.batching.max_batched_tokens >= self.max_sequences > 0
        assert self.steps_in_flight in (0, 1)


class WorkerMachine:
    """The scheduler of one engine. `handle(event, now_ns)` gives the effects to perform."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        pool = BlockPool(config.block_count)
        self.residents = Residents(config.max_sequences, pool, config.block_size)
        self.planner = StepPlanner(self.residents, config.batching, config.prefix_caching)
        self._unfinished: dict[str, Sequence] = {}
        self._flights: deque[PlanBuilder] = deque()
        self._arrivals = 0
        self._steps = 0

    def next_wakeup(self) -> int | None:
        """A worker acts on events only."""
        return None

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is in flight."""
        return not self._unfinished and not self._flights

    def handle(self, event: WorkerEvent, now_ns: int) -> list[WorkerEffect]:
        """Take one event; the effects are to be performed in order."""
        effects: list[WorkerEffect] = []
        match event:
            case RequestsArrived(requests):
                effects += self._arrive(requests, now_ns)
            case RequestsAborted(request_ids):
                for request_id in request_ids:
                    if sequence := self._unfinished.get(request_id):
                        self._end(sequence)
            case StepDone(result):
                effects += self._land(result)
        effects += self._launch()
        if changes := self.residents.pool.take_changes():
            effects.append(ReportBlocks(changes))
        return effects

    def audit(self) -> None:
        """Assert that nothing is lost: every block, slot and sequence is where it says it is."""
        self.residents.audit()
        assert len(self._unfinished) == len(self.residents.running) + len(self.planner.waiting)

    def _arrive(self, requests: tuple[Request, ...], now_ns: int) -> list[WorkerEffect]:
        refusals: list[WorkerEffect] = []
        for request in requests:
            if error := self._objection(request):
                refusals.append(Refuse(request.request_id, error))
                continue
            rank = (request.priority, now_ns, self._arrivals)
            self._arrivals += 1
            root = self.config.root.hash(request.cache_salt)
            sequence = Sequence(request, rank, root, self.config.context_tokens)
            self._unfinished[request.request_id] = sequence
            self.planner.enqueue(sequence)
        return refusals

    def _objection(self, request: Request) -> TandemError | None:
        known_tokens = len(request.prompt_tokens) + len(request.output_tokens)
        if not request.prompt_tokens:
            return InvalidRequest("prompt", "is empty")
        if known_tokens >= self.config.context_tokens:
            return PromptTooLong(known_tokens, self.config.context_tokens)
        if len(request.output_tokens) >= request.sampling.max_tokens:
            return InvalidRequest("output_tokens", "already reach max_tokens")
        tokens = request.prompt_tokens + request.output_tokens
        if min(tokens) < 0 or max(tokens) >= self.config.vocabulary_tokens:
            return InvalidRequest("prompt", "holds a token id outside the vocabulary")
        vocabulary = range(self.config.vocabulary_tokens)
        if any(token not in vocabulary for token, _ in request.sampling.logit_bias):
            return InvalidRequest("logit_bias", "names a token id outside the vocabulary")
        if any(token not in vocabulary for token in request.sampling.stop_token_ids):
            return InvalidRequest("stop_token_ids", "names a token id outside the vocabulary")
        if request.request_id in self._unfinished:
            return InvalidRequest("request_id", f"{request.request_id!r} is already running")
        if len(self.planner.waiting) >= self.config.max_waiting:
            return Overloaded(f"{len(self.planner.waiting)} requests are waiting already", 1.0)
        return None

    def _end(self, sequence: Sequence) -> None:
        del self._unfinished[sequence.request.request_id]
        if sequence.phase is Phase.RUNNING:
            self.residents.leave(sequence, Phase.ENDED)
        else:
            self.planner.waiting.remove(sequence)
            sequence.stop(Phase.ENDED)

    def _launch(self) -> list[WorkerEffect]:
        effects: list[WorkerEffect] = []
        while len(self._flights) <= self.config.steps_in_flight:
            builder = self.planner.plan(self._steps)
            if builder is None:
                break
            self._steps += 1
            self._flights.append(builder)
            effects.append(RunStep(builder.build()))
        return effects

    def _land(self, result: StepResult) -> list[WorkerEffect]:
        builder = self._flights.popleft()
        assert builder.step_id == result.step_id
        emission = _Emission()
        drawn = 0
        for sequence, computed_tokens, draws in builder.rows:
            sequence.flights -= 1
            token_index = drawn
            if draws:
                drawn += 1
                sequence.unseen -= 1
            if sequence.phase is Phase.ENDED:
                continue
            # A sequence preempted since has given its blocks away, but its token is as good as
            # any: it was drawn from KV that was whole when the step ran.
            if sequence.phase is Phase.RUNNING:
                self.residents.confirm(sequence, computed_tokens, self.config.prefix_caching)
            if draws and emission.take(sequence, result, token_index):
                self._end(sequence)
        return emission.effects()


class _Emission:
    """The columns of one `EmitTokens` while a landed step is read."""

    def __init__(self) -> None:
        self.sequences: list[Sequence] = []
        self.tokens: list[int] = []
        self.reasons: list[FinishReason | None] = []
        self.stopped: list[bool] = []
        self.logprobs: list[TokenLogprobs | None] = []

    def take(self, sequence: Sequence, result: StepResult, token_index: int) -> bool:
        """Give the sequence its token. Whether it ends with it."""
        token = result.tokens[token_index]
        reason, stopped = sequence.append(token)
        self.sequences.append(sequence)
        self.tokens.append(token)
        self.reasons.append(reason)
        self.stopped.append(stopped)
        if result.logprobs:
            self.logprobs.append(result.logprobs[token_index])
        return reason is not None

    def effects(self) -> list[WorkerEffect]:
        if not self.sequences:
            return []
        return [
            EmitTokens(
                request_ids=tuple(sequence.request.request_id for sequence in self.sequences),
                tokens=tuple(self.tokens),
                finish_reasons=tuple(self.reasons),
                stopped_by_token=tuple(self.stopped),
                cached_tokens=tuple(sequence.cached_tokens for sequence in self.sequences),
                logprobs=tuple(self.logprobs),
            )
        ]
