"""The whole simulated cluster against queues whose waits are known: first come, first served on a
recorded trace to the last digit, and the closed forms of DistServe (OSDI 2024, section 3)."""

from math import fsum, sqrt
from random import Random

import pytest

from tandem.bench.traces.reader import read_trace
from tandem.cluster.router.queue import RequestQueueConfig
from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.facts.trace import TraceRow
from tandem.report.record import RequestRecord
from tandem.twin.scenario import Scenario
from tandem.twin.simulation import simulate
from tests.style.source import ROOT
from tests.twin.small_scenarios import plain_policies, worker_kind, workers

TRACES = ROOT.parent / "shared/data/traces"
SERVICE_S, LOAD, REQUESTS, BATCHES = 0.1, 0.6, 4000, 20


def servers(count: int, step_time: FittedStepTime, batched_tokens: int) -> Scenario:
    """Workers that compute one prompt a step and have room for one in each stage; who finds none
    free waits in one queue."""
    kind = worker_kind(
        WorkerCost(step_time, 1.0, batched_tokens), block_count=32, max_sequences=step_time.stages
    )
    queue = RequestQueueConfig(prefill_depth=step_time.stages, max_wait_s=1e9)
    return Scenario(
        (workers("server", kind, count),),
        plain_policies("least-load", queue=queue),
        block_size=512,
        context_tokens=8192,
    )


def percentile(ordered: list[float], share: float) -> float:
    """Between the two nearest ranks, as the figures of the trace were made."""
    rank = share * (len(ordered) - 1)
    below = int(rank)
    return ordered[below] + (rank - below) * (ordered[below + 1] - ordered[below])


def test_two_servers_and_one_line_on_a_recorded_trace():
    path = TRACES / "AzureLLMInferenceTrace_code_2023.csv.gz"
    if not path.exists():
        pytest.skip("the trace is not here")
    rows = [TraceRow(row.arrival_s, row.prompt_tokens, 1) for row in read_trace(path)]
    run = simulate(servers(2, FittedStepTime(fixed_s=0.010, token_s=1e-4), 8192), rows)
    waits_s = sorted((r.scheduled_ns - r.arrival_ns) / 1e9 for r in run.requests)
    assert len(waits_s) == 8819
    found = [fsum(waits_s) / len(waits_s)]
    found += [percentile(waits_s, share) for share in (0.5, 0.9, 0.99)]
    found.append(waits_s[-1])
    assert [round(wait_s, 3) for wait_s in found] == [4.727, 1.778, 13.523, 33.915, 36.328]
    for request in run.requests:
        service_ns = 10_000_000 + 100_000 * request.prompt_tokens
        assert request.end_ns - request.scheduled_ns == service_ns


def arrivals(rate_per_s: float) -> list[TraceRow]:
    chance, at_s, rows = Random(11), 0.0, []
    for _ in range(REQUESTS):
        at_s += chance.expovariate(rate_per_s)
        rows.append(TraceRow(at_s, 2, 1))
    return rows


def assert_mean_ttft(requests: list[RequestRecord], expected_s: float) -> None:
    """Within three standard errors of batch means, which are small enough to mean something."""
    size = len(requests) // BATCHES
    means_s = [
        fsum(r.ttft_s for r in requests[index * size : (index + 1) * size]) / size
        for index in range(BATCHES)
    ]
    mean_s = fsum(means_s) / BATCHES
    variance = fsum((each - mean_s) ** 2 for each in means_s) / (BATCHES - 1)
    error_s = sqrt(variance / BATCHES)
    assert error_s < 0.05 * expected_s
    assert abs(mean_s - expected_s) < 3 * error_s


def test_two_pipeline_stages_halve_what_may_not_overlap():
    rate = 2 * LOAD / SERVICE_S
    stage = FittedStepTime(fixed_s=SERVICE_S / 2, stages=2)
    run = simulate(servers(1, stage, 2), arrivals(rate))
    waiting_s = rate * SERVICE_S**2 / (4 * (2 - rate * SERVICE_S))
    assert_mean_ttft(run.requests, SERVICE_S + waiting_s)


@pytest.mark.parametrize("speedup", [1.0, 1.5, 1.9])
def test_one_server_waits_as_m_d_1_and_two_tensor_parallel_devices_are_a_faster_one(speedup):
    rate = speedup * LOAD / SERVICE_S
    run = simulate(servers(1, FittedStepTime(fixed_s=SERVICE_S / speedup), 2), arrivals(rate))
    waiting_s = rate * SERVICE_S**2 / (2 * speedup * (speedup - rate * SERVICE_S))
    assert_mean_ttft(run.requests, SERVICE_S / speedup + waiting_s)
