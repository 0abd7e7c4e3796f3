"""The engine of a simulated worker: knows only how long steps take, and what they draw.

Where the worker machine says that coming steps hold no decision, they are taken at one go (fast
forward); the instants are those of the steps taken one by one.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable

from msgspec import Struct

from tandem.cluster.router.deaths import CLEARING_TOKENS
from tandem.cluster.router.request_state import failed_over
from tandem.cluster.worker.machine import WorkerMachine
from tandem.cost.worker import NO_SERVING_COST, ServingCost, StepShape, StepTime
from tandem.facts.steps import StepPlan, StepResult
from tandem.messages.worker import EmitTokens, StepDone
from tandem.twin.block_contents import BlockContents
from tandem.twin.drafts import DraftOutcome, SimulatedDrafts
from tandem.twin.shared_cores import SharedCores
from tandem.twin.step_recorder import StepRecorder

# Of the steps that are taken at one go, the instants of so many are computed at a time: where that
# is cut short, the rest were computed in vain.
STEPS_AHEAD = 24
# Fewer steps cost more at one go than one by one.
LEAST_STEPS = 3


class StepsTaken(Struct, frozen=True):
    """Steps that landed at these instants, each of which drew the tokens of `emission`."""

    emission: EmitTokens
    landed_ns: list[int]

    @property
    def steps(self) -> int:
        return len(self.landed_ns)


class InFlightStep(Struct):
    """A step under way: what it will draw for whom, and when it lands. `context_tokens` is what the
    rows attend to in all, when every row is a decode; it `opens` a sequence when it computes tokens
    that were known when that was placed. `drafts` are what comes of drafts, where there may be
    some."""

    step_id: int
    done_ns: int
    duration_ns: int
    request_ids: list[str]
    tokens: tuple[int, ...]
    context_tokens: int
    prefills: bool
    opens: bool
    drafts: DraftOutcome | None = None


class SimulatedEngine:
    """Runs the plans of `machine`. Before the machine gets any event of an instant, whoever
    drives it gives it what has landed by then: first `take_steps`, then each `landed`; and
    afterwards has the engine `look_ahead`. Steps take what the step time lists over `speed`."""

    def __init__(
        self,
        name: str,
        step_time: StepTime,
        machine: WorkerMachine,
        steps: StepRecorder,
        clock: Callable[[], int],
        *,
        fast_forward: bool = True,
        contents: BlockContents | None = None,
        drafts: SimulatedDrafts | None = None,
        serving: ServingCost = NO_SERVING_COST,
        cores: SharedCores | None = None,
        paced: Callable[[], object] = lambda: None,
    ) -> None:
        # A worker whose steps wait for others' has one stage.
        assert cores is None or step_time.stages == 1
        self.name = name
        self.speed = 1.0
        self._step_time = step_time
        self._machine = machine
        self._steps = steps
        self._clock = clock
        self._fast_forward = fast_forward and contents is None
        self._contents = contents
        self._drafts = drafts
        self._plans: deque[StepPlan] = deque()
        self._in_flight: deque[InFlightStep] = deque()
        self._stage_free_ns = [0] * step_time.stages
        self._cold_ns, self._cold_after_ns = (
            round(part * 1e9) for part in (serving.cold_s, serving.cold_after_s)
        )
        # The cores that its steps share with those of other workers, how many of them compute now,
        # the pace of the first step in flight, and who wants to know that it has changed.
        self._serving = serving
        self._cores = cores
        self._others = 0
        self._pace = 1.0
        self._paced = paced
        slots = machine.config.max_sequences
        self._slots: list[str] = [""] * slots
        self._answer_tokens = [0] * slots
        self._placed_tokens = [0] * slots
        # The instants of the coming landings when steps are taken at one go, and how many of them
        # that covers.
        self._landings: list[int] = []
        self._ahead_steps = 0
        # How many the machine knows of, and what the rows of the last one attend to.
        self._known_steps = 0
        self._ahead_context_tokens = 0

    @property
    def wake_ns(self) -> int | None:
        """When something happens in here by itself."""
        if self._ahead_steps:
            return self._landings[self._ahead_steps - 1]
        return self._in_flight[0].done_ns if self._in_flight else None

    @property
    def steps_ahead(self) -> int:
        """How many coming steps are taken at one go, as far as was looked."""
        return self._ahead_steps

    def due(self, now_ns: int) -> bool:
        """Whether a step has landed by now."""
        return bool(self._in_flight) and self._in_flight[0].done_ns <= now_ns

    def submit(self, plan: StepPlan) -> None:
        """Run this plan after all before it."""
        now_ns = self._clock()
        for placement in plan.placements:
            self._slots[placement.slot] = placement.request_id
            self._answer_tokens[placement.slot] = self._steps.requests.token_of(
                placement.request_id
            )
            self._placed_tokens[placement.slot] = len(placement.tokens)
            self._steps.scheduled(placement.request_id, now_ns)
        chunks: list[tuple[int, int]] = []
        decodes = context_tokens = 0
        opens = prefills = False
        slots, starts, counts = plan.slots.tolist(), plan.starts.tolist(), plan.counts.tolist()
        placed_tokens = self._placed_tokens
        drafted = plan.draft_counts.tolist() or [0] * len(slots)
        for slot, start, count, drafts in zip(slots, starts, counts, drafted, strict=True):
            if count > 1:
                chunks.append((start, count))
                prefills = prefills or count - drafts > 1
            else:
                decodes += 1
                context_tokens += start + 1
            if start < placed_tokens[slot]:
                opens = True
                self._steps.computes(self.name, self._slots[slot], (start, count - drafts))
        samples = plan.samples.tolist()
        drawing = [slot for slot, draws in zip(slots, samples, strict=True) if draws]
        sampled_rows = len(drawing) + len(plan.draft_tokens)
        shape = StepShape(tuple(chunks), decodes, context_tokens, sampled_rows)
        duration_ns = self._duration_ns(shape, self._drafts.seconds(plan) if self._drafts else 0.0)
        idle = not self._in_flight
        if self._cold_ns and idle and now_ns - self._stage_free_ns[-1] >= self._cold_after_ns:
            duration_ns += self._cold_ns
        done_ns = now_ns
        for stage, free_ns in enumerate(self._stage_free_ns):
            done_ns = max(done_ns, free_ns) + duration_ns
            self._stage_free_ns[stage] = done_ns
        if self._contents is not None:
            self._plans.append(plan)
        request_ids = [self._slots[slot] for slot in drawing]
        tokens = tuple([self._answer_tokens[slot] for slot in drawing])
        outcome = None
        if self._drafts is not None and self._contents is None:
            # Whoever goes on with a request elsewhere drafts what its worker would have drafted.
            asked = [request_id.partition("~")[0] for request_id in request_ids]
            outcome = self._drafts.outcome(plan, asked, tokens)
        self._in_flight.append(
            InFlightStep(
                step_id=plan.step_id,
                done_ns=done_ns,
                duration_ns=duration_ns,
                request_ids=request_ids,
                tokens=tokens,
                context_tokens=context_tokens,
                prefills=prefills,
                opens=opens,
                drafts=outcome,
            )
        )
        if self._cores is None:
            return
        if idle:
            self._begun(now_ns)
            self._cores.enter(self)
        else:
            self._set_landings(now_ns, self._pace)

    def share_with(self, others: int) -> None:
        """From now on so many other workers compute on the cores that its steps take."""
        if others != self._others:
            self._others = others
            self._set_landings(self._clock(), self._pace_of(self._in_flight[0]))
            self._paced()

    def release_cores(self) -> None:
        """It computes nothing any more."""
        if self._cores is not None:
            self._cores.leave(self)
            self._others = 0

    def _begun(self, now_ns: int) -> None:
        """The first step in flight has just begun: from full speed to its share of it."""
        self._pace = 1.0
        first = self._in_flight[0]
        first.done_ns = now_ns + first.duration_ns
        self._set_landings(now_ns, self._pace_of(first))

    def _pace_of(self, step: InFlightStep) -> float:
        return self._serving.pace(prefills=step.prefills, others=self._others)

    def _set_landings(self, now_ns: int, pace: float) -> None:
        """What is left of the first step goes on at this pace; the others follow it at theirs."""
        first = self._in_flight[0]
        if first.done_ns > now_ns:
            first.done_ns = now_ns + round((first.done_ns - now_ns) * self._pace / pace)
        before_ns = first.done_ns
        for step in list(self._in_flight)[1:]:
            before_ns += round(step.duration_ns / self._pace_of(step))
            step.done_ns = before_ns
        self._stage_free_ns[0] = before_ns
        self._pace = pace

    def landed(self, now_ns: int) -> StepDone | None:
        """The next step that has landed by now, in order."""
        if not self.due(now_ns):
            return None
        step = self._in_flight.popleft()
        if not self._in_flight:
            self.release_cores()
        elif self._cores is not None:
            self._begun(step.done_ns)
        self._steps.landed(self.name, step.duration_ns, step.prefills, 1)
        if self._contents is not None:
            return StepDone(self._contents.compute_step(self._plans.popleft()))
        drafts = step.drafts
        if drafts is None:
            return StepDone(StepResult(step.step_id, step.tokens))
        return StepDone(
            StepResult(
                step.step_id,
                drafts.tokens,
                token_counts=drafts.token_counts,
                proposals=drafts.proposals,
            )
        )

    def take_steps(self, now_ns: int) -> StepsTaken | None:
        """Of the steps that are taken at one go, those that have landed by now, if any; that is
        over then."""
        if not self._ahead_steps:
            return None
        count = bisect_right(self._landings, now_ns, hi=self._ahead_steps)
        landed, coming = self._landings[:count], self._landings[count:]
        self._ahead_steps = 0
        if not landed:
            return None
        first = self._in_flight[0]
        started_ns = first.done_ns - first.duration_ns
        self._steps.landed(self.name, landed[-1] - started_ns, False, count)
        before_ns = landed[-1]
        for step, done_ns in zip(self._in_flight, coming, strict=False):
            step.step_id += count
            step.context_tokens += count * len(step.tokens)
            step.duration_ns = done_ns - before_ns
            step.done_ns = before_ns = done_ns
        self._stage_free_ns[0] = before_ns
        return StepsTaken(_emission(first), landed)

    def tokens_ahead(self, now_ns: int) -> int:
        """Tokens drawn by now that the machine does not have."""
        if not self._ahead_steps:
            return 0
        count = bisect_right(self._landings, now_ns, hi=self._ahead_steps)
        return count * len(self._in_flight[0].tokens)

    def look_ahead(self) -> None:
        """Take the coming steps at one go where the machine knows them."""
        if not self._fast_forward or not self._in_flight:
            return
        # Others decide by a first token: it is reported when it is there.
        if any(step.opens for step in self._in_flight):
            return
        steps = self._machine.repeatable_steps()
        if steps < LEAST_STEPS:
            return
        # So are the tokens by which a request is cleared of the deaths of its workers.
        if any(failed_over(each) for each in self._in_flight[0].request_ids) and any(
            self._may_be_cleared(each) for each in self._in_flight[0].request_ids
        ):
            return
        self._landings = [step.done_ns for step in self._in_flight]
        self._known_steps = steps
        self._ahead_context_tokens = self._in_flight[-1].context_tokens
        self._go_ahead()

    def goes_on(self, now_ns: int) -> bool:
        """Whether the steps taken at one go, of which as many as were looked at have landed, are
        followed by more: nothing need be reported yet."""
        ahead_steps = self._ahead_steps
        if not 0 < ahead_steps < self._known_steps or self._landings[ahead_steps - 1] > now_ns:
            return False
        self._go_ahead()
        return True

    def _go_ahead(self) -> None:
        """The instants of the next steps."""
        steps = min(STEPS_AHEAD, self._known_steps - self._ahead_steps)
        sequences, context_tokens = len(self._in_flight[-1].tokens), self._ahead_context_tokens
        decode_seconds = self._step_time.decode_seconds
        landings, speed = self._landings, self.speed
        landing_ns = landings[-1]
        for _ in range(steps):
            context_tokens += sequences
            step_s = decode_seconds(sequences, context_tokens) / speed
            landing_ns += round(step_s * 1e9) or 1
            landings.append(landing_ns)
        self._ahead_context_tokens = context_tokens
        self._ahead_steps += steps

    def freeze(self, duration_ns: int, now_ns: int) -> None:
        """Nothing moves in here for a while: every landing comes so much later. What has landed
        was taken before."""
        assert not self._ahead_steps
        self.release_cores()
        for step in self._in_flight:
            step.done_ns += duration_ns
        self._stage_free_ns = [max(free, now_ns) + duration_ns for free in self._stage_free_ns]

    def _may_be_cleared(self, request_id: str) -> bool:
        if not failed_over(request_id):
            return False
        sequence = self._machine.unfinished.get(request_id)
        if sequence is None:
            return False
        request = sequence.request
        known_tokens = len(request.prompt_tokens) + len(request.output_tokens)
        return len(sequence.tokens) - known_tokens < CLEARING_TOKENS

    def _duration_ns(self, shape: StepShape, drafting_s: float) -> int:
        step_time = self._step_time
        if not shape.chunks and shape.sampled_rows == shape.decode_sequences:
            seconds = step_time.decode_seconds(shape.decode_sequences, shape.decode_context_tokens)
        else:
            seconds = step_time.seconds(shape)
        return _nanoseconds((seconds + drafting_s) / self.speed)


def _nanoseconds(seconds: float) -> int:
    """Whole nanoseconds, at least one: a step takes time."""
    return max(1, round(seconds * 1e9))


def _emission(step: InFlightStep) -> EmitTokens:
    count = len(step.tokens)
    return EmitTokens(
        request_ids=tuple(step.request_ids),
        tokens=step.tokens,
        finish_reasons=(None,) * count,
        stopped_by_token=(False,) * count,
        cached_tokens=(0,) * count,
    )
