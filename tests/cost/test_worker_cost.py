"""Prices of a worker: chunks in a row, stages, links."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, WorkerCost
from tandem.facts.fleet import Tier

STEP = FittedStepTime(fixed_s=0.01, token_s=1e-4, pair_s=1e-8, context_token_s=1e-7, row_s=1e-3)
WORKER = WorkerCost(STEP, 1000.0, 512, {Tier.HOST: LinkCost(1e6, 0.5)}, LinkCost(2e6, 0.25))


def makespan(chunk_seconds: list[float], stages: int) -> float:
    """The slow twin: every chunk through every stage, one at a time in each."""
    free_s = [0.0] * stages
    for seconds in chunk_seconds:
        done_s = 0.0
        for stage in range(stages):
            done_s = free_s[stage] = max(free_s[stage], done_s) + seconds
    return free_s[-1]


@given(st.integers(0, 4000), st.integers(0, 4000), st.integers(1, 4))
def test_a_prompt_flows_through_its_stages(tokens, context, stages):
    worker = replace(WORKER, step_time=replace(STEP, stages=stages))
    cuts = [*range(context, context + tokens, 512), context + tokens]
    seconds = [
        0.01 + 1e-4 * (b - a) + 1e-8 * sum(range(a + 1, b + 1)) + 1e-3 * (b == context + tokens)
        for a, b in pairwise(cuts)
    ]
    expected = makespan(seconds, stages)
    assert abs(worker.prefill_seconds(tokens, context) - expected) < 1e-9 * (1 + expected)


def test_a_queue_is_many_prompts_and_fills_the_pipeline_once():
    worker = replace(WORKER, step_time=replace(STEP, stages=3))
    assert worker.queue_seconds(0) == 0.0
    # Ten prompts of two chunks each, or chunks that several prompts share.
    assert worker.queue_seconds(10_240, 1024) == pytest.approx(10 * WORKER.prefill_seconds(1024))
    assert worker.queue_seconds(10_240, 7) == pytest.approx(20 * WORKER.prefill_seconds(512))


def test_a_token_passes_every_stage():
    worker = replace(WORKER, step_time=replace(STEP, stages=3))
    assert worker.decode_seconds(1, 4000) == 3 * STEP.decode_seconds(1, 4000)
    assert worker.decode_seconds(0, 0) == 0.0


def test_a_full_pipeline_takes_a_share_of_the_sequences_a_step():
    worker = replace(WORKER, step_time=replace(STEP, stages=3))
    assert worker.decode_seconds(6, 6000) == 3 * STEP.decode_seconds(2, 2000)
    # One of the three steps has to take two of them.
    assert worker.decode_seconds(4, 4000) == 3 * STEP.decode_seconds(2, 2000)
    assert WORKER.decode_seconds(7, 7001) == STEP.decode_seconds(7, 7001)


def test_links_cost_latency_and_bytes():
    assert WORKER.pull_seconds(Tier.HOST, 2000) == 0.5 + 2.0
    assert WORKER.transfer_seconds(2000) == 0.25 + 1.0
    assert WORKER.pull_seconds(Tier.DEVICE, 2000) == WORKER.transfer_seconds(0) == 0.0
    assert WORKER.pull_seconds(Tier.DISK, 1) == inf
