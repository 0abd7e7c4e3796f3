"""A tier that takes longer than computing is off for a while, and longer each time."""

from tandem.cluster.tiers.benefit_gate import NS_PER_S, BenefitGate
from tandem.cluster.tiers.config import TierLimits
from tandem.facts.fleet import Tier
from tandem.facts.kv import TierFigures

HOST = TierFigures(Tier.HOST, on=True, blocks=1, capacity_blocks=2)


def gain_of() -> BenefitGate:
    return BenefitGate((Tier.HOST, Tier.DISK), TierLimits(trial_fetches=3, trial_tokens=256))


def fetch(benefit: BenefitGate, s_per_token: float, now_s: int, fetches: int = 3) -> None:
    for _ in range(fetches):
        benefit.fetched(Tier.HOST, 100, 100 * s_per_token, now_s * NS_PER_S)


def test_what_is_quicker_stays_on():
    benefit = gain_of()
    benefit.computed(1000, 1.0)
    fetch(benefit, 0.0005, 1, fetches=50)
    figures = benefit.judged(HOST, NS_PER_S)
    assert figures.on
    assert figures.compute_s_per_token == 0.001
    assert abs(figures.fetch_s_per_token - 0.0005) < 1e-9
    assert not figures.reason


def test_little_evidence_switches_nothing_off():
    benefit = gain_of()
    benefit.computed(1000, 1.0)
    fetch(benefit, 1.0, 1, fetches=2)
    for _ in range(10):
        benefit.fetched(Tier.DISK, 4, 4.0, NS_PER_S)
    assert benefit.is_on(Tier.HOST, NS_PER_S)
    assert benefit.is_on(Tier.DISK, NS_PER_S)


def test_nothing_is_judged_before_computing_was_measured():
    benefit = gain_of()
    fetch(benefit, 1.0, 1)
    assert benefit.is_on(Tier.HOST, NS_PER_S)


def test_what_loses_is_off_for_twice_as_long_each_time_up_to_an_hour():
    benefit = gain_of()
    benefit.computed(1000, 1.0)
    now_s, pauses = 0, []
    for _ in range(8):
        fetch(benefit, 0.002, now_s)
        off = benefit.judged(HOST, now_s * NS_PER_S)
        assert not off.on
        assert off.reason == "fetching takes 2000 us a token, computing 1000 us"
        assert off.fetch_s_per_token > 0.0
        begin_s = now_s
        while not benefit.is_on(Tier.HOST, now_s * NS_PER_S):
            now_s += 60
        pauses.append(now_s - begin_s)
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_a_tier_that_wins_its_trial_is_trusted_again():
    benefit = gain_of()
    benefit.computed(1000, 1.0)
    fetch(benefit, 0.002, 0)
    fetch(benefit, 0.0001, 60)
    assert benefit.judged(HOST, 60 * NS_PER_S).on
    fetch(benefit, 0.1, 61, fetches=2)
    assert not benefit.is_on(Tier.HOST, (61 + 59) * NS_PER_S)
    assert benefit.is_on(Tier.HOST, (61 + 60) * NS_PER_S), "again a minute, not two"


def test_one_fetch_that_was_held_up_switches_nothing_off():
    benefit = gain_of()
    benefit.computed(1000, 1.0)
    for held_up in range(3):
        for number in range(3):
            fetch(benefit, 1.0 if number == held_up else 0.0001, 1, fetches=1)
        assert benefit.is_on(Tier.HOST, NS_PER_S)
        fetch(benefit, 0.0001, 1, fetches=2)


def test_failures_in_a_row_rest_a_tier_for_a_moment():
    benefit = gain_of()
    for _ in range(2):
        benefit.failed(Tier.HOST, "disk full", 0)
    benefit.worked(Tier.HOST)
    benefit.failed(Tier.HOST, "disk full", 0)
    assert benefit.is_on(Tier.HOST, 0)
    for _ in range(2):
        benefit.failed(Tier.HOST, "disk full", 0)
    assert benefit.judged(HOST, 4 * NS_PER_S).reason == "disk full"
    assert benefit.is_on(Tier.HOST, 5 * NS_PER_S)
    assert benefit.is_on(Tier.DISK, 0)


def test_what_fails_while_a_tier_rests_does_not_lengthen_its_rest():
    benefit = gain_of()
    for _ in range(100):
        benefit.failed(Tier.HOST, "nobody is to be reached", 0)
    assert benefit.is_on(Tier.HOST, 5 * NS_PER_S)
    for _ in range(100):
        benefit.failed(Tier.HOST, "nobody is to be reached", 5 * NS_PER_S)
    assert not benefit.is_on(Tier.HOST, 14 * NS_PER_S)
    assert benefit.is_on(Tier.HOST, 15 * NS_PER_S)


def test_the_young_outweighs_the_old():
    benefit = gain_of()
    benefit.computed(4096, 40.96)
    benefit.computed(8 * 4096, 8 * 4.096)
    measured = benefit.judged(HOST, 0).compute_s_per_token
    assert abs(measured - 0.001) < 0.0002
