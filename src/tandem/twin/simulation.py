"""Runs a workload through a simulated cluster, from the first arrival to the last token.

The policies and machines are those of the live cluster, unchanged; only time, engines and links are
made up.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tandem.cluster.gateway.demand import Demand
from tandem.facts.rate_limits import CallSize
from tandem.facts.trace import TraceRow
from tandem.messages.router import FollowedPause, RequestSubmitted
from tandem.report.record import Ending, RunRecord
from tandem.twin.cluster import SimulatedCluster
from tandem.twin.faults.injection import FaultInjection
from tandem.twin.gateway import SimulatedGateway
from tandem.twin.launcher import Launcher
from tandem.twin.scenario import Scenario
from tandem.twin.timeline import Timeline
from tandem.twin.workload import Turn, Workload

# Between two points of a run's timeline, at least.
LEAST_SAMPLE_NS = 1_000_000

# Garbage is looked for after so many objects; each older generation after so many looks at the one
# before. A run makes millions of objects that live long and next to no cycles.
GARBAGE_THRESHOLDS = 100_000, 50, 100

Progress = Callable[[float], None]


def simulate(
    scenario: Scenario, rows: Sequence[TraceRow], progress: Progress | None = None
) -> RunRecord:
    """The record of one run. `progress` gets the share of requests that have ended, now and then.

    The same scenario and rows give the same record, whatever the machine. A scenario's policies
    that remember are used up by it.
    """
    run = RunRecord(settings=dict(scenario.settings))
    with rare_garbage_collections():
        return Simulation(scenario, rows, run).run(progress)


@contextmanager
def rare_garbage_collections() -> Iterator[None]:
    """The thresholds of the garbage collector are those of a run, and afterwards as before."""
    before = gc.get_threshold()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class Simulation:
    """One run: clients, the cluster, and whoever changes it."""

    def __init__(self, scenario: Scenario, rows: Sequence[TraceRow], run: RunRecord) -> None:
        self._scenario = scenario
        self._run = run
        self.cluster = SimulatedCluster(scenario, run)
        self._timeline = Timeline(self.cluster)
        self._launcher = Launcher(scenario, self.cluster)
        FaultInjection(scenario, self.cluster, self._launcher)
        self._workload = Workload(rows)
        self._demand = Demand()
        self._pin_ns = round(scenario.pin_sessions_s * 1e9)
        self._turns: dict[str, Turn] = {}
        self._answers_left: dict[int, int] = {}
        self._to_come = self._workload.requests
        self._last_arrival_ns = 0

    def run(self, progress: Progress | None) -> RunRecord:
        cluster, queue, recorder = self.cluster, self.cluster.queue, self.cluster.recorder
        cluster.open()
        self._launcher.open()
        cluster.opened()
        for turn in self._workload.first_turns:
            arrival_ns = round(turn.row.arrival_s * 1e9)
            self._last_arrival_ns = max(self._last_arrival_ns, arrival_ns)
            queue.at(arrival_ns, partial(self._arrive, turn))
        sample_ns = max(LEAST_SAMPLE_NS, self._last_arrival_ns // self._scenario.timeline_points)
        queue.at(0, partial(self._sample, sample_ns))
        limit_ns = round(self._scenario.limit_s * 1e9)
        shown = 0
        while (next_ns := queue.next_ns()) is not None:
            if next_ns > self._last_arrival_ns + limit_ns or not self._unfinished:
                break
            queue.step()
            cluster.bus.deliver()
            if recorder.finished:
                self._note_ends(queue.now_ns)
            if progress is not None and queue.happened - shown >= 2000:
                shown = queue.happened
                progress(1.0 - self._unfinished / max(1, self._workload.requests))
        cluster.catch_up()
        cluster.bus.deliver()
        recorder.failed("the run ended before it", queue.now_ns)
        self._close()
        return self._run

    @property
    def _unfinished(self) -> int:
        return self._to_come + self.cluster.recorder.open_requests

    def _arrive(self, turn: Turn, now_ns: int) -> None:
        """All answers of a call arrive together."""
        self._last_arrival_ns = max(self._last_arrival_ns, now_ns)
        self._answers_left[turn.index] = turn.row.answers
        gateway = self.cluster.gateway_for(turn.index)
        events = self._submissions(turn, now_ns)
        for event in events:
            request_id = event.request.request_id
            self._to_come -= 1
            self._turns[request_id] = turn
            self._demand.arrived(request_id)
            self.cluster.recorder.submitted(event, now_ns)
        if gateway is None or gateway.loop is None:
            self._submit(events, gateway, now_ns)
        else:
            gateway.loop.take_request(
                turn.row.prompt_tokens, partial(self._submit, events, gateway)
            )

    def _submit(
        self, events: list[RequestSubmitted], gateway: SimulatedGateway | None, now_ns: int
    ) -> None:
        """The gateway's machine gets them, unless that has gone meanwhile."""
        self.cluster.refresh_loads()
        for event in events:
            request_id = event.request.request_id
            if gateway is None:
                self.cluster.recorder.turned_away(request_id, "there is no gateway", now_ns)
            elif not gateway.alive:
                self.cluster.recorder.lost(request_id, "its gateway died", now_ns)
            elif self.cluster.recorder.waits(request_id):
                self.cluster.submit(event, gateway)

    def _submissions(self, turn: Turn, now_ns: int) -> list[RequestSubmitted]:
        row, classes = turn.row, self._scenario.policies.classes
        service = classes.classify({}, row.tenant)
        if row.service_class:
            service = classes.named(row.service_class)
        slo = self._scenario.slo if service.slo.empty else service.slo
        call = None
        if row.answers > 1:
            call = CallSize(f"r{turn.index}", row.answers, row.prompt_tokens)
        # A client allows as much as there is room for: how long an answer will be nobody knows.
        room_tokens = max(1, self._scenario.context_tokens - row.prompt_tokens)
        return [
            RequestSubmitted(
                request=request,
                expected_output_tokens=self._demand.expected_tokens(room_tokens),
                tenant=row.tenant,
                service_class=service.name,
                session=row.session,
                slo=slo,
                deadline_ns=service.deadline_ns(now_ns),
                pin_ns=self._pin_ns if row.session else 0,
                call=call,
                pause=self._pause(row),
            )
            for request in self._workload.requests_of(turn, service.priority)
        ]

    def _pause(self, row: TraceRow) -> FollowedPause | None:
        longest_s, announced_s = self._scenario.longest_pause_s, row.pause_s
        if not row.session or not longest_s:
            return None
        announced_ns = None if announced_s is None else round(announced_s * 1e9)
        return FollowedPause(round(longest_s * 1e9), announced_ns)

    def _note_ends(self, now_ns: int) -> None:
        for record in self.cluster.recorder.take_finished():
            finished = record.ending is Ending.FINISHED
            if record.emitted_tokens:
                tokens, first_ns = record.emitted_tokens, record.first_token_ns
                self._demand.got_token(record.request_id, first_ns, tokens)
            self._demand.left(record.request_id, finished=finished)
            turn = self._turns.pop(record.request_id)
            self._answers_left[turn.index] -= 1
            if self._answers_left[turn.index]:
                continue
            del self._answers_left[turn.index]
            follower = self._workload.follower(turn)
            if follower is not None:
                think_ns = round(follower.row.think_s * 1e9)
                self.cluster.queue.at(now_ns + think_ns, partial(self._arrive, follower))

    def _sample(self, every_ns: int, now_ns: int) -> None:
        samples = self._run.samples
        samples.append(self._timeline.sample(now_ns))
        if len(samples) > 2 * self._scenario.timeline_points:
            # The run takes longer than its arrivals did: half as many points are enough.
            del samples[1::2]
            every_ns *= 2
        if self._unfinished:
            self.cluster.queue.at(now_ns + every_ns, partial(self._sample, every_ns))

    def _close(self) -> None:
        cluster = self.cluster
        cluster.recorder.close()
        self._run.end_ns = cluster.now_ns
        self._run.events = cluster.queue.happened
        for gateway in cluster.gateways.values():
            self._run.calibration.add(gateway.machine.router.predictions.total())
        self._run.transfers = cluster.transfers.records()
        for name in list(cluster.workers):
            cluster.settle_accounts(name)
