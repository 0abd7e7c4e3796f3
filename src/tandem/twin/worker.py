"""One simulated worker: the real worker machine over an engine that only knows how long steps take.

Where the machine says that coming steps hold no decision, they are taken at one go (a leap); the
instants are those of the steps taken one by one.
"""

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from tandem.cluster.router.deaths import CLEARING_TOKENS
from tandem.cluster.router.request_state import failed_over
from tandem.cluster.worker.machine import WorkerConfig, WorkerMachine, load_of
from tandem.cost.step import StepShape
from tandem.facts.blocks import CacheRoot
from tandem.facts.steps import StepPlan, StepResult
from tandem.messages.router import LoadReported
from tandem.messages.worker import EmitTokens, RunStep, StepDone, WorkerEffect, WorkerEvent
from tandem.twin.scenario import Scenario, WorkerKind
from tandem.twin.step_recorder import StepRecorder
from tandem.twin.workload import VOCABULARY_TOKENS

# Steps of one leap at most: a leap that is cut short has computed instants in vain.
LEAP_STEPS = 24
# Below so many steps a leap costs more than it saves.
LEAST_LEAP_STEPS = 3

CACHE_ROOT = CacheRoot("twin", "", b"")


@dataclass(frozen=True, slots=True)
class Leapt:
    """`steps` steps landed at one go, each of which drew the tokens of `emission`."""

    emission: EmitTokens
    steps: int


SimulatedEffect = WorkerEffect | Leapt


@dataclass(slots=True)
class Flight:
    """A step under way: what it will draw for whom, and when it lands. `context_tokens` is what the
    rows attend to in all, when every row is a decode; it `opens` a sequence when it computes tokens
    that were known when that was placed."""

    step_id: int
    done_ns: int
    duration_ns: int
    request_ids: list[str]
    tokens: tuple[int, ...]
    context_tokens: int
    prefills: bool
    opens: bool


class SimulatedWorker:
    """`tell` an event, `catch_up` when `wake_ns` has come; both give the machine's effects but its
    steps, which happen in here."""

    def __init__(
        self, name: str, kind: WorkerKind, scenario: Scenario, steps: StepRecorder
    ) -> None:
        self.name = name
        self.kind = kind
        self._scenario = scenario
        self._steps = steps
        self.machine = WorkerMachine(_worker_config(kind, scenario))
        self._flights: deque[Flight] = deque()
        self._stage_free_ns = [0] * kind.cost.step_time.stages
        self._slots: list[str] = [""] * kind.max_sequences
        self._placed_tokens = [0] * kind.max_sequences
        # The instants of the coming landings when a leap is on, and how many of them it covers.
        self._leap: list[int] = []
        self._leap_steps = 0
        self._load: LoadReported | None = None

    @property
    def wake_ns(self) -> int | None:
        """When something happens in here by itself."""
        if self._leap_steps:
            return self._leap[self._leap_steps - 1]
        return self._flights[0].done_ns if self._flights else None

    @property
    def idle(self) -> bool:
        return self.machine.idle

    def tell(self, event: WorkerEvent, now_ns: int) -> list[SimulatedEffect]:
        effects = self._land_due(now_ns)
        self._leap_steps = 0
        effects += self._perform(self.machine.handle(event, now_ns), now_ns)
        self._look_ahead()
        return effects

    def catch_up(self, now_ns: int) -> list[SimulatedEffect]:
        """What has landed by now, before anything else that happens now."""
        if not self._flights or self._flights[0].done_ns > now_ns:
            return []
        effects = self._land_due(now_ns)
        self._look_ahead()
        return effects

    def freeze(self, duration_ns: int, now_ns: int) -> list[SimulatedEffect]:
        """Nothing moves in here for a while: every landing comes so much later."""
        effects = self._land_due(now_ns)
        self._leap_steps = 0
        for flight in self._flights:
            flight.done_ns += duration_ns
        self._stage_free_ns = [max(free, now_ns) + duration_ns for free in self._stage_free_ns]
        return effects

    def load(self, now_ns: int) -> LoadReported:
        """What a report sent now would say."""
        if self._load is None:
            self._load = load_of(self.name, self.machine)
        load = self._load
        if not self._leap_steps:
            return load
        steps = bisect_right(self._leap, now_ns, hi=self._leap_steps)
        return LoadReported(
            worker=load.worker,
            running_sequences=load.running_sequences,
            waiting_requests=load.waiting_requests,
            queued_prefill_tokens=load.queued_prefill_tokens,
            context_tokens=load.context_tokens + steps * len(self._flights[0].tokens),
            free_blocks=load.free_blocks,
        )

    def _land_due(self, now_ns: int) -> list[SimulatedEffect]:
        effects = self._settle(now_ns)
        while self._flights and self._flights[0].done_ns <= now_ns:
            flight = self._flights.popleft()
            assert flight.done_ns == now_ns
            self._steps.landed(self.name, flight.duration_ns, flight.prefills, 1)
            done = StepDone(StepResult(flight.step_id, flight.tokens))
            effects += self._perform(self.machine.handle(done, now_ns), now_ns)
        return effects

    def _settle(self, now_ns: int) -> list[SimulatedEffect]:
        """Take what the leap has covered up to now, and end it."""
        if not self._leap_steps:
            return []
        steps = bisect_right(self._leap, now_ns, hi=self._leap_steps)
        landed, coming = self._leap[:steps], self._leap[steps:]
        self._leap_steps = 0
        first = self._flights[0]
        if not steps:
            return []
        self._load = None
        started_ns = first.done_ns - first.duration_ns
        self.machine.fast_forward(steps, first.tokens)
        self._steps.leapt(self.name, first.request_ids, landed)
        self._steps.landed(self.name, landed[-1] - started_ns, False, steps)
        before_ns = landed[-1]
        for flight, done_ns in zip(self._flights, coming, strict=False):
            flight.step_id += steps
            flight.context_tokens += steps * len(flight.tokens)
            flight.duration_ns = done_ns - before_ns
            flight.done_ns = before_ns = done_ns
        self._stage_free_ns[0] = before_ns
        return [_emission(first, steps)]

    def _look_ahead(self) -> None:
        """Begin a leap where the machine knows its next steps."""
        if not self._scenario.leaps or not self._flights:
            return
        # A first token is news that others decide by: it is told when it is there.
        if any(flight.opens for flight in self._flights):
            return
        # So are the tokens by which a request is cleared of the deaths of its workers.
        if any(self._may_be_cleared(each) for each in self._flights[0].request_ids):
            return
        steps = min(LEAP_STEPS, self.machine.repeatable_steps())
        if steps < LEAST_LEAP_STEPS:
            return
        self._leap = [flight.done_ns for flight in self._flights]
        last = self._flights[-1]
        sequences, context_tokens = len(last.tokens), last.context_tokens
        decode_seconds = self.kind.cost.step_time.decode_seconds
        landing_ns = last.done_ns
        for _ in range(steps):
            context_tokens += sequences
            landing_ns += _nanoseconds(decode_seconds(sequences, context_tokens))
            self._leap.append(landing_ns)
        self._leap_steps = steps

    def _may_be_cleared(self, request_id: str) -> bool:
        sequence = self.machine.unfinished.get(request_id)
        if sequence is None or not failed_over(request_id):
            return False
        request = sequence.request
        known_tokens = len(request.prompt_tokens) + len(request.output_tokens)
        return len(sequence.tokens) - known_tokens < CLEARING_TOKENS

    def _perform(self, effects: list[WorkerEffect], now_ns: int) -> list[SimulatedEffect]:
        self._load = None
        others: list[SimulatedEffect] = []
        for effect in effects:
            if isinstance(effect, RunStep):
                self._launch(effect.plan, now_ns)
            else:
                if isinstance(effect, EmitTokens):
                    self._steps.drew(self.name, effect, now_ns)
                others.append(effect)
        return others

    def _launch(self, plan: StepPlan, now_ns: int) -> None:
        for placement in plan.placements:
            self._slots[placement.slot] = placement.request_id
            self._placed_tokens[placement.slot] = len(placement.tokens)
            self._steps.scheduled(placement.request_id, now_ns)
        chunks: list[tuple[int, int]] = []
        decodes = context_tokens = 0
        opens = False
        slots, starts, counts = plan.slots.tolist(), plan.starts.tolist(), plan.counts.tolist()
        request_ids = [self._slots[slot] for slot in slots]
        for slot, start, count in zip(slots, starts, counts, strict=True):
            if count > 1:
                chunks.append((start, count))
            else:
                decodes += 1
                context_tokens += start + 1
            if start < self._placed_tokens[slot]:
                opens = True
                self._steps.computes(self.name, self._slots[slot], (start, count))
        drawing = [
            request_id
            for request_id, samples in zip(request_ids, plan.samples.tolist(), strict=True)
            if samples
        ]
        tokens = tuple(self._steps.requests.token_of(request_id) for request_id in drawing)
        shape = StepShape(tuple(chunks), decodes, context_tokens, len(drawing))
        duration_ns = self._step_ns(shape)
        done_ns = now_ns
        for stage, free_ns in enumerate(self._stage_free_ns):
            done_ns = max(done_ns, free_ns) + duration_ns
            self._stage_free_ns[stage] = done_ns
        self._flights.append(
            Flight(
                step_id=plan.step_id,
                done_ns=done_ns,
                duration_ns=duration_ns,
                request_ids=drawing,
                tokens=tokens,
                context_tokens=context_tokens,
                prefills=bool(chunks),
                opens=opens,
            )
        )

    def _step_ns(self, shape: StepShape) -> int:
        step_time = self.kind.cost.step_time
        if not shape.chunks and shape.sampled_rows == shape.decode_sequences:
            seconds = step_time.decode_seconds(shape.decode_sequences, shape.decode_context_tokens)
        else:
            seconds = step_time.seconds(shape)
        return _nanoseconds(seconds)


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, at least one: a step takes time."""
    return max(1, round(seconds * 1e9))


def _emission(flight: Flight, steps: int) -> Leapt:
    count = len(flight.tokens)
    return Leapt(
        EmitTokens(
            request_ids=tuple(flight.request_ids),
            tokens=flight.tokens,
            finish_reasons=(None,) * count,
            stopped_by_token=(False,) * count,
            cached_tokens=(0,) * count,
        ),
        steps,
    )


def _worker_config(kind: WorkerKind, scenario: Scenario) -> WorkerConfig:
    return WorkerConfig(
        block_size=scenario.block_size,
        block_count=kind.block_count,
        context_tokens=min(scenario.context_tokens, kind.block_count * scenario.block_size),
        vocabulary_tokens=VOCABULARY_TOKENS,
        max_sequences=kind.max_sequences,
        batching=kind.batching,
        root=CACHE_ROOT,
        steps_in_flight=kind.steps_in_flight,
        pipeline_stages=kind.cost.step_time.stages,
        max_waiting=1 << 30,
    )
