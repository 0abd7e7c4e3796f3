"""Tries of drafts: what they cost is paid off before the next, and what paid needs no try."""

import pytest

from tandem.cluster.worker.draft_tries import PAID_STEPS, TELLING_STEPS, TRY_SHARE, DraftTries


def test_a_try_that_was_given_up_waits_until_its_cost_is_a_small_share_of_the_time():
    tries = DraftTries()
    assert tries.may_begin(4)
    # Three steps of 500, whose tokens would have taken 100 each.
    for _ in range(3):
        tries.drafts_landed(4, took_ns=500.0, plain_ns=100.0)
    tries.ended(4, given_up=True)
    waited_ns = 0.0
    while not tries.may_begin(4):
        # With any number of sequences: all tries together have one budget.
        assert not tries.may_begin(16)
        tries.plain_landed(100.0)
        waited_ns += 100.0
    assert waited_ns == pytest.approx(3 * 400 / TRY_SHARE, rel=0.01)


def test_where_drafts_paid_they_begin_again_whatever_others_have_cost():
    tries = DraftTries()
    for _ in range(PAID_STEPS):
        tries.drafts_landed(1, took_ns=150.0, plain_ns=300.0)
    tries.ended(1, given_up=False)
    tries.drafts_landed(16, took_ns=900.0, plain_ns=300.0)
    tries.ended(16, given_up=True)
    assert tries.may_begin(1)
    assert not tries.may_begin(16)
    # Until they do not pay there any more.
    tries.drafts_landed(1, took_ns=900.0, plain_ns=300.0)
    tries.ended(1, given_up=True)
    assert not tries.may_begin(1)


def test_the_first_steps_of_a_try_are_waited_for():
    tries = DraftTries()
    young = []
    for _ in range(TELLING_STEPS):
        tries.drafts_landed(2, took_ns=200.0, plain_ns=100.0)
        young.append(tries.is_young(2))
    assert young == [True] * (TELLING_STEPS - 1) + [False]
    assert not tries.paying
