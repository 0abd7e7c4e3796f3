"""Simulated workers that speculate: what they gain follows from how many drafts are kept, what does
not pay is left alone, and predictions know of it."""

from dataclasses import replace
from statistics import fmean

import pytest

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import Slo
from tandem.facts.trace import TraceRow
from tandem.policy.learning import DEFAULT_LEARNING, Learning
from tandem.policy.speculation import Speculation
from tandem.report.summary import Terms, summarise
from tandem.twin.drafts import DraftQuality
from tandem.twin.scenario import Scenario
from tests.twin.random_runs import written
from tests.twin.small_scenarios import plain_policies, played, worker_kind, workers

# A step of 10 ms; each token in it takes 0.1 ms more.
COST = WorkerCost(
    FittedStepTime(fixed_s=0.01, token_s=1e-4),
    kv_bytes_per_token=1e5,
    chunk_tokens=64,
    network=LinkCost(1e9, 1e-5),
)
DRAFTS = 3


def run(
    quality: DraftQuality | None,
    *,
    adaptive: bool = True,
    requests: int = 4,
    learning: Learning | None = DEFAULT_LEARNING,
    **changes,
):
    kind = worker_kind(COST, block_count=1000)
    if quality is not None:
        kind = replace(kind, speculation=Speculation(DRAFTS, adaptive), drafts=quality)
    policies = plain_policies("cost", learning=learning)
    scenario = Scenario((workers("w", kind),), policies, 16, 1024, **changes)
    rows = [TraceRow(index * 0.5, 40, 300) for index in range(requests)]
    return played(scenario, rows).cluster.run


def tpot_s(record) -> float:
    return fmean(request.tpot_s for request in record.requests)


@pytest.mark.parametrize(
    "quality",
    [DraftQuality((0.0,)), DraftQuality((0.9,), token_s=0.02), DraftQuality((0.9,), offered=0.0)],
    ids=["never kept", "too slow", "never offered"],
)
def test_drafts_that_do_not_pay_cost_a_few_per_cent(quality):
    assert tpot_s(run(quality)) <= 1.05 * tpot_s(run(None))


def test_drafts_that_are_always_made_cost_what_they_take():
    always = run(DraftQuality((0.0,), token_s=0.005), adaptive=False, requests=1)
    # Three places of 5 ms, and three tokens more to check.
    assert tpot_s(always) == pytest.approx(tpot_s(run(None, requests=1)) + 0.0153, rel=0.02)


# The adaptive policy begins with shorter drafts.
@pytest.mark.parametrize(("adaptive", "near"), [(False, 0.08), (True, 0.2)])
def test_time_a_token_falls_by_what_a_step_gains(adaptive, near):
    quality = DraftQuality((0.9, 0.8, 0.95))
    record = run(quality, adaptive=adaptive, requests=2)
    gained = 1 + 0.9 + 0.9 * 0.8 + 0.9 * 0.8 * 0.95
    # A row of four tokens instead of one makes the step 0.3 ms longer.
    expected_s = tpot_s(run(None, requests=2)) * 1.03 / gained
    assert tpot_s(record) == pytest.approx(expected_s, rel=near)
    drafts = summarise(record, Terms()).drafts
    assert drafts.tokens_a_draft == pytest.approx(gained, rel=near)


def test_the_same_seed_drafts_the_same_and_another_does_not():
    quality = DraftQuality((0.7, 0.5), offered=0.6)
    assert written(run(quality, seed=1)) == written(run(quality, seed=1))
    assert written(run(quality, seed=1)) != written(run(quality, seed=2))


def test_predictions_learn_what_speculation_gains():
    slo, quality = Slo(ttft_s=10.0, tpot_s=1.0), DraftQuality((0.9,))
    ratios = [
        summarise(run(quality, learning=learning, requests=160, slo=slo), Terms(slo)).predictions
        for learning in (None, DEFAULT_LEARNING)
    ]
    # A step draws three tokens and more; the first requests come before that is known.
    listed, learned = (each.tpot_ratio for each in ratios)
    assert listed < 0.4
    assert 0.85 < learned < 1.1


def test_where_nobody_speculates_nothing_is_told_of_it():
    assert summarise(run(None), Terms()).drafts is None


def test_shares_beyond_one_are_refused():
    with pytest.raises(InvalidConfiguration, match="kept must be 0 to 1"):
        DraftQuality((0.5, 1.2))
    with pytest.raises(InvalidConfiguration, match="at least one"):
        DraftQuality(())
