"""Rate limits in a simulated cluster: they hold as they do live, and the report says whom they kept
out."""

from dataclasses import replace

import pytest

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.facts.rate_limits import LimitTerms, RateLimits
from tandem.facts.trace import TraceRow
from tandem.report.record import Ending
from tandem.report.summary import Terms, summarise
from tandem.twin.scenario import Scenario
from tandem.twin.simulation import simulate
from tests.twin.small_scenarios import BLOCK, plain_policies, worker_kind, workers


def scenario_with(**limits: RateLimits) -> Scenario:
    kind = worker_kind(WorkerCost(FittedStepTime(fixed_s=0.01, token_s=1e-4), 1.0, 512))
    policies = replace(plain_policies(), limits=LimitTerms(limits))
    return Scenario((workers("both", kind),), policies, block_size=BLOCK, context_tokens=1024)


def endings(run, tenant: str) -> list[Ending | None]:
    return [each.ending for each in run.requests if each.tenant == tenant]


def test_who_asks_too_often_is_kept_out_and_nobody_else():
    rows = [TraceRow(number / 10, 64, 8, tenant=name) for number in range(60) for name in "ab"]
    run = simulate(scenario_with(a=RateLimits(requests_per_minute=30, burst_s=20.0)), rows)
    # Ten from idleness, and one every other second for six seconds.
    assert endings(run, "a").count(Ending.FINISHED) == 12
    assert set(endings(run, "b")) == {Ending.FINISHED}
    summary = summarise(run, Terms())
    reason = "the limit of # requests a minute: # of them are left, and this call takes #"
    assert summary.reasons == {reason: 48}


def test_parallel_answers_come_in_as_a_whole():
    rows = [TraceRow(0.0, 64, 8, tenant="a", answers=4) for _ in range(3)]
    run = simulate(scenario_with(a=RateLimits(requests_per_minute=10)), rows)
    assert endings(run, "a").count(Ending.REJECTED) == 4
    run = simulate(scenario_with(a=RateLimits(tokens_per_minute=150)), rows)
    assert endings(run, "a").count(Ending.REJECTED) == 4


@pytest.mark.parametrize(
    "limits",
    [RateLimits(requests_per_minute=40, burst_s=10.0), RateLimits(concurrent_requests=3)],
    ids=str,
)
def test_leaps_over_steps_change_nothing(limits):
    rows = [TraceRow(number / 7, 64 + number, 40 + 9 * number, tenant="a") for number in range(40)]
    scenario = scenario_with(a=limits)
    run = simulate(scenario, rows)
    assert Ending.REJECTED in endings(run, "a")
    assert run.requests == simulate(replace(scenario, fast_forward=False), rows).requests
