"""Laws of the demand model: queueing theory's exact cases, and what must grow with what."""

from dataclasses import replace
from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import WorkerCost
from tandem.facts.slo import Slo
from tandem.policy.planning.demand import (
    DecodeRoom,
    Demand,
    Workload,
    burstiness,
    erlang_c,
    sampled,
)
from tandem.policy.planning.pools import Sizes
from tests.policy.planning_bed import COST, LENGTHS, PROMISE, STEP_TIME, window

ROOM = DecodeRoom(kv_tokens=400_000, sequences=512)


def demand(lengths=LENGTHS, slo=PROMISE, room=ROOM, cost=COST, **workload):
    return Demand.of(cost, slo, Workload(tuple(lengths), **workload), attainment=0.95, room=room)


@given(st.integers(1, 40), st.floats(0.01, 0.99))
def test_erlang_c_is_the_textbook_sum(servers, share):
    load = servers * share
    term, below = 1.0, 0.0
    for count in range(servers):
        below += term
        term *= load / (count + 1)
    waiting = term / (1 - share)
    assert erlang_c(servers, load) == pytest.approx(waiting / (below + waiting))


def test_one_server_waits_as_pollaczek_and_khinchine_say():
    cost = WorkerCost(FittedStepTime(token_s=1e-3), 1.0, 10_000)
    lengths, rate_per_s = [(100, 1)] * 9 + [(600, 1)], 2.0
    seconds = [prompt * 1e-3 for prompt, _ in lengths]
    load = rate_per_s * sum(seconds) / 10
    # Mean wait of M/G/1; the model's tail is load * exp(-t * load / mean wait).
    wait_s = rate_per_s * sum(one * one for one in seconds) / 10 / (2 * (1 - load))
    for bound_s in (0.7, 0.8, 1.0, 1.2):
        late = sum(load * exp(-(bound_s - one) * load / wait_s) for one in seconds) / 10
        model = demand(lengths, Slo(ttft_s=bound_s), cost=cost)
        assert model.ttft_kept(rate_per_s, 1) == (late <= 0.05)


def test_decode_is_the_fixed_point_of_littles_law():
    model = demand([(1000, 100)], Slo(tpot_s=0.05))
    workers = model.sizes(300.0, 100).decode
    assert model.tpot_kept(300.0, workers)
    assert not model.tpot_kept(300.0, workers - 1)
    # By hand: step = 0.02 + 1e-4 n + 2e-8 * 1050 n, where n = 300 * 100 * step / workers.
    slope = (1e-4 + 2e-8 * 1050) * 30_000
    fewest_on_average = slope / (1 - 0.02 / 0.05)
    assert fewest_on_average <= workers <= 1.2 * fewest_on_average


@given(
    st.lists(st.tuples(st.integers(1, 20_000), st.integers(1, 1500)), min_size=1, max_size=20),
    st.floats(0, 40),
    st.floats(1, 3),
)
def test_more_load_or_burstier_load_never_needs_fewer(lengths, rate_per_s, more):
    calm = demand(lengths).sizes(rate_per_s, 200)
    for other in (
        demand(lengths).sizes(rate_per_s * more, 200),
        demand(lengths, burstiness=more).sizes(rate_per_s, 200),
        demand(lengths, backlog_s=10 * more).sizes(rate_per_s, 200),
        demand(lengths, context_tokens=9000 * more).sizes(rate_per_s, 200),
        demand(lengths, sequences=round(1000 * more)).sizes(rate_per_s, 200),
    ):
        assert other.prefill >= calm.prefill
        assert other.decode >= calm.decode


@given(st.integers(200, 1500), st.integers(2, 6), st.floats(1, 60))
def test_a_heavier_tail_of_equal_mean_never_needs_fewer(prompt, heavier, rate_per_s):
    """One request of ten is `heavier` times as long, the others are shorter for it. Without a fixed
    cost a chunk, which makes a prompt of 2049 tokens dearer than it is long."""
    cost = WorkerCost(replace(STEP_TIME, fixed_s=0.0), 1.0, 2048)
    even = [(10 * prompt, 10 * prompt)] * 10
    rest = (100 * prompt - 10 * prompt * heavier) // 9
    tail = [(rest, rest)] * 9 + [(100 * prompt - 9 * rest,) * 2]
    slo = Slo(ttft_s=60.0, tpot_s=0.08)
    calm, heavy = (
        demand(lengths, slo, cost=cost).sizes(rate_per_s, 2000) for lengths in (even, tail)
    )
    assert heavy.prefill >= calm.prefill
    assert heavy.decode >= calm.decode


def test_sequences_that_are_there_need_places_whatever_the_rate():
    # Clients that ask when they have been answered: the rate is what one worker serves.
    for sequences, workers in ((0, 1), (512, 1), (513, 2), (1024, 2), (1025, 3)):
        assert demand(slo=Slo(), sequences=sequences).sizes(0.5, 10) == Sizes(1, workers)
    # 250 at once keep no step within 35 ms.
    assert demand(slo=Slo(tpot_s=0.035), sequences=250).sizes(0.5, 10) == Sizes(1, 2)


def test_the_tail_matters_where_the_mean_would_not_see_it():
    even, tail = [(2000, 300)] * 50, [(500, 300)] * 47 + [(25_500, 300)] * 3
    assert sum(prompt for prompt, _ in even) == sum(prompt for prompt, _ in tail)
    calm, heavy = (demand(lengths).sizes(20.0, 200) for lengths in (even, tail))
    assert heavy.prefill > calm.prefill


def test_every_bound_of_the_promise_counts():
    loose = demand(slo=Slo()).sizes(20.0, 200)
    assert demand(slo=Slo(ttft_s=0.8)).sizes(20.0, 200).prefill > loose.prefill
    assert demand(slo=Slo(tpot_s=0.03)).sizes(20.0, 200).decode > loose.decode
    assert demand(slo=Slo(e2e_s=12.0)).sizes(20.0, 200).decode > loose.decode
    tight = demand(slo=Slo(), room=DecodeRoom(kv_tokens=100_000))
    assert tight.sizes(20.0, 200).decode > loose.decode


def test_prompts_that_nothing_can_serve_in_time_do_not_ask_for_the_whole_world():
    lengths = [(1000, 10)] * 9 + [(500_000, 10)]
    assert demand(lengths).sizes(0.5, 200).prefill < 30


def test_burstiness_sees_bursts_but_not_a_step_or_a_slope():
    def of(counts):
        return burstiness([window(10.0 * at, 10.0, n) for at, n in enumerate(counts)])

    assert of([20] * 30) == 1
    assert of([20] * 15 + [80] * 15) == 1
    assert of(range(100, 130)) == 1
    assert of([5, 40] * 15) > 10
    assert of([5, 40]) == 1


@given(st.lists(st.tuples(st.integers(1, 9000), st.integers(1, 900)), max_size=2000))
def test_a_sample_keeps_the_distribution(lengths):
    some = sampled(lengths)
    assert len(some) == min(len(lengths), 256)
    assert set(some) <= set(lengths)
    if lengths:
        middle = sorted(lengths)[len(lengths) // 2]
        assert abs(sum(one < middle for one in some) - len(some) / 2) <= 2 + len(some) * sum(
            one == middle for one in lengths
        ) / len(lengths)
