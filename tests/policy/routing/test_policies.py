"""Laws of every routing policy, and the published formulas on examples worked out by hand."""

from collections import Counter
from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.chance import draw
from tandem.policy.routing.pairing import ScoredRouting
from tandem.policy.routing.policies import ROUTINGS, PowerOfTwo, Seed, make_routing
from tandem.policy.views import TierHits
from tests.policy.routing.fleets import fleets, request, requests, worker

POLICIES = sorted(ROUTINGS)
each_policy = pytest.mark.parametrize("name", POLICIES)
BUSY = {"running_sequences": 200, "waiting_requests": 90, "queued_prefill_tokens": 90_000}


@given(
    name=st.sampled_from(POLICIES),
    asked=requests,
    workers=fleets(),
    seed=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_laws_of_a_choice(name, asked, workers, seed, order):
    policy = make_routing(name, seed)
    route = policy.choose(asked, workers, 0)
    by_id = {view.worker: view for view in workers if view.accepting}
    roles = {view.role for view in by_id.values()}
    if Role.BOTH not in roles and not {Role.PREFILL, Role.DECODE} <= roles:
        assert route is None
        return
    assert by_id[route.prefill].role.prefills
    assert by_id[route.decode].role.decodes
    assert route.local == (by_id[route.prefill].role is Role.BOTH)
    assert {reason.worker for reason in route.prefill_reasons} <= by_id.keys()
    sides = [(route.prefill, route.prefill_reasons)]
    sides += [(route.decode, route.decode_reasons)] if not route.local else []
    for chosen, reasons in sides:
        best = min(reasons, key=lambda reason: (reason.score, reason.worker))
        assert best.worker == chosen
    assert 0 < route.ttft_s < inf
    assert 0 < route.tpot_s < inf

    shuffled = list(workers)
    order.shuffle(shuffled)
    assert policy.choose(asked, shuffled, 7) == route
    # A policy that has seen other fleets answers as a new one does.
    policy.choose(asked, [replace(view, queued_prefill_tokens=9) for view in workers], 0)
    assert policy.choose(asked, workers, 0) == make_routing(name, seed).choose(asked, workers, 0)


@each_policy
def test_equal_workers_tie_by_id(name):
    if name in ("random", "round-robin", "power-of-two"):
        return
    route = make_routing(name, 0).choose(request(), [worker("c"), worker("a"), worker("b")], 0)
    assert route.prefill == route.decode == "a"


@each_policy
def test_nobody_can_take_it(name):
    for workers in (
        [],
        [worker("a", accepting=False)],
        [worker("a", Role.PREFILL)],
        [worker("a", Role.DECODE)],
        [worker("a", Role.PREFILL), worker("b", Role.DECODE, accepting=False)],
    ):
        assert make_routing(name, 0).choose(request(), workers, 0) is None


def choose(name, asked, workers, seed=0):
    return make_routing(name, seed).choose(asked, workers, 0)


def scores(name, asked, workers):
    return [reason.score for reason in choose(name, asked, workers).prefill_reasons]


def test_draws_are_uniform_and_independent_of_order():
    assert draw(1, "a", 2) == draw(1, "a", 2)
    assert draw(1, 23) != draw(12, 3)
    counts = Counter(int(draw(0, "test", n) * 10) for n in range(10_000))
    assert set(counts) == set(range(10))
    # Five standard deviations of a binomial count.
    assert all(abs(count - 1000) < 150 for count in counts.values())


def test_random_and_power_of_two_spread_by_serial():
    workers = [worker(f"w{place}", waiting_requests=place) for place in range(4)]
    random = Counter(choose("random", request(serial=n), workers).prefill for n in range(2000))
    assert all(abs(count - 500) < 100 for count in random.values())
    two = Counter(choose("power-of-two", request(serial=n), workers).prefill for n in range(2000))
    # Of two different ones the less loaded: 1/2, 1/3, 1/6, and the worst never.
    assert "w3" not in two
    assert abs(two["w0"] - 1000) < 110
    assert abs(two["w1"] - 667) < 110


def test_power_of_two_looks_at_two():
    looked_at = PowerOfTwo(Seed(3)).scores(
        request(), [worker(f"w{n}") for n in range(9)], Role.BOTH
    )
    assert sorted(looked_at) == [0.0, 0.0] + [inf] * 7
    assert PowerOfTwo(Seed(3)).scores(request(), [worker("w")], Role.BOTH) == [0.0]


def test_round_robin_goes_round():
    workers = [worker(name) for name in "cab"]
    chosen = [choose("round-robin", request(serial=n), workers).prefill for n in range(5)]
    assert chosen == list("abcab")


def test_least_load_counts_all_requests():
    workers = [
        worker("a", running_sequences=2, waiting_requests=3),
        worker("b", running_sequences=1, waiting_requests=1, expected_decodes=2),
    ]
    assert scores("least-load", request(), workers) == [5.0, 4.0]


def test_prefix_first_follows_the_match_until_load_is_out_of_balance():
    def rule(load_a, load_b, matched):
        workers = [worker("a", waiting_requests=load_a), worker("b", waiting_requests=load_b)]
        asked = request(1000, hits={"a": TierHits(matched)})
        return choose("prefix-first", asked, workers).prefill

    assert rule(64, 0, 301) == "a"
    assert rule(64, 0, 300) == "b"
    assert rule(65, 0, 301) == "b"
    # More than 64 apart, but not by half: 195 is 1.5 * 130.
    assert rule(195, 130, 301) == "a"
    assert rule(196, 130, 301) == "b"


def test_block_cost_is_the_published_formula():
    workers = [
        worker("a", queued_prefill_tokens=160, context_tokens=320),
        worker("b", context_tokens=1600, expected_context_tokens=16),
    ]
    asked = request(1000, hits={"a": TierHits(320, 160, 64), "b": TierHits(2000)})
    # a: 10 + 63 - (20 + 0.75 * 10 + 0.25 * 4) = 44.5, and 20 + 63; b: max(63 - 125, 0) + 101 + 63.
    assert scores("block-cost", asked, workers) == [44.5 + 83, 164.0]
    pair = [replace(workers[0], role=Role.PREFILL), replace(workers[1], role=Role.DECODE)]
    route = choose("block-cost", asked, pair)
    assert [reason.score for reason in route.prefill_reasons] == [44.5]
    assert [reason.score for reason in route.decode_reasons] == [164.0]


@pytest.mark.parametrize(
    ("name", "parameters", "chosen"),
    [
        ("prefix-first", {}, "b"),
        ("prefix-first", {"match_rate": 0.6}, "a"),
        ("prefix-first", {"imbalance_requests": 1}, "a"),
        ("block-cost", {}, "b"),
        ("block-cost", {"device_credit": 0.0}, "a"),
        ("weighted-score", {}, "a"),
        ("weighted-score", {"prefix_weight": 5.0}, "b"),
    ],
)
def test_weights_and_limits_of_published_formulas_are_parameters(name, parameters, chosen):
    workers = [worker("a"), worker("b", waiting_requests=2, queued_prefill_tokens=300)]
    asked = request(1000, hits={"b": TierHits(500)})
    assert make_routing(name, **parameters).choose(asked, workers, 0).prefill == chosen
    for each in parameters:
        with pytest.raises(InvalidConfiguration, match=f"{each} is -1; choose 0 or more"):
            make_routing(name, **{each: -1})


def test_weighted_score_is_the_published_formula():
    workers = [
        worker("a", waiting_requests=4, free_blocks=2_500),
        worker("b", waiting_requests=0, free_blocks=10_000),
        worker("c", waiting_requests=1, free_blocks=5_000),
    ]
    asked = request(1000, hits={"a": TierHits(500, 250)})
    expected = [-(0 + 2 * 0.25 + 3 * 0.75), -(2 + 2), -(2 * 0.75 + 2 * 0.5)]
    assert scores("weighted-score", asked, workers) == pytest.approx(expected)


@dataclass(frozen=True)
class LongestMatch:
    """The trap: the prefix alone decides."""

    def scores(self, request, views, phase):
        return [-float(request.hit(view.worker).tokens) for view in views]


def serve(policy, requests_count: int) -> Counter:
    """Requests that share one system prompt, which a worker keeps once it had a request. None of
    them ends: all load stays where it was sent."""
    workers = {name: worker(name) for name in "abcd"}
    holders: dict[str, TierHits] = {}
    for serial in range(requests_count):
        asked = request(1000, serial, hits=dict(holders))
        chosen = policy.choose(asked, list(workers.values()), 0).prefill
        view = workers[chosen]
        workers[chosen] = replace(
            view,
            waiting_requests=view.waiting_requests + 1,
            queued_prefill_tokens=view.queued_prefill_tokens
            + asked.prompt_tokens
            - asked.hit(chosen).tokens,
        )
        holders[chosen] = TierHits(512)
    return Counter({name: view.waiting_requests for name, view in workers.items()})


def test_longest_match_alone_sends_all_to_one_and_load_terms_do_not():
    assert serve(ScoredRouting(LongestMatch()), 400) == {"a": 400, "b": 0, "c": 0, "d": 0}
    assert min(serve(make_routing("prefix-first", 0), 400).values()) > 0
    ours = serve(make_routing("cost", 0), 400)
    assert max(ours.values()) - min(ours.values()) <= 2


@each_policy
def test_no_prompt_goes_where_it_cannot_fit_while_it_fits_elsewhere(name):
    asked = request(4000)
    small = [
        worker(f"a{place}", role, total_blocks=250, free_blocks=250)
        for place, role in enumerate((Role.PREFILL, Role.DECODE, Role.BOTH))
    ]
    large = [worker("p", Role.PREFILL, **BUSY), worker("d", Role.DECODE, **BUSY)]
    for seed in range(3):
        route = make_routing(name, seed).choose(asked, [*small, *large], 0)
        assert (route.prefill, route.decode) == ("p", "d")
        both = make_routing(name, seed).choose(asked, [*small, worker("z", **BUSY)], 0)
        assert (both.prefill, both.decode) == ("z", "z")
        # Where it fits nowhere, whoever refuses it says why.
        assert make_routing(name, seed).choose(asked, small, 0).prefill == "a0"
