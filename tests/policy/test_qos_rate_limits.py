"""Laws of rate limits: an honest wait, a rate that holds over any time, and nothing forgotten."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration, Rejection
from tandem.facts.rate_limits import LimitTerms, RateLimits
from tandem.policy.qos.rate_limits import FORGET_AT, NS_PER_MINUTE, NS_PER_S, RateLimiter

TIMES_NS = st.integers(0, 90 * NS_PER_S)
LIMITS = st.builds(
    RateLimits,
    requests_per_minute=st.none() | st.integers(1, 200),
    tokens_per_minute=st.none() | st.integers(1, 5000),
    burst_s=st.sampled_from([0.0, 0.5, 7.0, 60.0, 600.0]),
)
# How long after the call before, requests and prompt tokens of it, and tokens of its answer.
CALLS = st.lists(
    st.tuples(TIMES_NS, st.integers(1, 6), st.integers(1, 900), st.integers(0, 300)), max_size=30
)


def limiter_of(limits: RateLimits, **terms) -> RateLimiter:
    return RateLimiter(LimitTerms({"acme": limits}, **terms))


class Gate:
    """An account's calls through a limiter, at instants that only grow."""

    def __init__(self, limiter: RateLimiter, now_ns: int = 0) -> None:
        self.limiter = limiter
        self.now_ns = now_ns
        self.let_in: list[tuple[int, int, int]] = []

    def call(self, requests: int = 1, tokens: int = 1, answer: int = 0):
        reached = self.limiter.judge("acme", requests, tokens, self.now_ns)
        if reached is None:
            self.limiter.charge("acme", requests, tokens, self.now_ns)
            self.limiter.charge_tokens("acme", answer, self.now_ns)
            self.let_in.append((self.now_ns, requests, tokens + answer))
        return reached

    def play(self, calls) -> list:
        verdicts = []
        for after_ns, requests, tokens, answer in calls:
            self.now_ns += after_ns
            verdicts.append(self.call(requests, tokens, answer))
        return verdicts


@given(LIMITS, CALLS, st.integers(1, 6), st.integers(1, 900), st.integers(1, 3))
def test_whoever_waits_as_long_as_it_is_told_is_let_in_and_no_sooner(
    limits, calls, requests, tokens, gateways
):
    gate = Gate(limiter_of(limits, gateways=gateways))
    gate.play(calls)
    reached = gate.limiter.judge("acme", requests, tokens, gate.now_ns)
    if reached is not None:
        assert reached.wait_ns > 0
        before_ns = gate.now_ns + reached.wait_ns - 1
        assert gate.limiter.judge("acme", requests, tokens, before_ns) is not None
        assert gate.limiter.judge("acme", requests, tokens, before_ns + 1) is None


@given(LIMITS, CALLS)
def test_over_any_time_no_more_comes_through_than_the_limit_and_the_burst(limits, calls):
    gate = Gate(limiter_of(limits))
    gate.play(calls)
    for limit, place in ((limits.requests_per_minute, 1), (limits.tokens_per_minute, 2)):
        for first in range(len(gate.let_in) if limit is not None else 0):
            came = gate.let_in[first:]
            # The last one may be larger than what was left, and answers are counted as they come.
            spent = sum(each[place] for each in came) - came[-1][place]
            largest = max(each[place] for each in came)
            lasted_ns = came[-1][0] - came[0][0]
            allowed = limit * (lasted_ns / NS_PER_MINUTE + limits.burst_s / 60)
            assert spent <= allowed + largest + 1e-6


@given(LIMITS, CALLS, st.integers(0, 10**15))
def test_shifting_all_instants_changes_nothing(limits, calls, shift_ns):
    assert Gate(limiter_of(limits)).play(calls) == Gate(limiter_of(limits), shift_ns).play(calls)


@given(LIMITS, CALLS)
def test_asking_what_is_left_changes_nothing(limits, calls):
    asked, plain = Gate(limiter_of(limits)), Gate(limiter_of(limits))
    for call in calls:
        asked.limiter.allowance("acme", asked.now_ns + call[0] // 2)
        assert asked.play([call]) == plain.play([call])


def test_what_is_left_is_told_and_comes_back():
    limits = RateLimits(requests_per_minute=60, tokens_per_minute=600, burst_s=30.0)
    gate = Gate(limiter_of(limits))
    left = gate.limiter.allowance("acme", 0)
    assert (left.requests.per_minute, left.requests.remaining, left.tokens.remaining) == (
        60,
        30,
        300,
    )
    for _ in range(10):
        assert gate.call(tokens=20) is None
    left = gate.limiter.allowance("acme", 0)
    assert (left.requests.remaining, left.requests.full_s) == (20, 10.0)
    assert (left.tokens.remaining, left.tokens.full_s) == (100, 20.0)
    left = gate.limiter.allowance("acme", 6 * NS_PER_S)
    assert (left.requests.remaining, left.tokens.remaining) == (26, 160)
    assert gate.limiter.allowance("somebody", 0) is None


def test_a_refused_call_costs_nothing_and_says_what_it_lacks():
    gate = Gate(limiter_of(RateLimits(requests_per_minute=10, tokens_per_minute=100)))
    assert gate.call(requests=8, tokens=90) is None
    before = gate.limiter.allowance("acme", 0)
    reached = gate.call(requests=3, tokens=5)
    assert reached.by is Rejection.REQUESTS
    assert reached.wait_ns == 6 * NS_PER_S
    assert reached.reason == (
        "the limit of 10 requests a minute: 2 of them are left, and this call takes 3"
    )
    assert gate.call(tokens=40).by is Rejection.TOKENS
    assert gate.limiter.allowance("acme", 0) == before


def test_a_prompt_that_is_larger_than_the_bucket_comes_in_when_that_is_full():
    gate = Gate(limiter_of(RateLimits(tokens_per_minute=100)))
    assert gate.call(tokens=250) is None
    reached = gate.call(tokens=1)
    # What it took beyond is made up for.
    assert reached.wait_ns == -(-151 * NS_PER_MINUTE // 100)
    gate.now_ns += reached.wait_ns
    assert gate.call(tokens=1) is None


def test_requests_at_once_are_counted_until_they_end():
    gate = Gate(limiter_of(RateLimits(concurrent_requests=3)))
    for _ in range(3):
        assert gate.call() is None
        gate.limiter.started("acme", 0)
    reached = gate.call()
    assert reached.by is Rejection.CONCURRENT
    assert reached.wait_ns == NS_PER_S
    # From now on one is known to take a minute: of three one ends every twenty seconds or so.
    for _ in range(60):
        gate.limiter.ended("acme", NS_PER_MINUTE)
        gate.limiter.started("acme", 0)
    assert 19 * NS_PER_S < gate.call().wait_ns <= 20 * NS_PER_S
    gate.limiter.ended("acme", 5)
    assert gate.call() is None
    assert gate.call(requests=4).wait_ns == 0


def test_what_was_charged_elsewhere_counts_here():
    limits = RateLimits(requests_per_minute=10, tokens_per_minute=1000, concurrent_requests=4)
    gate = Gate(limiter_of(limits))
    gate.limiter.charge("acme", 9, 900, 0)
    gate.limiter.set_running_elsewhere("acme", 3, 0)
    left = gate.limiter.allowance("acme", 0)
    assert (left.requests.remaining, left.tokens.remaining) == (1, 100)
    assert gate.call() is None
    gate.limiter.started("acme", 0)
    assert {gate.call().by} == {Rejection.REQUESTS}
    gate.now_ns = NS_PER_MINUTE
    assert gate.call().by is Rejection.CONCURRENT


@given(CALLS)
def test_gateways_that_each_let_their_part_through_keep_the_limit_together(calls):
    limits = RateLimits(requests_per_minute=30, tokens_per_minute=2000)
    gates = [Gate(limiter_of(limits, gateways=3)) for _ in range(3)]
    for place, call in enumerate(calls):
        gates[place % 3].now_ns = max(gate.now_ns for gate in gates)
        gates[place % 3].play([call])
    came = sum(each[1] for gate in gates for each in gate.let_in)
    lasted_ns = max(gate.now_ns for gate in gates)
    # A bucket may go below empty by one call.
    assert came <= 30 * (lasted_ns / NS_PER_MINUTE + 1) + 3 * 6


@given(LIMITS, CALLS, CALLS)
def test_limits_that_change_back_and_forth_forget_nothing(limits, calls, later):
    gate, plain = Gate(limiter_of(limits)), Gate(limiter_of(limits))
    assert gate.play(calls) == plain.play(calls)
    for other in (replace(limits, burst_s=3.0), limits):
        gate.limiter.limits_changed(LimitTerms({"acme": other}), gate.now_ns)
    assert gate.play(later) == plain.play(later)


def test_new_limits_hold_at_once_for_what_was_used_before():
    gate = Gate(limiter_of(RateLimits(requests_per_minute=100)))
    for _ in range(40):
        gate.call()
    gate.limiter.limits_changed(LimitTerms({"acme": RateLimits(requests_per_minute=30)}), 0)
    assert gate.call().wait_ns == 22 * NS_PER_S
    gate.limiter.limits_changed(LimitTerms({"acme": RateLimits(requests_per_minute=60)}), 0)
    assert gate.limiter.allowance("acme", 0).requests.remaining == 20
    gate.limiter.limits_changed(LimitTerms(gateways=2), 0)
    assert gate.limiter.allowance("acme", 0) is None
    assert gate.call(requests=1000) is None


def test_accounts_that_owe_nothing_are_forgotten():
    limiter = RateLimiter(LimitTerms(others=RateLimits(requests_per_minute=60)))
    for number in range(100 * FORGET_AT):
        limiter.charge(f"key {number}", 1, 0, number * NS_PER_S // 10)
        assert len(limiter) <= 2 * FORGET_AT
    # Those that owe something are not.
    assert limiter.allowance(f"key {number}", number * NS_PER_S // 10).requests.remaining == 59


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"requests_per_minute": 0}, "requests_per_minute must be at least 1"),
        ({"burst_s": 1e6}, "burst must be from 0s to 86400s"),
    ],
)
def test_limits_that_let_nobody_in_are_refused(limits, told):
    with pytest.raises(InvalidConfiguration, match=told):
        RateLimits(**limits)


def test_accounts_with_requests_under_way_are_not_forgotten():
    limiter = RateLimiter(LimitTerms(others=RateLimits(concurrent_requests=2)))
    limiter.started("one", 0)
    limiter.set_running_elsewhere("other", 2, 0)
    for number in range(3 * FORGET_AT):
        assert limiter.judge(f"key {number}", 1, 0, 0) is None
    assert limiter.running() == {"one": 1}
    assert limiter.judge("other", 1, 0, 0).by is Rejection.CONCURRENT
    limiter.ended("one", 5)


def test_requests_at_once_are_divided_by_the_gateways_and_never_to_nothing():
    limiter = limiter_of(RateLimits(concurrent_requests=5), gateways=2)
    for _ in range(2):
        assert limiter.judge("acme", 1, 0, 0) is None
        limiter.started("acme", 0)
    assert limiter.judge("acme", 1, 0, 0).by is Rejection.CONCURRENT
    assert limiter_of(RateLimits(concurrent_requests=1), gateways=3).judge("acme", 1, 0, 0) is None
