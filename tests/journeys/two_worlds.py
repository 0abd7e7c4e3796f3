"""One worker machine over the real engine, and over the simulated one. Events and effects are
recorded."""

from collections import deque
from dataclasses import asdict, dataclass, field, replace

import torch
from msgspec import structs

from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine
from tandem.cost.fitted import FittedStepTime
from tandem.engine.engine import Engine
from tandem.engine.slots import SlotShape
from tandem.facts.blocks import BlockChanges, CacheRoot
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.steps import StepPlan, StepResult
from tandem.kernels.faces import choose_kernels
from tandem.messages.router import RequestSubmitted
from tandem.messages.worker import (
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
from tandem.policy.batching import TokenBudgetBatching
from tandem.report.record import RunRecord, WorkerRecord
from tandem.twin.engine import SimulatedEngine
from tandem.twin.machine_configs import CACHE_ROOT
from tandem.twin.recorder import Recorder
from tandem.twin.step_recorder import StepRecorder
from tandem.twin.workload import VOCABULARY_TOKENS
from tests.engine.tiny import CONTEXT_TOKENS, CPU, VOCABULARY, Arithmetic, tiny_decoder
from tests.models.paging import poisoned_store

ARITHMETIC = Arithmetic(choose_kernels(CPU, torch.float32, allow_native=True)[0], "float32")
DECODER = tiny_decoder(ARITHMETIC)
STEP_TIME = FittedStepTime(1e-3, 1e-5, 1e-7, 1e-4, 1e-6, 1e-5)


@dataclass(frozen=True)
class WorkerShape:
    """How the worker batches and stores, in both worlds."""

    block_size: int
    block_count: int
    max_sequences: int = 4
    batched_tokens: int = 24
    chunk_tokens: int = 0
    steps_in_flight: int = 1

    def config(self) -> WorkerConfig:
        """Of the machine over the real engine."""
        return WorkerConfig(
            block_size=self.block_size,
            block_count=self.block_count,
            context_tokens=CONTEXT_TOKENS,
            vocabulary_tokens=VOCABULARY,
            max_sequences=self.max_sequences,
            batching=TokenBudgetBatching(self.batched_tokens, self.chunk_tokens),
            root=CacheRoot("tiny", "0", b"float32"),
            steps_in_flight=self.steps_in_flight,
        )

    def simulated(self) -> "RecordingMachine":
        """The machine over the simulated engine."""
        config = replace(self.config(), vocabulary_tokens=VOCABULARY_TOKENS, root=CACHE_ROOT)
        return RecordingMachine(config)

    def engine(self) -> Engine:
        slots = SlotShape(self.max_sequences, CONTEXT_TOKENS, self.block_size)
        kv = poisoned_store(DECODER, self.block_count, block_size=self.block_size)
        return Engine(DECODER, kv, slots)


class RecordingMachine(WorkerMachine):
    """The real machine, whose events and effects are recorded as text while they happen."""

    def __init__(self, config: WorkerConfig) -> None:
        super().__init__(config)
        self.journal: list[dict] = []
        self.effects: list[list[tuple]] = []
        self.plans: dict[int, tuple] = {}
        self.changes: list[tuple] = []
        self.cached_tokens = self.chunked = self.removed = 0
        self._names: dict[bytes, int] = {}

    def handle(self, event: WorkerEvent, now_ns: int) -> list[WorkerEffect]:
        effects = super().handle(event, now_ns)
        self.audit()
        entry = written(event) | {"now_ns": now_ns, "effects": repr(effects)}
        self.journal.append(entry)
        self.effects.append([self._note(effect) for effect in effects])
        return effects

    def _note(self, effect: WorkerEffect) -> tuple:
        """The effect without what only a model knows: which tokens it draws."""
        match effect:
            case RunStep(plan):
                note = plan_as_text(plan)
                self.plans[plan.step_id] = note
                self.chunked += bool(((plan.starts > 0) & (plan.counts > 1)).any())
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
        """Hashes by the order in which they first appeared: they cover drawn tokens."""
        return (
            changes.sequence_number,
            *(
                tuple(self._names.setdefault(digest, len(self._names)) for digest in digests)
                for digests in (changes.removed, changes.stored, changes.stored_parents)
            ),
        )


def plan_as_text(plan: StepPlan) -> tuple:
    arrays = (plan.slots, plan.starts, plan.counts, plan.samples)
    tables = (plan.table_slots, plan.table_indices, plan.table_blocks)
    placements = tuple(
        (p.slot, p.request_id, tuple(p.tokens[: p.prompt_tokens]), len(p.tokens), p.sampling)
        for p in plan.placements
    )
    return (plan.step_id, placements, *(tuple(a.tolist()) for a in (*arrays, *tables)))


@dataclass
class LiveWorker:
    """The machine over the real engine; a step lands when `land` is called."""

    machine: RecordingMachine
    engine: Engine
    landing: deque[StepResult] = field(default_factory=deque)
    now_ns: int = 0

    def handle(self, event: WorkerEvent) -> None:
        self.now_ns += 1
        for effect in self.machine.handle(event, self.now_ns):
            if isinstance(effect, RunStep):
                self.landing.append(self.engine.run(effect.plan))

    def land(self) -> bool:
        if self.landing:
            self.handle(StepDone(self.landing.popleft()))
        return bool(self.landing)


@dataclass
class TwinWorker:
    """The machine over the simulated engine. `emitted` are the ids that each landed step drew
    for, `event_ns` the instants of the events."""

    machine: RecordingMachine
    recorder: StepRecorder
    fast_forward: bool
    now_ns: int = 0
    event_ns: list[int] = field(default_factory=list)
    emitted: list[tuple[str, ...]] = field(default_factory=list)
    skipped_steps: int = 0

    def __post_init__(self) -> None:
        self.recorder.worker(WorkerRecord("w", "both", "tiny", 1))
        self.engine = SimulatedEngine(
            "w",
            STEP_TIME,
            self.machine,
            self.recorder,
            lambda: self.now_ns,
            fast_forward=self.fast_forward,
        )

    def handle(self, event: WorkerEvent) -> None:
        self.event_ns.append(self.now_ns)
        if isinstance(event, RequestsArrived):
            for request in event.requests:
                self.recorder.requests.submitted(RequestSubmitted(request, 1.0), self.now_ns)
        self._land_due()
        self._take_effects(self.machine.handle(event, self.now_ns))
        self.engine.look_ahead()

    def land(self) -> bool:
        if self.engine.wake_ns is not None:
            self.now_ns = self.engine.wake_ns
            self._land_due()
            self.engine.look_ahead()
        return self.engine.wake_ns is not None

    def handle_at(self, event: WorkerEvent, now_ns: int) -> None:
        while self.engine.wake_ns is not None and self.engine.wake_ns <= now_ns:
            self.land()
        self.now_ns = now_ns
        self.handle(event)

    def _land_due(self) -> None:
        if taken := self.engine.take_steps(self.now_ns):
            self.machine.fast_forward(taken.steps, taken.emission.tokens, taken.landed_ns[-1])
            self.skipped_steps += taken.steps
            self.emitted += [taken.emission.request_ids] * taken.steps
        while (done := self.engine.landed(self.now_ns)) is not None:
            self._take_effects(self.machine.handle(done, self.now_ns))

    def _take_effects(self, effects: list) -> None:
        for effect in effects:
            if isinstance(effect, RunStep):
                self.engine.submit(effect.plan)
            elif isinstance(effect, EmitTokens):
                self.emitted.append(effect.request_ids)


def live_worker(worker: WorkerShape) -> LiveWorker:
    return LiveWorker(RecordingMachine(worker.config()), worker.engine())


def twin_worker(worker: WorkerShape, *, fast_forward: bool) -> TwinWorker:
    run = RunRecord({})
    recorder = StepRecorder(run, Recorder(run))
    return TwinWorker(worker.simulated(), recorder, fast_forward)


def written(event: WorkerEvent) -> dict:
    """An event as a line of the journal."""
    match event:
        case RequestsArrived(requests):
            written = [asdict(each) | {"session": each.session.hex()} for each in requests]
            return {"arrived": written}
        case RequestsAborted(request_ids):
            return {"aborted": list(request_ids)}
        case StepDone(result):
            return {"landed": structs.asdict(result)}
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
    known["session"] = bytes.fromhex(fields["session"])
    return Request(**known | {"sampling": SamplingParameters(**sampling)})


def _tuples(value):
    return tuple(_tuples(part) for part in value) if isinstance(value, list) else value
