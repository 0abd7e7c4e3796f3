"""Runs a workload through a simulated cluster, from the first arrival to the last token.

The policies and machines are those of the live cluster, unchanged; only time, engines and links are
made up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tandem.facts.trace import TraceRow
from tandem.messages.router import RequestSubmitted
from tandem.report.record import Ending, RequestRecord, RunRecord
from tandem.twin.misfortune import Misfortune
from tandem.twin.scenario import Scenario
from tandem.twin.staffing import Staffing
from tandem.twin.timeline import sample
from tandem.twin.workload import Turn, Workload
from tandem.twin.world import World

# Between two points of a run's timeline, at least.
LEAST_SAMPLE_NS = 1_000_000
# Output tokens that are expected before any answer has been seen.
FIRST_EXPECTED_OUTPUT_TOKENS = 256.0

Progress = Callable[[float], None]


def simulate(
    scenario: Scenario, rows: Sequence[TraceRow], progress: Progress | None = None
) -> RunRecord:
    """The record of one run. `progress` hears the share of requests that have ended, now and then.

    The same scenario and rows give the same record, whatever the machine. A scenario's policies
    that remember are used up by it.
    """
    run = RunRecord(settings=dict(scenario.settings))
    return Simulation(scenario, rows, run).run(progress)


@dataclass(slots=True)
class OutputForecast:
    """How long an answer will be, as far as anybody can know: as long as answers were so far."""

    tokens: int = 0
    answers: int = 0

    def expected_tokens(self) -> float:
        return self.tokens / self.answers if self.answers else FIRST_EXPECTED_OUTPUT_TOKENS

    def learn(self, tokens: int) -> None:
        self.tokens += tokens
        self.answers += 1


class Simulation:
    """One run: clients, the world, and whoever staffs it."""

    def __init__(self, scenario: Scenario, rows: Sequence[TraceRow], run: RunRecord) -> None:
        self._scenario = scenario
        self._run = run
        self.world = World(scenario, run)
        self._staffing = Staffing(scenario, self.world)
        Misfortune(scenario, self.world, self._staffing)
        self._workload = Workload(rows)
        self._forecast = OutputForecast()
        self._turns: dict[str, Turn] = {}
        self._answers_left: dict[int, int] = {}
        self._to_come = self._workload.requests
        self._last_arrival_ns = 0

    def run(self, progress: Progress | None) -> RunRecord:
        world, agenda = self.world, self.world.agenda
        self._staffing.open()
        for turn in self._workload.first_turns:
            arrival_ns = round(turn.row.arrival_s * 1e9)
            self._last_arrival_ns = max(self._last_arrival_ns, arrival_ns)
            agenda.at(arrival_ns, partial(self._arrive, turn))
        sample_ns = max(LEAST_SAMPLE_NS, self._last_arrival_ns // self._scenario.timeline_points)
        agenda.at(0, partial(self._sample, sample_ns))
        limit_ns = round(self._scenario.limit_s * 1e9)
        told = 0
        while (next_ns := agenda.next_ns()) is not None:
            if next_ns > self._last_arrival_ns + limit_ns or not self._unfinished:
                break
            agenda.step()
            self._note_ends(agenda.now_ns)
            if progress is not None and agenda.happened - told >= 2000:
                told = agenda.happened
                progress(1.0 - self._unfinished / max(1, self._workload.requests))
        world.catch_up(agenda.now_ns)
        world.recorder.failed("the run ended before it", agenda.now_ns)
        self._close(agenda.now_ns)
        return self._run

    @property
    def _unfinished(self) -> int:
        return self._to_come + self.world.recorder.open_requests

    def _arrive(self, turn: Turn, now_ns: int) -> None:
        world, row = self.world, turn.row
        self._last_arrival_ns = max(self._last_arrival_ns, now_ns)
        self._answers_left[turn.index] = row.answers
        service = world.router.config.classes.classify({}, row.tenant)
        if row.service_class:
            service = world.router.config.classes.named(row.service_class)
        slo = self._scenario.slo if service.slo.empty else service.slo
        for request in self._workload.requests_of(turn, service.priority):
            self._to_come -= 1
            self._turns[request.request_id] = turn
            event = RequestSubmitted(
                request=request,
                expected_output_tokens=self._forecast.expected_tokens(),
                tenant=row.tenant,
                service_class=service.name,
                session=row.session,
                slo=slo,
                deadline_ns=service.deadline_ns(now_ns),
            )
            world.recorder.submitted(event, now_ns)
            if not world.gateway_up:
                world.recorder.turned_away(request.request_id, "there is no gateway", now_ns)
                continue
            world.refresh_loads(now_ns)
            world.tell_router(event, now_ns)
            if self._staffing.planner is not None:
                self._staffing.planner.request_arrived(now_ns)

    def _note_ends(self, now_ns: int) -> None:
        for record in self.world.recorder.take_finished():
            if record.ending is Ending.FINISHED:
                self._learn(record, now_ns)
            turn = self._turns.pop(record.request_id)
            self._answers_left[turn.index] -= 1
            if self._answers_left[turn.index]:
                continue
            del self._answers_left[turn.index]
            follower = self._workload.follower(turn)
            if follower is not None:
                think_ns = round(follower.row.think_s * 1e9)
                self.world.agenda.at(now_ns + think_ns, partial(self._arrive, follower))

    def _learn(self, record: RequestRecord, now_ns: int) -> None:
        self._forecast.learn(record.emitted_tokens)
        if self._staffing.planner is not None:
            uncached_tokens = max(1, record.prompt_tokens - sum(record.reused_tokens.values()))
            self._staffing.planner.request_finished(
                (uncached_tokens, record.emitted_tokens), record.ttft_s, record.tpot_s, now_ns
            )

    def _sample(self, every_ns: int, now_ns: int) -> None:
        samples = self._run.samples
        samples.append(sample(self.world, now_ns))
        if len(samples) > 2 * self._scenario.timeline_points:
            # The run takes longer than its arrivals did: half as many points are enough.
            del samples[1::2]
            every_ns *= 2
        if self._unfinished:
            self.world.agenda.at(now_ns + every_ns, partial(self._sample, every_ns))

    def _close(self, now_ns: int) -> None:
        world = self.world
        world.steps.close()
        self._run.end_ns = now_ns
        self._run.events = world.agenda.happened
        self._run.transfers = world.transport.shipping.records()
        for name in list(world.members.up):
            world.settle_accounts(name, now_ns)
