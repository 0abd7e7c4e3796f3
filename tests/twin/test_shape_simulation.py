"""Shapes of a fleet tried on a recorded demand: prefixes that were shared are shared again, each
shape has exactly its workers, and a whole run with a planner that asks is the same every time."""

from dataclasses import replace

import pytest

from tandem.commands.scenario import scenario_of, unplanned
from tandem.config.cluster.file import Cluster
from tandem.config.cluster.keys import Choice
from tandem.config.cluster.workers import PoolConfig
from tandem.facts.blocks import HASH_BYTES
from tandem.facts.fleet import Role
from tandem.facts.shapes import FleetShape, RecordedRequest, WorkerGroup
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.messages.gateway import SimulateShapes
from tandem.twin.shape_simulation import shaped, simulate_shapes, trace_rows
from tandem.twin.simulation import simulate

SECOND = 1_000_000_000
WORKER = PoolConfig("p", "h100", Role.PREFILL, tensor_parallel=4, startup_s=30.0)
CLUSTER = Cluster(
    model="llama-3-70b",
    pools=(
        replace(WORKER, count=2, min_count=2),
        replace(WORKER, name="d", role=Role.DECODE, count=2, min_count=2),
    ),
    slo=Slo(ttft_s=3.0, tpot_s=0.1),
)


def chain(*blocks: int) -> bytes:
    return b"".join(block.to_bytes(HASH_BYTES, "big") for block in blocks)


def request(at_s: float, prompt: int, output: int, digests: bytes = b"") -> RecordedRequest:
    return RecordedRequest(round(at_s * SECOND), prompt, output, digests)


def shape(prefill: int, decode: int) -> FleetShape:
    return FleetShape(
        (WorkerGroup("p", Role.PREFILL, prefill, 2000), WorkerGroup("d", Role.DECODE, decode, 2000))
    )


def question(demand, *shapes: FleetShape, speed: float = 1.0) -> SimulateShapes:
    return SimulateShapes(1, shapes, tuple(demand), 64, speed, cpu_s=10.0, limit_s=30.0)


def test_what_was_shared_is_shared_again_and_nothing_else():
    demand = [
        request(10, 200, 5, chain(1, 2, 3)),
        request(12, 200, 5, chain(1, 2, 4)),
        request(14, 200, 5, chain(9)),
        request(16, 200, 5),
    ]
    rows = trace_rows(question(demand, speed=2.0))
    assert [row.block_ids for row in rows] == [(0, 1), (0, 1), (), ()]
    assert [row.arrival_s for row in rows] == [0.0, 1.0, 2.0, 3.0]


def test_a_shape_has_exactly_its_workers():
    groups = (
        WorkerGroup("", Role.DECODE, 1, 500),
        WorkerGroup("d", Role.DECODE, 1, 700),
        WorkerGroup("d", Role.PREFILL, 1, 700),
        WorkerGroup("p", Role.PREFILL, 2, 600),
    )
    scenario = shaped(unplanned(CLUSTER), FleetShape(groups))
    assert [(pool.name, pool.role, pool.count) for pool in scenario.pools] == [
        ("joined-as-decode", Role.DECODE, 1),
        ("d", Role.DECODE, 1),
        ("d-as-prefill", Role.PREFILL, 1),
        ("p", Role.PREFILL, 2),
    ]
    assert [pool.kind.block_count for pool in scenario.pools] == [500, 700, 700, 600]
    assert scenario.policies.planning is None
    assert str(FleetShape(groups)) == "3 prefill + 2 decode"


def test_more_prefill_helps_long_prompts():
    demand = [request(at / 4, 8000, 20) for at in range(80)]
    asked = question(demand, shape(1, 3), shape(3, 1))
    answer = simulate_shapes(asked, lambda: unplanned(CLUSTER))
    few, many = answer.figures
    assert (few.requests, few.devices) == (64, 16)
    assert few.kept < 0.5 < 0.95 < many.kept
    assert many.ttft_p99_s < few.ttft_p50_s
    assert simulate_shapes(asked, lambda: unplanned(CLUSTER)) == answer


def test_what_there_is_no_time_for_is_left_out():
    demand = [request(at, 100, 5) for at in range(40)]
    asked = question(demand, shape(1, 1), shape(2, 2))
    turns = iter([True] * 1 + [False] * 100)
    answer = simulate_shapes(asked, lambda: unplanned(CLUSTER), lambda: next(turns))
    assert len(answer.figures) <= 1


@pytest.fixture(scope="module")
def planned_run():
    rows = [TraceRow(at / 5, 8000, 20) for at in range(250)]
    choice = Choice("tandem", {"simulate": True, "simulation": {"requests": 100, "window_s": 60}})
    cluster = replace(CLUSTER, policies=replace(CLUSTER.policies, planning=choice))
    return [simulate(scenario_of(cluster), rows) for _ in range(2)]


def test_a_planner_flips_by_what_the_simulator_found(planned_run):
    record, again = planned_run
    texts = [each.text for each in record.decisions if each.kind == "planning"]
    assert any("would have kept" in text and "becomes prefill" in text for text in texts)
    assert [each.text for each in again.decisions] == [each.text for each in record.decisions]
