"""The driver: open loop keeps its instants, closed loop its concurrency, turns their order."""

import asyncio

import pytest

from tandem.bench.load import Clock, Pacing, nanoseconds, run_load
from tandem.bench.workload import Content, Conversation, PlannedRequest, Segment
from tandem.report.record import MeasuredRequest


class SlowServer:
    """A `Send` that takes a fixed time and watches how many are in flight."""

    def __init__(self, service_s: float) -> None:
        self.service_s = service_s
        self.in_flight = 0
        self.peak = 0
        self.order: list[int] = []

    async def send(self, request: PlannedRequest, record: MeasuredRequest, clock: Clock) -> None:
        self.order.append(request.index)
        record.arrival_ns = nanoseconds(clock())
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        await asyncio.sleep(self.service_s)
        self.in_flight -= 1
        record.end_ns = nanoseconds(clock())


def plan(instants_s: list[float], turns: int = 1, think_s: float = 0.0) -> list[Conversation]:
    conversations = []
    for number, instant_s in enumerate(instants_s):
        requests = tuple(
            PlannedRequest(
                number * turns + turn, (Segment((Content.QUESTION, number, turn), 4),), 2
            )
            for turn in range(turns)
        )
        conversations.append(Conversation(instant_s, requests, think_s))
    return conversations


def test_open_loop_sends_on_time_whatever_the_server_does() -> None:
    server = SlowServer(0.3)
    instants_s = [0.0, 0.05, 0.1, 0.1, 0.15]
    seen: list[int] = []
    records = asyncio.run(
        run_load(plan(instants_s), Pacing(True), server.send, lambda r: seen.append(r.serial))
    )
    assert [record.serial for record in records] == [0, 1, 2, 3, 4]
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert server.peak == 5
    for record, instant_s in zip(records, instants_s, strict=True):
        assert record.due_ns == nanoseconds(instant_s)
        assert instant_s <= record.arrival_ns / 1e9 + 0.002 < instant_s + 0.1


def test_closed_loop_keeps_its_concurrency() -> None:
    server = SlowServer(0.01)
    records = asyncio.run(run_load(plan([0.0] * 20), Pacing(False, 3), server.send))
    assert len(records) == 20
    assert server.peak == 3
    assert max(record.arrival_ns - record.due_ns for record in records) < 50_000_000


def test_open_loop_with_a_bound_measures_how_late_it_was() -> None:
    server = SlowServer(0.05)
    records = asyncio.run(run_load(plan([0.0] * 4), Pacing(True, 2), server.send))
    assert server.peak == 2
    late_s = (records[-1].arrival_ns - records[-1].due_ns) / 1e9
    assert late_s == pytest.approx(0.05, abs=0.04)


def test_turns_follow_each_other_after_thinking() -> None:
    server = SlowServer(0.02)
    records = asyncio.run(run_load(plan([0.0, 0.0], 3, think_s=0.03), Pacing(True), server.send))
    assert len(records) == 6
    for first, second in ((0, 1), (1, 2), (3, 4), (4, 5)):
        assert records[second].arrival_ns >= records[first].end_ns + 29_000_000


def test_nothing_to_do() -> None:
    assert asyncio.run(run_load([], Pacing(False, 3), SlowServer(0).send)) == []
