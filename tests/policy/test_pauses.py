"""Plans of pauses: worth it or not, in time, and learnt."""

import pytest

from tandem.policy.pauses import announced_pause, first_pause, plan_pause

S = 1_000_000_000


def test_kv_is_brought_back_before_the_expected_end():
    plan = plan_pause(announced_pause(8.0), pull_s=0.5, longest_s=60.0)
    assert plan.return_in_ns == 8 * S
    # Pulling takes half a second, and a tenth of the pause is left for being wrong.
    assert plan.prefetch_in_ns == round(6.7 * S)
    assert plan.pin_ns == 21 * S


@pytest.mark.parametrize(
    ("pause_s", "pull_s", "longest_s"),
    [(0.0, 0.0, 60.0), (1.0, 0.5, 60.0), (0.03, 0.01, 60.0), (61.0, 0.5, 60.0), (5.0, 1e400, 60.0)],
)
def test_what_gains_nothing_is_not_planned(pause_s, pull_s, longest_s):
    assert plan_pause(announced_pause(pause_s), pull_s, longest_s) is None


def test_no_pin_outlasts_what_the_operator_lets():
    assert plan_pause(announced_pause(50.0), 0.5, 60.0).pin_ns == 60 * S


def test_a_learnt_pause_follows_what_comes_and_says_how_sure_it_is():
    steady = first_pause(2.0)
    for _ in range(40):
        steady = steady.after(2.0)
    assert (steady.seconds, round(steady.deviation_s, 3)) == (2.0, 0.0)
    moved = steady
    for _ in range(40):
        moved = moved.after(6.0)
    assert 5.9 < moved.seconds < 6.0
    erratic = steady
    for seconds in (0.5, 8.0) * 20:
        erratic = erratic.after(seconds)
    # One that is right half of the time is brought back early, but never for most of the pause.
    early, late = plan_pause(erratic, 0.01, 60.0), plan_pause(steady, 0.01, 60.0)
    assert erratic.deviation_s > erratic.seconds / 2
    assert early.prefetch_in_ns / early.return_in_ns == pytest.approx(0.5, abs=0.01)
    assert late.prefetch_in_ns / late.return_in_ns > 0.95
