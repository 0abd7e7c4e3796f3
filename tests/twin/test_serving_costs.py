"""What serving costs in the simulator: closed forms for one request, queues at the gateway's loop,
and steps that share cores."""

from dataclasses import replace

import pytest

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import ServingCost, WorkerCost
from tandem.facts.fleet import Role
from tandem.facts.trace import TraceRow
from tandem.report.record import RequestRecord
from tandem.twin.faults.kinds import Fault, GatewayCrash
from tandem.twin.scenario import Scenario
from tests.twin.small_scenarios import BLOCK, plain_policies, played, worker_kind, workers

STEP_S = 0.010
SERVING = ServingCost(
    request_s=0.002, request_wait_s=0.003, prompt_token_s=1e-5, message_s=0.0005, token_s=0.001,
    cold_s=0.004, cold_after_s=0.020,
)  # fmt: skip


def run(rows: list[TraceRow], serving: ServingCost, **changes) -> list[RequestRecord]:
    cost = WorkerCost(FittedStepTime(STEP_S), 1.0, 1024, serving=serving)
    pool = workers("w", worker_kind(cost))
    scenario = Scenario((pool,), plain_policies(), BLOCK, 4096, **changes)
    return played(scenario, rows).cluster.run.requests


def milliseconds(record: RequestRecord) -> float:
    return (record.first_token_ns - record.arrival_ns) / 1e6


def test_a_request_alone_pays_every_part_once():
    (record,) = run([TraceRow(1.0, 100, 5)], SERVING)
    # Loop, wire, prompt, cold step, the worker's message, event.
    assert milliseconds(record) == pytest.approx(2 + 3 + 1 + 10 + 4 + 0.5 + 1)
    assert (record.last_token_ns - record.first_token_ns) / 4e6 == pytest.approx(10)


def test_a_warm_worker_is_quicker():
    rows = [TraceRow(0.0, 100, 5), TraceRow(0.065, 100, 1)]
    _, second = run(rows, SERVING)
    assert milliseconds(second) == pytest.approx(2 + 3 + 1 + 10 + 0.5 + 1)


def test_requests_take_turns_at_the_gateways_loop():
    serving = ServingCost(request_s=0.1)
    records = run([TraceRow(0.0, 16, 1) for _ in range(4)], serving)
    first_ms = sorted(milliseconds(record) for record in records)
    # The first three have their tokens before, but the loop takes up first what came first.
    assert first_ms == pytest.approx([400, 400, 400, 410])


def test_a_loop_that_is_behind_sends_several_tokens_in_one_event():
    # Two streams ask for two events of 8 ms every 10 ms.
    serving = ServingCost(token_s=0.008)
    records = run([TraceRow(0.0, 16, 40), TraceRow(0.0, 16, 40)], serving)
    for record in records:
        assert record.emitted_tokens == 40
        # The last token was drawn after 410 ms, and waited for two events at most; 80 events one
        # after the other would take until 640 ms.
        assert record.last_token_ns / 1e6 <= 410 + 3 * 8 + 1e-6


def test_steps_of_two_workers_share_the_cores():
    serving = ServingCost(prefill_slowdown=2.0)
    rows = [TraceRow(0.0, 16, 1), TraceRow(0.0, 16, 1)]
    cost = WorkerCost(FittedStepTime(STEP_S), 1.0, 1024, serving=serving)
    scenario = Scenario(
        (workers("w", worker_kind(cost), 2),), plain_policies("round-robin"), BLOCK, 4096
    )
    both = played(scenario, rows).cluster.run.requests
    assert {record.prefill_worker for record in both} == {"w-0", "w-1"}
    assert [milliseconds(record) for record in both] == pytest.approx([20, 20])
    # The second begins in the middle of the first one's step, and goes on alone.
    late = [rows[0], replace(rows[1], arrival_s=0.005)]
    scenario = replace(scenario, policies=plain_policies("round-robin"))
    both = played(scenario, late).cluster.run.requests
    assert [milliseconds(record) for record in both] == pytest.approx([15, 15])


def test_prefill_and_decode_workers_lose_no_token_on_the_way():
    cost = WorkerCost(
        FittedStepTime(STEP_S),
        1.0,
        1024,
        serving=replace(SERVING, prefill_slowdown=1.7, decode_slowdown=1.2),
    )
    kind = worker_kind(cost)
    pools = (workers("p", kind, role=Role.PREFILL), workers("d", kind, role=Role.DECODE))
    rows = [TraceRow(0.013 * i, 40 + 7 * i, 3 + i % 5) for i in range(20)]
    records = played(Scenario(pools, plain_policies(), BLOCK, 4096), rows).cluster.run.requests
    assert [record.emitted_tokens for record in records] == [row.output_tokens for row in rows]
    assert all(record.finished for record in records)


def test_what_stands_before_a_gateway_that_dies_is_lost():
    serving = ServingCost(request_s=0.1)
    rows = [TraceRow(arrival_s, 16, 1) for arrival_s in (0.0, 0.2, 0.2, 0.2)]
    faults = (Fault(0.25, GatewayCrash(), 0.1),)
    records = run(rows, serving, faults=faults)
    assert [record.finished for record in records] == [True, False, False, False]
