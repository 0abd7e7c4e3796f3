"""Our own policy: seconds worked out by hand, the joint choice against all pairs, and monotony."""

import dataclasses
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tandem.cost.fitted import FittedStepTime
from tandem.cost.worker import LinkCost, ServingCost, WorkerCost
from tandem.facts.fleet import Role, Tier
from tandem.policy.routing.policies import CostSeconds
from tandem.policy.routing.prediction import Predictor, PrefillCurve
from tandem.policy.views import TierHits
from tests.policy.routing.fleets import (
    COST,
    SLOW_LINK,
    STEP_TIME,
    fleets,
    hits,
    request,
    requests,
    views,
    worker,
)

STEP_S = STEP_TIME.decode_seconds(1, 1)
CHUNK_S = COST.prefill_seconds(1000)


def candidate(asked, view):
    return CostSeconds().choose(asked, [view], 0).prefill_reasons[0]


@given(chunks=st.integers(0, 30))
def test_the_curve_is_the_cost_at_whole_chunks(chunks):
    tokens = chunks * COST.chunk_tokens
    assert PrefillCurve(COST).seconds(tokens) == pytest.approx(COST.prefill_seconds(tokens))


@given(tokens=st.integers(1, 20_000), context=st.integers(0, 20_000))
def test_the_curve_is_within_a_step_of_the_cost(tokens, context):
    predicted_s = PrefillCurve(COST).between(context, context + tokens)
    assert predicted_s == pytest.approx(COST.prefill_seconds(tokens, context), abs=STEP_S)


@given(tokens=st.integers(1, 6000), context=st.integers(0, 6000))
def test_a_measured_servers_curve_knows_that_short_prompts_attend_to_little(tokens, context):
    # As of a small model on two cores: in a chunk of 2,048 tokens attention takes most.
    step_time = FittedStepTime(1.5e-3, 4e-5, 6e-8, row_s=3e-5)
    cost = WorkerCost(step_time, 1.0, 2048, serving=ServingCost(request_s=1e-3))
    predicted_s = PrefillCurve(cost).between(context, context + tokens)
    expected_s = cost.prefill_seconds(tokens, context)
    assert predicted_s == pytest.approx(expected_s, rel=0.05, abs=2e-3)


def test_an_idle_worker_takes_the_prefill_alone():
    idle = candidate(request(1000), worker("a"))
    assert idle.ttft_s == pytest.approx(CHUNK_S + STEP_S / 2)
    assert idle.tpot_s == pytest.approx(0.010 + 1e-4 + 1e-9 * 1050)
    assert idle.score == pytest.approx(idle.ttft_s + 100 * idle.tpot_s)


def test_what_serving_costs_counts_for_the_first_token():
    serving = ServingCost(
        request_s=0.002, request_wait_s=0.003, prompt_token_s=1e-6, token_s=1e-4, cold_s=0.004
    )
    served = dataclasses.replace(COST, serving=serving)
    asked = request(1000)
    way_s = 0.002 + 0.003 + 1000 * 1e-6 + 1e-4
    idle, idle_served = worker("a"), worker("a", cost=served)
    assert candidate(asked, idle_served).ttft_s == pytest.approx(
        candidate(asked, idle).ttft_s + way_s + 0.004
    )
    # Whoever is at work is warm.
    busy, busy_served = (replace(each, running_sequences=4) for each in (idle, idle_served))
    assert candidate(asked, busy_served).ttft_s == pytest.approx(
        candidate(asked, busy).ttft_s + way_s
    )
    assert candidate(asked, busy_served).tpot_s == candidate(asked, busy).tpot_s


def test_the_wait_works_off_the_queue_beside_the_decodes():
    asked = request(1000)
    view = worker("a", queued_prefill_tokens=3000)
    wait_s = candidate(asked, view).ttft_s - candidate(asked, worker("a")).ttft_s
    assert wait_s == pytest.approx(3 * CHUNK_S + STEP_S / 2)
    talking = replace(view, running_sequences=100, context_tokens=1_000_000)
    # A step of 100 decodes takes 21 ms, of which one step's overhead is shared; 900 tokens of a
    # chunk find room in it.
    stretch = 1 + (0.021 - STEP_S) * 1000 / 900 / CHUNK_S
    expected_s = stretch * candidate(asked, view).ttft_s
    assert candidate(asked, talking).ttft_s == pytest.approx(expected_s)


def test_a_neighbour_is_harmed_by_chunks_and_by_decoding():
    asked, view = request(1000), worker("a", running_sequences=1, context_tokens=500)
    reason = candidate(asked, view)
    gap_s, longer_s = 0.010 + 1e-4 + 5e-7, 1e-4 + 1e-9 * 1050
    decoding_s = 100 * (gap_s + longer_s) + 100 * longer_s
    harm_s = CHUNK_S + STEP_S / 2
    assert reason.score == pytest.approx(reason.ttft_s + decoding_s + harm_s)


def stretch(decodes):
    """How much longer a chunk takes with so many decodes, which hold no context."""
    added_s = STEP_TIME.decode_seconds(decodes, 0) - STEP_S
    return 1 + added_s * 1000 / (1000 - decodes) / CHUNK_S


def ttft_s(asked, **numbers):
    return candidate(asked, worker("a", **numbers)).ttft_s


def test_a_pull_is_taken_where_it_beats_computing():
    cold_s = ttft_s(request(4000))
    # 2,000 tokens: 0.22 s to compute, 0.02 s from the host, 0.134 s from the disk.
    held = request(4000, hits={"a": TierHits(0, 2000)})
    assert ttft_s(held) == pytest.approx(cold_s - PrefillCurve(COST).seconds(2000) + 0.0201)
    # 8 tokens: 0.88 ms to compute, 1.5 ms from the disk.
    assert ttft_s(request(4000, hits={"a": TierHits(0, 0, 8)})) == cold_s
    # Beside 10 decodes, which would all wait for the chunk, the same pull is worth it.
    busy = {"running_sequences": 10, "context_tokens": 0}
    by_pull_s = ttft_s(request(4000, hits={"a": TierHits(0, 0, 8)}), **busy)
    assert by_pull_s - ttft_s(request(4000), **busy) == pytest.approx(
        COST.pull_seconds(Tier.DISK, 8) - 8 * CHUNK_S / 1000 * stretch(10)
    )
    # The pool holds more than the worker's host, and takes over behind it.
    shared = request(4000, hits={"a": TierHits(0, 2000)}, remote_tokens=3000)
    more_s = PrefillCurve(COST).seconds(3000) - PrefillCurve(COST).seconds(2000)
    assert ttft_s(shared) == pytest.approx(ttft_s(held) - more_s + 0.0255)
    without_tiers = worker("a", cost=SLOW_LINK)
    assert candidate(shared, without_tiers).ttft_s == pytest.approx(cold_s)


def test_the_last_prompt_token_is_always_computed():
    asked = request(1000, hits={"a": TierHits(1008)})
    assert ttft_s(asked) == pytest.approx(CHUNK_S / 1000 + STEP_S / 2)


def test_missing_blocks_and_slots_cost_their_share_of_a_turnover():
    asked = request(1584, hits={})
    busy = {"running_sequences": 10, "context_tokens": 10_000}
    gap_s = STEP_TIME.decode_seconds(10, 10_000)
    roomy_s = ttft_s(asked, **busy, total_blocks=1000, free_blocks=200)
    # 1,684 tokens take 106.25 blocks with the rounding; of 990 others 96.25 must go.
    tight_s = ttft_s(asked, **busy, total_blocks=1000, free_blocks=10)
    assert tight_s - roomy_s == pytest.approx(96.25 / 990 * 100 * gap_s)
    full_s = ttft_s(asked, **busy, max_sequences=10)
    assert full_s - roomy_s == pytest.approx(1 / 10 * 100 * gap_s)


@given(asked=requests, workers=fleets((Role.PREFILL, Role.DECODE)))
def test_the_pair_is_the_best_of_all_pairs(asked, workers):
    route = CostSeconds().choose(asked, workers, 0)
    accepting = sorted((v for v in workers if v.accepting), key=lambda view: view.worker)
    predictor = Predictor()

    def lost_s(prefill, decode):
        first = predictor.prefill_quotes(asked, [prefill], Role.PREFILL)[0]
        second = predictor.decode_quotes(asked, [decode], prefill.cost.network)[0]
        return first.lost_s + second.lost_s

    pairs = [
        (lost_s(p, d), p.worker, d.worker)
        for p, d in product(accepting, accepting)
        if p.role is Role.PREFILL and d.role is Role.DECODE
    ]
    assert (route is None) == (not pairs)
    large = {view.worker for view in accepting if view.total_tokens > asked.prompt_tokens}
    pairs = [each for each in pairs if large.issuperset(each[1:])] or pairs
    if route is not None:
        chosen = next(total for total, *names in pairs if names == [route.prefill, route.decode])
        assert chosen == pytest.approx(min(pairs)[0])


def test_pairs_share_a_link_and_the_slower_end_sets_the_pace():
    asked = request(4000)
    fast, slow = LinkCost(1e10, 1e-5), LinkCost(1e8, 1e-3)
    prefill, decode = worker("p", Role.PREFILL), worker("d", Role.DECODE)
    near = CostSeconds().choose(asked, [prefill, decode], 0)
    far = CostSeconds().choose(asked, [prefill, replace(decode, cost=SLOW_LINK)], 0)
    assert far.ttft_s - near.ttft_s == pytest.approx(slow.seconds(4e8) - fast.seconds(4e8))
    # A little more wait is better than a slow link.
    slow_p = worker("a", Role.PREFILL, cost=SLOW_LINK)
    busy_p = worker("b", Role.PREFILL, queued_prefill_tokens=1000)
    assert CostSeconds().choose(asked, [slow_p, busy_p, decode], 0).prefill == "b"


def not_below(score, other):
    return score >= other - 1e-9 * (1 + abs(other))


@given(asked=requests, view=views("w0", (Role.BOTH,)), more=st.integers(1, 5000))
def test_more_load_never_lowers_a_score(asked, view, more):
    view = replace(view, accepting=True)
    score = candidate(asked, view).score
    queued = replace(view, queued_prefill_tokens=view.queued_prefill_tokens + more)
    assert not_below(candidate(asked, queued).score, score)
    waiting = replace(view, waiting_requests=view.waiting_requests + more)
    assert not_below(candidate(asked, waiting).score, score)
    context = replace(view, context_tokens=view.context_tokens + more)
    assert not_below(candidate(asked, context).score, score)
    blocks = replace(view, free_blocks=max(0, view.free_blocks - more))
    assert not_below(candidate(asked, blocks).score, score)


@given(
    asked=requests,
    view=views("w0", (Role.BOTH,)),
    held=hits,
    lost_tokens=st.integers(1, 2000),
)
def test_less_hit_never_lowers_a_score(asked, view, held, lost_tokens):
    view = replace(view, accepting=True, cost=COST)

    def score(kept):
        return candidate(replace(asked, hits={"w0": kept}), view).score

    for less in (shortened(held, lost_tokens), demoted(held, lost_tokens)):
        assert not_below(score(less), score(held))


def shortened(held: TierHits, lost_tokens: int) -> TierHits:
    """The end of the prefix is gone: first what is on the disk."""
    disk = min(held.disk_tokens, lost_tokens)
    host = min(held.host_tokens, lost_tokens - disk)
    device = min(held.device_tokens, lost_tokens - disk - host)
    return TierHits(held.device_tokens - device, held.host_tokens - host, held.disk_tokens - disk)


def demoted(held: TierHits, moved_tokens: int) -> TierHits:
    """The end of what is on the device went to the host."""
    moved = min(held.device_tokens, moved_tokens)
    return TierHits(held.device_tokens - moved, held.host_tokens + moved, held.disk_tokens)


def test_a_cached_prefix_is_worth_more_the_more_wait():
    asked = request(4000, hits={"cached": TierHits(3000)})

    def chosen(waiting_requests):
        queues = {"cached": 14_000, "cold": 10_000}
        fleet = [
            worker(name, queued_prefill_tokens=tokens, waiting_requests=waiting_requests)
            for name, tokens in queues.items()
        ]
        return CostSeconds().choose(asked, fleet, 0).prefill

    # Three chunks saved do not make up for four more to wait for, unless others wait behind.
    assert chosen(0) == "cold"
    assert chosen(2) == "cached"


ADAPTER = "a" * 32


def test_an_adapter_that_is_not_there_costs_its_loading():
    asked = request(1000, adapter=ADAPTER, adapter_bytes=40_000_000)
    there, elsewhere = worker("a", adapters=frozenset([ADAPTER])), worker("b")
    held, missing = candidate(asked, there), candidate(asked, elsewhere)
    assert held == candidate(request(1000), there)
    assert missing.ttft_s - held.ttft_s == pytest.approx(0.1)
    assert missing.score - held.score == pytest.approx(0.1)
    # Neighbours wait for the step in which it starts, too.
    busy = {"running_sequences": 5, "context_tokens": 500}
    held = candidate(asked, worker("a", adapters=frozenset([ADAPTER]), **busy))
    missing = candidate(asked, worker("b", **busy))
    assert missing.score - held.score == pytest.approx(0.1 * 6)
    assert CostSeconds().choose(asked, [elsewhere, there], 0).prefill == "a"


def test_where_it_decodes_its_adapter_is_loaded_too():
    asked = request(1000, adapter=ADAPTER, adapter_bytes=40_000_000)
    fleet = [
        worker("p", Role.PREFILL),
        worker("d0", Role.DECODE),
        worker("d1", Role.DECODE, adapters=frozenset([ADAPTER])),
    ]
    route = CostSeconds().choose(asked, fleet, 0)
    assert route.decode == "d1"
    scores = {each.worker: each.score for each in route.decode_reasons}
    assert scores["d0"] - scores["d1"] == pytest.approx(0.1)
    # A busy worker is left alone for that little all the same.
    load = {"running_sequences": 200, "context_tokens": 200_000}
    busy = worker("d1", Role.DECODE, adapters=frozenset([ADAPTER]), **load)
    assert CostSeconds().choose(asked, [*fleet[:2], busy], 0).decode == "d0"
