"""Batches: whose turn it is, how many run, and what comes next in a batch's life."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.batches import (
    MOST_UNWRITTEN,
    OPEN_BATCHES,
    OPEN_OF_OWNER,
    QUIET_S,
    BatchAction,
    BatchStatus,
    BatchView,
    end_of,
    may_hold,
    next_action,
    next_batch,
    next_to_open,
    requests_at_once,
)

IN_PROGRESS, CANCELLING = BatchStatus.IN_PROGRESS, BatchStatus.CANCELLING


def view(name: str, owner: str = "a", serial: int = 0, status=IN_PROGRESS, **more) -> BatchView:
    return BatchView(name, owner, serial, status, **{"opened": True, "waiting": 1} | more)


def test_the_owner_with_the_fewest_running_goes_next_and_its_oldest_batch():
    busy, late, early = (
        view("busy", "a", 0, running=3),
        view("late", "b", 2),
        view("early", "b", 1),
    )
    assert next_batch([busy, late, early]) is early
    assert next_batch([busy, view("more", "b", 1, running=4)]) is busy
    assert next_batch([]) is None


@pytest.mark.parametrize(
    "more",
    [
        {"waiting": 0},
        {"opened": False},
        {"paused": True},
        {"blocked": True},
        {"expired": True},
        {"unwritten": MOST_UNWRITTEN},
        {"status": CANCELLING},
        {"status": BatchStatus.FINALIZING},
    ],
)
def test_who_has_no_turn(more):
    assert next_batch([view("one", **more)]) is None


@pytest.mark.parametrize(
    ("more", "action"),
    [
        ({}, BatchAction.WAIT),
        ({"opened": False}, BatchAction.WAIT),
        ({"unwritten": 2, "running": 1}, BatchAction.WRITE),
        ({"unwritten": 2, "working": True}, BatchAction.WAIT),
        ({"unwritten": 2, "blocked": True}, BatchAction.WAIT),
        ({"unwritten": 2, "paused": True}, BatchAction.WRITE),
        ({"waiting": 0, "running": 1}, BatchAction.WAIT),
        ({"waiting": 0}, BatchAction.FINALIZE),
        ({"status": CANCELLING, "running": 1, "working": True}, BatchAction.STOP),
        ({"status": CANCELLING, "unwritten": 1}, BatchAction.WRITE),
        ({"status": CANCELLING}, BatchAction.FINALIZE),
        ({"expired": True, "running": 1}, BatchAction.STOP),
        ({"expired": True}, BatchAction.FINALIZE),
    ],
)
def test_what_comes_next(more, action):
    assert next_action(view("one", **more)) is action


def test_how_a_batch_ends():
    assert end_of(IN_PROGRESS, expired=False) is BatchStatus.COMPLETED
    assert end_of(BatchStatus.FINALIZING, expired=True) is BatchStatus.EXPIRED
    assert end_of(CANCELLING, expired=True) is BatchStatus.CANCELLED


def test_few_batches_are_open_at_a_time_and_those_that_end_do_not_wait():
    own = [view(f"o{n}", "a", n) for n in range(OPEN_OF_OWNER)]
    closed = view("closed", "a", 99, BatchStatus.VALIDATING, opened=False)
    other = view("other", "b", 100, BatchStatus.VALIDATING, opened=False)
    assert next_to_open([*own, closed]) is None
    assert next_to_open([*own, closed, other]) is other
    ending = view("ending", "a", 101, CANCELLING, opened=False)
    assert next_to_open([*own, closed, ending]) is ending
    assert next_to_open([view("o", blocked=True, opened=False)]) is None
    full = [view(f"o{n}", f"owner {n}", n) for n in range(OPEN_BATCHES)]
    assert next_to_open([*full, other]) is None
    assert next_to_open([*full[1:], other]) is other


@given(st.integers(1, 100), st.floats(0, 2 * QUIET_S))
def test_some_requests_always_run(limit, quiet_s):
    at_once = requests_at_once(limit, quiet_s)
    assert 1 <= at_once <= limit
    assert at_once <= max(1, limit / 4) or quiet_s >= QUIET_S
    assert requests_at_once(limit, math.inf) == limit


@given(st.lists(st.integers(0, 50), min_size=1, max_size=5))
def test_whoever_comes_next_finds_room_in_a_shared_store(holdings):
    held = {}
    for owner, wanted in enumerate(holdings):
        while wanted and not may_hold(100, wanted, sum(held.values()), shared=True):
            wanted -= 1
        held[owner] = wanted
    assert sum(held.values()) < 100
    assert may_hold(100, 100, 0, shared=False)
    assert not may_hold(100, 101, 0, shared=False)
