"""A worker machine over a ledger engine, driven step by step, and the workloads that laws draw."""

from collections import deque
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.facts.blocks import CacheRoot
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan
from tandem.messages.worker import (
    CancelImport,
    EmitTokens,
    ImportBlocks,
    ImportDone,
    KvComputed,
    PrefillsArrived,
    Refuse,
    ReportBlocks,
    RequestsArrived,
    RunStep,
    StepDone,
)
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.speculation import Speculation
from tests.cluster.ledger_engine import ADAPTERS, VOCABULARY, LedgerEngine, answer, score_at

CONTEXT_TOKENS = 40
SPECULATIONS = [None, None, Speculation(3), Speculation(1, adaptive=False), Speculation(5, False)]


@dataclass
class LedgerWorker:
    """Steps run, and land, when `land` is called: as late as an engine may run them. `imports` are
    asked for and not done, `computed` is the last report of KV for another worker, `drawing` are
    the requests whose tokens the steps under way draw."""

    machine: WorkerMachine
    engine: LedgerEngine
    landing: deque = field(default_factory=deque)
    drawing: deque = field(default_factory=deque)
    answers: dict = field(default_factory=dict)
    finished: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)
    imports: dict = field(default_factory=dict)
    cancelled: set = field(default_factory=set)
    computed: dict = field(default_factory=dict)
    cached_hashes: set = field(default_factory=set)
    now_ns: int = 0
    owners: dict = field(default_factory=dict)
    to_score: dict = field(default_factory=dict)

    @classmethod
    def of(cls, config: WorkerConfig) -> "LedgerWorker":
        engine = LedgerEngine(config.block_size, config.block_count, config.max_sequences)
        return cls(WorkerMachine(config), engine)

    @property
    def running(self) -> list[str]:
        return [sequence.request.request_id for sequence in self.machine.sequences.running]

    def arrive(self, *wanted: Request) -> list:
        return self.handle(RequestsArrived(wanted))

    def handle(self, event) -> list:
        self.now_ns += 1
        if isinstance(event, RequestsArrived | PrefillsArrived):
            for each in event.requests:
                if each.sampling.prompt_logprobs is not None and not each.output_tokens:
                    self.to_score[each.request_id] = each.prompt_tokens
        effects = self.machine.handle(event, self.now_ns)
        for effect in effects:
            self._perform(effect)
        assert len(self.landing) <= self.machine.config.max_steps_in_flight
        if self.machine.config.pipeline_stages > 1:
            drawing = [name for names in self.drawing for name in names]
            assert len(set(drawing)) == len(drawing)
        self.machine.audit()
        # A guess is at what follows the newest token: no guess while another is being drawn.
        for sequence in self.machine.sequences.running:
            assert not (sequence.unseen and sequence.proposal)
        pool = self.machine.sequences.pool
        assert len(self.cached_hashes) == pool.cached_blocks
        assert all(pool.holds(digest) for digest in self.cached_hashes)
        return effects

    def _perform(self, effect) -> None:
        match effect:
            case RunStep(plan):
                assert plan.batched_tokens <= self.machine.config.batching.max_batched_tokens
                self.landing.append(plan)
                self.drawing.append(self._draws(plan))
            case EmitTokens():
                self._emit(effect)
            case Refuse(request_id, error):
                self.refused[request_id] = error
            case ReportBlocks(changes):
                self.cached_hashes -= set(changes.removed)
                self.cached_hashes |= set(changes.stored)
            case ImportBlocks(request_id):
                assert request_id not in self.imports
                self.imports[request_id] = effect
                # Whoever reads what was not brought reads nonsense.
                self.engine.spoil(effect.blocks)
            case CancelImport(request_id):
                assert request_id in self.imports
                self.cancelled.add(request_id)
            case KvComputed():
                for request_id, tokens, blocks in zip(
                    effect.request_ids, effect.tokens, effect.blocks, strict=True
                ):
                    self.computed[request_id] = (tokens, blocks)

    def _draws(self, plan: StepPlan) -> list[str]:
        """Whose tokens the plan draws."""
        self.owners |= {placement.slot: placement.request_id for placement in plan.placements}
        return [self.owners[int(slot)] for slot in plan.slots[plan.samples]]

    def _emit(self, effect: EmitTokens) -> None:
        scores = effect.prompt_logprobs or (None,) * len(effect.tokens)
        for request_id, token, reason, scored in zip(
            effect.request_ids, effect.tokens, effect.finish_reasons, scores, strict=True
        ):
            # All of them once, with the first token.
            prompt = self.to_score.pop(request_id, None)
            expected = prompt and tuple(score_at(prompt, at) for at in range(1, len(prompt)))
            assert scored == expected
            assert request_id not in self.finished
            self.answers.setdefault(request_id, []).append(token)
            if reason:
                self.finished[request_id] = reason

    def land(self) -> list:
        self.drawing.popleft()
        return self.handle(StepDone(self.engine.run(self.landing.popleft())))

    def finish_import(self, request_id: str, kv: list[bytes], output_tokens=()) -> list:
        """The import ends with the KV of the tokens that `kv` has; what lies beyond is nonsense.
        `output_tokens` were drawn elsewhere in the meantime."""
        wanted = self.imports.pop(request_id)
        self.cancelled.discard(request_id)
        tokens = min(len(kv), wanted.end_token)
        self.engine.spoil(wanted.blocks)
        self.engine.write(wanted.blocks, kv[wanted.first_token : tokens])
        return self.handle(ImportDone(request_id, tokens, tuple(output_tokens)))

    def drain(self) -> None:
        for _ in range(20_000):
            if not self.landing:
                break
            self.land()
        self.assert_empty()

    def assert_empty(self) -> None:
        assert self.machine.idle
        assert self.machine.sequences.pool.free_blocks == self.machine.config.block_count
        assert len(self.machine.sequences.free_slots) == self.machine.config.max_sequences


def small_worker(**changes) -> LedgerWorker:
    config = {
        "block_size": 4,
        "block_count": 20,
        "context_tokens": CONTEXT_TOKENS,
        "vocabulary_tokens": VOCABULARY,
        "max_sequences": 2,
        "batching": TokenBudgetBatching(16),
        "root": CacheRoot("m", "r", b""),
        "steps_in_flight": 0,
    } | changes
    return LedgerWorker.of(WorkerConfig(**config))


def request(name: str, priority: int = 0, prompt=(1, 2, 3), **sampling) -> Request:
    parameters = SamplingParameters(**({"max_tokens": 12} | sampling))
    return Request(name, tuple(prompt), parameters, priority=priority)


def check_answer(one: Request, got: list[int], *, whole: bool = True) -> None:
    """A request gets what it would get alone; the first part of that where it was cut off."""
    expected = answer(one.prompt_tokens, one.sampling, CONTEXT_TOKENS)
    assert got == (expected if whole else expected[: len(got)])


@st.composite
def configs(draw, **changes) -> WorkerConfig:
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    least_blocks = -(-CONTEXT_TOKENS // block_size)
    max_sequences = draw(st.integers(1, 6))
    config = WorkerConfig(
        block_size=block_size,
        block_count=draw(st.integers(least_blocks, 3 * least_blocks)),
        context_tokens=CONTEXT_TOKENS,
        vocabulary_tokens=VOCABULARY,
        max_sequences=max_sequences,
        batching=TokenBudgetBatching(
            draw(st.integers(max_sequences, 48)),
            draw(st.sampled_from([0, 1, 3, 7])),
            draw(st.sampled_from([0, 0, 2, 9])),
        ),
        root=CacheRoot("model", "revision", b"layout"),
        steps_in_flight=draw(st.integers(0, 1)),
        prefix_caching=draw(st.booleans()),
        pipeline_stages=draw(st.sampled_from([1, 1, 1, 2, 3, 4])),
        speculation=draw(st.sampled_from(SPECULATIONS)),
        max_adapters=draw(st.integers(0, 2)),
    )
    return replace(config, **changes)


@st.composite
def requests(draw) -> Request:
    # Prompts are cuts of few long texts, so that prefixes are shared often and at odd lengths.
    text = draw(st.sampled_from([(1, 2, 3, 4, 5) * 8, (1, 2, 3, 4, 6) * 8, (7,) * 40]))
    stops = draw(st.sampled_from([(), (0,), (0, 1, 2)]))
    max_tokens = draw(st.integers(1, 20))
    return Request(
        request_id="",
        prompt_tokens=text[: draw(st.integers(1, CONTEXT_TOKENS - 1))],
        sampling=SamplingParameters(
            seed=draw(st.integers(0, 3)),
            max_tokens=max_tokens,
            min_tokens=draw(st.integers(0, min(3, max_tokens))),
            stop_token_ids=stops,
            prompt_logprobs=draw(st.sampled_from([None, None, 0])),
        ),
        priority=draw(st.integers(0, 2)),
        cache_salt=draw(st.sampled_from(["", "tenant"])),
        account=draw(st.sampled_from(["", "tenant"])),
        adapter=draw(st.sampled_from(ADAPTERS)),
    )
