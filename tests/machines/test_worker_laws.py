"""Laws of the worker machine: whatever happens around it, a request gets its own answer, and
every block, slot and sequence is accounted for."""

from collections import deque
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.blocks import CacheRoot
from tandem.facts.messages import (
    EmitTokens,
    Refuse,
    ReportBlocks,
    RequestsAborted,
    RequestsArrived,
    RunStep,
    StepDone,
)
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.machines.worker import WorkerConfig, WorkerMachine
from tandem.policy.batching import TokenBudgetBatching
from tests.machines.ledger_engine import VOCABULARY, LedgerEngine, answer

CONTEXT_TOKENS = 40


@dataclass
class World:
    """Drives a machine over a ledger engine; steps land when `land` is called."""

    machine: WorkerMachine
    engine: LedgerEngine
    landing: deque = field(default_factory=deque)
    answers: dict = field(default_factory=dict)
    finished: dict = field(default_factory=dict)
    refused: dict = field(default_factory=dict)
    cached_hashes: set = field(default_factory=set)
    now_ns: int = 0

    def tell(self, event) -> None:
        self.now_ns += 1
        for effect in self.machine.handle(event, self.now_ns):
            match effect:
                case RunStep(plan):
                    assert plan.batched_tokens <= self.machine.config.batching.max_batched_tokens
                    self.landing.append(self.engine.run(plan))
                case EmitTokens():
                    self._emit(effect)
                case Refuse(request_id, error):
                    self.refused[request_id] = error
                case ReportBlocks(changes):
                    self.cached_hashes -= set(changes.removed)
                    self.cached_hashes |= set(changes.stored)
        assert len(self.landing) <= self.machine.config.steps_in_flight + 1
        self.machine.audit()
        held = self.machine.residents.pool
        assert len(self.cached_hashes) == held.cached_blocks
        assert all(held.holds(digest) for digest in self.cached_hashes)

    def _emit(self, effect: EmitTokens) -> None:
        for request_id, token, reason in zip(
            effect.request_ids, effect.tokens, effect.finish_reasons, strict=True
        ):
            assert request_id not in self.finished
            self.answers.setdefault(request_id, []).append(token)
            if reason:
                self.finished[request_id] = reason

    def land(self) -> None:
        self.tell(StepDone(self.landing.popleft()))

    def drain(self) -> None:
        for _ in range(20_000):
            if not self.landing:
                break
            self.land()
        assert self.machine.idle
        assert self.machine.residents.pool.free_blocks == self.machine.config.block_count


@st.composite
def configs(draw) -> WorkerConfig:
    block_size = draw(st.sampled_from([1, 2, 4, 8]))
    least_blocks = -(-CONTEXT_TOKENS // block_size)
    max_sequences = draw(st.integers(1, 6))
    return WorkerConfig(
        block_size=block_size,
        block_count=draw(st.integers(least_blocks, 3 * least_blocks)),
        context_tokens=CONTEXT_TOKENS,
        vocabulary_tokens=VOCABULARY,
        max_sequences=max_sequences,
        batching=TokenBudgetBatching(
            draw(st.integers(max_sequences, 48)), draw(st.sampled_from([0, 1, 3, 7]))
        ),
        root=CacheRoot("model", "revision", b"layout"),
        steps_in_flight=draw(st.integers(0, 1)),
        prefix_caching=draw(st.booleans()),
    )


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
        ),
        priority=draw(st.integers(0, 2)),
        cache_salt=draw(st.sampled_from(["", "tenant"])),
    )


def named(request: Request, request_id: str, **changes) -> Request:
    fields = {name: getattr(request, name) for name in Request.__slots__}
    return Request(**(fields | {"request_id": request_id} | changes))


@settings(max_examples=300, deadline=None)
@given(configs(), st.lists(requests(), min_size=1, max_size=10), st.data())
def test_any_mix_of_arrivals_and_aborts_gives_each_request_its_own_answer(config, wanted, data):
    world = World(
        WorkerMachine(config),
        LedgerEngine(config.block_size, config.block_count, config.max_sequences),
    )
    asked: dict[str, Request] = {}
    aborted: set[str] = set()
    for index, request in enumerate(wanted):
        copies = data.draw(st.integers(1, 3))
        batch = tuple(named(request, f"{index}-{copy}") for copy in range(copies))
        asked |= {request.request_id: request for request in batch}
        world.tell(RequestsArrived(batch))
        for _ in range(data.draw(st.integers(0, 6))):
            if world.landing:
                world.land()
        if data.draw(st.integers(0, 4)) == 0:
            gone = data.draw(st.sampled_from(sorted(asked)))
            if gone not in world.finished:
                aborted.add(gone)
            world.tell(RequestsAborted((gone,)))
    world.drain()
    assert not world.refused
    for request_id, request in asked.items():
        expected = answer(request.prompt_tokens, request.sampling, CONTEXT_TOKENS)
        got = world.answers.get(request_id, [])
        if request_id in aborted:
            assert got == expected[: len(got)]
        else:
            assert got == expected
            assert request_id in world.finished


@settings(max_examples=100, deadline=None)
@given(configs(), requests(), st.data())
def test_a_request_resumed_from_any_token_goes_on_the_same(config, request_, data):
    expected = answer(request_.prompt_tokens, request_.sampling, CONTEXT_TOKENS)
    kept = data.draw(st.integers(0, len(expected) - 1))
    world = World(
        WorkerMachine(config),
        LedgerEngine(config.block_size, config.block_count, config.max_sequences),
    )
    resumed = named(request_, "resumed", output_tokens=tuple(expected[:kept]))
    world.tell(RequestsArrived((resumed,)))
    world.drain()
    assert expected[:kept] + world.answers["resumed"] == expected


@settings(max_examples=60, deadline=None)
@given(configs(), st.lists(requests(), min_size=2, max_size=6), st.integers(1, 10**15))
def test_shifting_all_instants_changes_no_effect(config, wanted, shift_ns):
    def effects(offset_ns: int) -> list:
        machine = WorkerMachine(config)
        engine = LedgerEngine(config.block_size, config.block_count, config.max_sequences)
        batch = tuple(named(request, str(index)) for index, request in enumerate(wanted))
        todo, seen = deque([RequestsArrived(batch)]), []
        while todo:
            for effect in machine.handle(todo.popleft(), offset_ns + len(seen)):
                if isinstance(effect, RunStep):
                    seen.append(repr(effect))
                    todo.append(StepDone(engine.run(effect.plan)))
                else:
                    seen.append(effect)
        return seen

    assert effects(0) == effects(shift_ns)
