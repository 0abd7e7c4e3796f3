"""The twin beside the real engine: same requests at the same step boundaries, same decisions; and a
journal of a live worker, replayed."""

import asyncio
import json
from collections import deque
from dataclasses import asdict, dataclass, field, replace

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.engine.engine import Engine
from tandem.engine.slots import SlotShape
from tandem.facts.blocks import BlockChanges, CacheRoot
from tandem.facts.fleet_messages import RequestSubmitted
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
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import ModelCard
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import choose_kernels
from tandem.live.local_worker import LocalWorker
from tandem.machines.worker import WorkerConfig, WorkerMachine
from tandem.policy.admission.registry import ADMISSIONS
from tandem.policy.batching import TokenBudgetBatching
from tandem.policy.dispatch.registry import DISPATCHES
from tandem.policy.eviction.registry import EVICTIONS
from tandem.policy.routing.registry import ROUTINGS
from tandem.twin.record import RunRecord, WorkerRecord
from tandem.twin.recorder import Recorder
from tandem.twin.scenario import Policies, Scenario, WorkerKind
from tandem.twin.worker import Leapt, SimulatedWorker
from tests.engine.tiny import CONTEXT_TOKENS, CPU, VOCABULARY, Arithmetic, store, tiny_decoder

ARITHMETIC = Arithmetic(choose_kernels(CPU, torch.float32, allow_native=True)[0], "float32")
DECODER = tiny_decoder(ARITHMETIC)
STEP_TIME = FittedStepTime(1e-3, 1e-5, 1e-7, 1e-4, 1e-6, 1e-5)
# Prompts share ids below; the last id of each is its own, so that no two answers, which the twin
# cannot know, fill the same block.
SHARED_IDS = 20


@dataclass(frozen=True)
class Worker:
    """How the worker batches and stores, in both worlds."""

    block_size: int
    block_count: int
    max_sequences: int = 4
    batched_tokens: int = 24
    chunk_tokens: int = 0
    steps_in_flight: int = 1

    def simulated(self, *, leaps: bool) -> SimulatedWorker:
        kind = WorkerKind(
            cost=WorkerCost(STEP_TIME, 1.0, self.batched_tokens),
            device="tiny",
            devices=1,
            block_count=self.block_count,
            max_sequences=self.max_sequences,
            batching=TokenBudgetBatching(self.batched_tokens, self.chunk_tokens),
            steps_in_flight=self.steps_in_flight,
        )
        policies = Policies(
            ROUTINGS["cost"](0), ADMISSIONS["none"](), DISPATCHES["remote"](), EVICTIONS["lru"]
        )
        scenario = Scenario((), policies, self.block_size, CONTEXT_TOKENS, leaps=leaps)
        recorder = Recorder(RunRecord({}))
        recorder.worker(WorkerRecord("w", "both", "tiny", 1))
        worker = SimulatedWorker("w", kind, scenario, recorder)
        worker.machine = Overheard(worker.machine.config)
        return worker

    def engine(self) -> Engine:
        slots = SlotShape(self.max_sequences, CONTEXT_TOKENS, self.block_size)
        return Engine(DECODER, store(ARITHMETIC, self.block_size, self.block_count), slots)


class Overheard(WorkerMachine):
    """The real machine; what it is told and says is written down, as text, when it is said."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config)
        self.journal: list[dict] = []
        self.said: list[list[tuple]] = []
        self.plans: dict[int, tuple] = {}
        self.changes: list[tuple] = []
        self.cached_tokens = self.chunked = self.removed = 0
        self._names: dict[bytes, int] = {}

    def handle(self, event: WorkerEvent, now_ns: int) -> list[WorkerEffect]:
        effects = super().handle(event, now_ns)
        self.audit()
        entry = written(event) | {"now_ns": now_ns, "effects": repr(effects)}
        self.journal.append(entry)
        self.said.append([self._note(effect) for effect in effects])
        return effects

    def _note(self, effect: WorkerEffect) -> tuple:
        """The effect without what only a model knows: which tokens it draws."""
        match effect:
            case RunStep(plan):
                note = plan_in_words(plan)
                self.plans[plan.step_id] = note
                self.chunked += any(s and c > 1 for s, c in zip(plan.starts, plan.counts))
                return note
            case EmitTokens():
                self.cached_tokens += sum(effect.cached_tokens)
                return ("emit", effect.request_ids, effect.finish_reasons, effect.cached_tokens)
            case ReportBlocks(changes):
                self.changes.append(self._renamed(changes))
                self.removed += len(changes.removed)
                return self.changes[-1]
            case Refuse(request_id, error):
                return ("refuse", request_id, str(error))
        raise AssertionError(effect)

    def _renamed(self, changes: BlockChanges) -> tuple:
        """Hashes by the order in which they were first heard of: they cover drawn tokens."""
        return (
            changes.sequence_number,
            *(
                tuple(self._names.setdefault(digest, len(self._names)) for digest in digests)
                for digests in (changes.removed, changes.stored, changes.stored_parents)
            ),
        )


def plan_in_words(plan: StepPlan) -> tuple:
    arrays = (plan.slots, plan.starts, plan.counts, plan.samples)
    tables = (plan.table_slots, plan.table_indices, plan.table_blocks)
    placements = tuple(
        (p.slot, p.request_id, tuple(p.tokens[: p.prompt_tokens]), len(p.tokens), p.sampling)
        for p in plan.placements
    )
    return (plan.step_id, placements, *(tuple(a.tolist()) for a in (*arrays, *tables)))


@dataclass
class LiveWorld:
    """The machine over the real engine. Steps land when told to, as late as they may."""

    machine: Overheard
    engine: Engine
    landing: deque[StepResult] = field(default_factory=deque)
    now_ns: int = 0

    def tell(self, event: WorkerEvent) -> None:
        self.now_ns += 1
        for effect in self.machine.handle(event, self.now_ns):
            if isinstance(effect, RunStep):
                self.landing.append(self.engine.run(effect.plan))

    def land(self) -> bool:
        if self.landing:
            self.tell(StepDone(self.landing.popleft()))
        return bool(self.landing)


@dataclass
class TwinWorld:
    """The simulated worker by itself. `emitted` are the ids that each landed step drew for."""

    worker: SimulatedWorker
    recorder: Recorder
    now_ns: int = 0
    told_ns: list[int] = field(default_factory=list)
    emitted: list[tuple[str, ...]] = field(default_factory=list)
    leapt_steps: int = 0

    def tell(self, event: WorkerEvent) -> None:
        self.told_ns.append(self.now_ns)
        if isinstance(event, RequestsArrived):
            for request in event.requests:
                self.recorder.submitted(RequestSubmitted(request, 1.0), self.now_ns)
        self._hear(self.worker.tell(event, self.now_ns))

    def land(self) -> bool:
        if self.worker.wake_ns is not None:
            self.now_ns = self.worker.wake_ns
            self._hear(self.worker.land(self.now_ns))
        return self.worker.wake_ns is not None

    def tell_at(self, event: WorkerEvent, now_ns: int) -> None:
        while self.worker.wake_ns is not None and self.worker.wake_ns <= now_ns:
            self.land()
        self.now_ns = now_ns
        self.tell(event)

    def _hear(self, effects: list) -> None:
        for effect in effects:
            if isinstance(effect, Leapt):
                self.leapt_steps += effect.steps
                self.emitted += [effect.emission.request_ids] * effect.steps
            elif isinstance(effect, EmitTokens):
                self.emitted.append(effect.request_ids)


# What happens: events, and before each how many steps land.
Story = list[tuple[int, WorkerEvent]]


def live_world(worker: Worker, config: WorkerConfig) -> LiveWorld:
    root = CacheRoot("tiny", "0", b"float32")
    config = replace(config, vocabulary_tokens=VOCABULARY, root=root)
    return LiveWorld(Overheard(config), worker.engine())


def twin_world(worker: Worker, *, leaps: bool) -> TwinWorld:
    simulated = worker.simulated(leaps=leaps)
    return TwinWorld(simulated, simulated._recorder)


def play(story: Story, world: LiveWorld | TwinWorld) -> None:
    for landings, event in story:
        for _ in range(landings):
            world.land()
        world.tell(event)
    while world.land():
        pass


def check(worker: Worker, story: Story) -> tuple[LiveWorld, TwinWorld]:
    """Both worlds, and the twin with leaps, through the same story."""
    twin, leaping = twin_world(worker, leaps=False), twin_world(worker, leaps=True)
    live = live_world(worker, twin.worker.machine.config)
    play(story, live)
    play(story, twin)
    assert twin.worker.machine.said == live.machine.said
    assert live.machine.idle

    for (_, event), now_ns in zip(story, twin.told_ns, strict=True):
        leaping.tell_at(event, now_ns)
    while leaping.land():
        pass
    assert leaping.now_ns == twin.now_ns
    assert leaping.emitted == twin.emitted
    assert leaping.worker.machine.changes == live.machine.changes
    planned = leaping.worker.machine.plans
    for step_id, plan in live.machine.plans.items():
        if step_id in planned:
            assert planned[step_id] == plan
        else:
            assert_repeats(plan)
    assert planned.keys() <= live.machine.plans.keys()
    return live, leaping


def assert_repeats(plan: tuple) -> None:
    """Only decodes, with the blocks that they have."""
    _, placements, _, _, counts, samples, *tables = plan
    assert not placements and not any(tables)
    assert set(counts) == {1} and all(samples)


def request(index: int, shared_tokens: int, max_tokens: int, priority: int = 0) -> Request:
    """The shared text up to somewhere, and one token of its own."""
    prompt = (*(position % SHARED_IDS for position in range(shared_tokens)), SHARED_IDS + index)
    return Request(
        f"r{index}",
        prompt,
        SamplingParameters(seed=index, max_tokens=max_tokens),
        priority=priority,
        cache_salt="tenant" if index % 5 == 4 else "",
    )


@st.composite
def workers(draw) -> Worker:
    block_size = draw(st.sampled_from([4, 8, 16]))
    least_blocks = -(-CONTEXT_TOKENS // block_size)
    max_sequences = draw(st.integers(1, 5))
    return Worker(
        block_size,
        draw(st.integers(least_blocks, 2 * least_blocks)),
        max_sequences,
        draw(st.integers(max_sequences, 32)),
        draw(st.sampled_from([0, 0, 5])),
        draw(st.integers(0, 1)),
    )


@st.composite
def stories(draw) -> Story:
    story: Story = []
    asked: list[str] = []
    for _ in range(draw(st.integers(1, 8))):
        landings = draw(st.integers(0, 12))
        if asked and draw(st.integers(0, 3)) == 0:
            story.append((landings, RequestsAborted((draw(st.sampled_from(asked)),))))
            continue
        batch = tuple(
            request(
                len(asked) + index,
                draw(st.integers(0, CONTEXT_TOKENS - 10)),
                draw(st.integers(1, 30)),
                draw(st.integers(0, 2)),
            )
            for index in range(draw(st.integers(1, 4)))
        )
        asked += [asking.request_id for asking in batch]
        story.append((landings, RequestsArrived(batch)))
    return story


@settings(max_examples=60)
@given(workers(), stories())
def test_twin_and_engine_take_the_same_steps(worker, story):
    check(worker, story)


def test_all_that_a_scheduler_does_is_the_same_in_both_worlds():
    worker = Worker(block_size=8, block_count=8, max_sequences=3, batched_tokens=12)
    story: Story = [
        (0, RequestsArrived((request(0, 20, 24, 2), request(1, 6, 24, 1)))),
        (3, RequestsArrived((request(2, 24, 12, 1), request(3, 3, 30, 2)))),
        (5, RequestsArrived((request(4, 22, 8, 0), request(5, 24, 20, 2)))),
        (9, RequestsAborted(("r3", "r1"))),
        (20, RequestsArrived((request(6, 24, 20, 1),))),
    ]
    live, leaping = check(worker, story)
    machine = live.machine
    assert machine.planner.preemptions
    assert machine.removed and machine.cached_tokens and machine.chunked
    assert leaping.leapt_steps


def written(event: WorkerEvent) -> dict:
    """An event as a line of the journal."""
    match event:
        case RequestsArrived(requests):
            return {"arrived": [asdict(arrived) for arrived in requests]}
        case RequestsAborted(request_ids):
            return {"aborted": list(request_ids)}
        case StepDone(result):
            return {"landed": asdict(result)}
    raise AssertionError(event)


def read(entry: dict) -> WorkerEvent:
    if "arrived" in entry:
        return RequestsArrived(tuple(_request(fields) for fields in entry["arrived"]))
    if "aborted" in entry:
        return RequestsAborted(tuple(entry["aborted"]))
    landed = {name: _tuples(value) for name, value in entry["landed"].items()}
    return StepDone(StepResult(**landed))


def _request(fields: dict) -> Request:
    known = {name: _tuples(value) for name, value in fields.items()}
    sampling = {name: _tuples(value) for name, value in fields["sampling"].items()}
    return Request(**known | {"sampling": SamplingParameters(**sampling)})


def _tuples(value):
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value


async def live_run(worker: Worker, machine: Overheard) -> None:
    """Clients of one real worker: some come at once, some later, some leave in mid-stream."""
    card = ModelCard(("tiny",), CONTEXT_TOKENS, VOCABULARY, (), 0)
    local = LocalWorker(card, machine, worker.engine())

    async def client(index: int, tokens_wanted: int) -> int:
        taken = 0
        stream = local.generate(request(index, 5 * index % 24, 20, index % 3))
        async for output in stream:
            taken += len(output.tokens)
            if taken >= tokens_wanted:
                break
        await stream.aclose()
        return taken

    await local.start()
    early = [asyncio.create_task(client(index, 99)) for index in range(6)]
    leaver = asyncio.create_task(client(6, 3))
    assert await early[0] == 20
    late = [asyncio.create_task(client(index, 99)) for index in range(7, 12)]
    taken = await asyncio.gather(*early, *late)
    assert taken == [20] * 11 and await leaver < 20
    await local.stop()


def test_a_journal_of_a_live_worker_replays_to_equal_effects(tmp_path):
    worker = Worker(block_size=8, block_count=9, max_sequences=4, batched_tokens=16)
    config = replace(worker.simulated(leaps=False).machine.config, vocabulary_tokens=VOCABULARY)
    machine = Overheard(config)
    asyncio.run(live_run(worker, machine))
    journal = tmp_path / "journal.jsonl"
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in machine.journal))

    fresh = WorkerMachine(config)
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    for entry in entries:
        assert repr(fresh.handle(read(entry), entry["now_ns"])) == entry["effects"]
    fresh.audit()
    assert sum("aborted" in entry for entry in entries) == 1
    assert sum("RunStep" in entry["effects"] for entry in entries) > 20
