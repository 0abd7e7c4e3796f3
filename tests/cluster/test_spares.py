"""Workers that stand by: started and drained by the planner, taken at once when more are wanted,
and an operator's when an operator says so; and workers that get stuck, which nobody waits for."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.fleet import PlanningMode, Role
from tandem.messages.cluster import Drain, Undrain
from tandem.messages.gateway import DrainAsked, UndrainAsked
from tandem.policy.planning.contract import Flip, Plan
from tests.cluster.cluster_parts import register
from tests.cluster.scaled_cluster import ScaledCluster
from tests.cluster.test_autoscaling import FIRST, actions, scenes
from tests.seeds import seeds

KEEP = Plan(prefill=1, decode=2)


def with_spares(count: int = 1, **planning) -> ScaledCluster:
    """The first spares are up, and stand by."""
    cluster = ScaledCluster(spares=count, **planning)
    cluster.tick(KEEP)
    cluster.start_wanted()
    cluster.carry_out()
    return cluster


def status(cluster: ScaledCluster):
    return cluster.planner.status(cluster.gateway.now_ns)


def test_a_spare_is_started_and_drained_and_counts_for_nothing():
    cluster = ScaledCluster(spares=2)
    cluster.tick(KEEP)
    assert actions(cluster) == ["p-1 starts as a spare", "d-2 starts as a spare"]
    cluster.start_wanted()
    assert [order for _, order in cluster.orders] == [Drain(spare=True)] * 2
    cluster.carry_out()
    assert cluster.roles == FIRST
    assert status(cluster).spares == ("d-2", "p-1")
    cluster.tick(KEEP)
    assert actions(cluster) == []
    view = cluster.policy.seen[-1]
    assert (view.spares, view.starting, len(view.workers)) == (2, {}, 3)
    shown = {each.worker: each.spare for each in cluster.gateway.machine.status(0).workers}
    assert shown == {"d-0": False, "d-1": False, "d-2": True, "p-0": False, "p-1": True}


def test_a_spare_takes_requests_at_once_and_another_one_is_started():
    cluster = with_spares()
    cluster.tick(Plan(prefill=2, decode=2))
    assert actions(cluster) == ["spare p-1 takes requests as prefill", "p-2 starts as a spare"]
    assert cluster.workers["p-1"].orders[-1] == Undrain()
    cluster.carry_out()
    assert cluster.roles == FIRST | {"p-1": "prefill"}
    assert (status(cluster).held, status(cluster).activations) == ((), 1)
    cluster.tick(Plan(prefill=2, decode=2))
    assert actions(cluster) == []


def test_a_spare_changes_its_role_with_nothing_to_drain():
    cluster = with_spares()
    cluster.tick(Plan(prefill=1, decode=3))
    assert actions(cluster)[0] == "spare p-1 takes requests as decode"
    cluster.carry_out()
    assert cluster.roles == FIRST | {"p-1": "decode"}
    assert status(cluster).held == ()


def test_who_is_not_needed_stands_by_where_a_spare_is_missing():
    cluster = with_spares()
    cluster.tick(Plan(prefill=1, decode=3))
    cluster.carry_out()
    # Its successor has not come up.
    cluster.fail_start("p-2")
    cluster.tick(Plan(prefill=1, decode=2))
    cluster.carry_out()
    assert len(status(cluster).spares) + len(status(cluster).starting) == 1


@pytest.mark.parametrize("here", [True, False], ids=["asked here", "asked another gateway"])
def test_an_operator_may_take_a_spare(here):
    cluster = with_spares(hold_s=60)
    if here:
        cluster.operator(DrainAsked(1, "p-1"))
        cluster.carry_out()
    else:
        cluster.drain_elsewhere("p-1", Drain())
    assert [(held.worker, held.why) for held in status(cluster).held] == [("p-1", "drained")]
    cluster.tick(KEEP)
    assert actions(cluster) == ["p-2 starts as a spare"]


def test_undraining_a_spare_by_hand_holds():
    cluster = with_spares(hold_s=60)
    cluster.operator(UndrainAsked(1, "p-1"))
    cluster.carry_out()
    assert cluster.roles == FIRST | {"p-1": "prefill"}
    assert [held.why for held in status(cluster).held] == ["undrained"]
    cluster.tick(KEEP)
    assert "p-1" not in " ".join(actions(cluster))


def test_a_new_gateway_knows_spares_from_drained_workers():
    cluster = ScaledCluster(spares=1)
    cluster.gateway.receive(register("p-1", Role.PREFILL, accepting=False, spare=True))
    cluster.gateway.receive(register("d-2", Role.DECODE, accepting=False))
    assert status(cluster).spares == ("p-1",)
    assert [held.worker for held in status(cluster).held] == ["d-2"]
    cluster.tick(KEEP)
    assert actions(cluster) == []


def test_a_spare_that_died_comes_back_as_one():
    cluster = with_spares()
    cluster.die("p-1")
    cluster.tick(KEEP)
    assert actions(cluster) == []
    cluster.join("p-1", Role.PREFILL)
    cluster.carry_out()
    assert cluster.roles == FIRST
    assert status(cluster).spares == ("p-1",)


def test_who_never_finishes_draining_is_not_waited_for():
    cluster = ScaledCluster(patience_s=60)
    cluster.tick(Plan(prefill=1, decode=1))
    cluster.workers["d-1"].orders.clear()
    cluster.drain_elsewhere("d-1", Drain())
    cluster.tick(seconds=30)
    assert [view.worker for view in cluster.policy.seen[-1].workers] == ["d-0", "d-1", "p-0"]
    cluster.tick(seconds=32)
    # Nobody takes the fleet for one that changes any more, and others are planned.
    assert [view.worker for view in cluster.policy.seen[-1].workers] == ["d-0", "p-0"]
    assert [each.worker for each in status(cluster).stuck] == ["d-1"]
    cluster.tick(Plan(prefill=1, decode=2))
    assert actions(cluster) == ["d-2 starts as decode"]


def test_a_flip_that_hangs_is_replaced_and_counts_again_when_it_is_done():
    cluster = ScaledCluster(patience_s=60)
    cluster.tick(Plan(prefill=2, decode=1, flips=(Flip("d-1", "prefill"),)))
    order = cluster.workers["d-1"].orders.popleft()
    cluster.drain_elsewhere("d-1", Drain())
    cluster.tick(seconds=62)
    cluster.tick(Plan(prefill=2, decode=1))
    assert actions(cluster) == ["p-1 starts as prefill"]
    cluster.drain_elsewhere("d-1", order)
    assert (status(cluster).stuck, status(cluster).held) == ((), ())
    assert cluster.roles["d-1"] == "prefill"


def test_a_name_that_never_starts_is_tried_ever_less_often():
    cluster = ScaledCluster()
    waits_s = []
    for _ in range(3):
        cluster.tick(Plan(prefill=2, decode=2))
        assert actions(cluster) == ["p-1 starts as prefill"]
        cluster.fail_start("p-1")
        (stuck,) = status(cluster).stuck
        assert "no memory" in stuck.why
        waits_s.append(int(stuck.why.split()[-2]))
        cluster.tick(seconds=waits_s[-1] + 1)
    assert waits_s == [60, 120, 240]
    cluster.join("p-1", Role.PREFILL)
    assert status(cluster).stuck == ()


def test_where_nobody_orders_any_more_spares_take_requests_again():
    cluster = with_spares()
    cluster.apply(mode=PlanningMode.ADVISORY)
    cluster.tick(KEEP)
    cluster.carry_out()
    assert cluster.roles == FIRST | {"p-1": "prefill"}
    assert (status(cluster).spares, status(cluster).held) == ((), ())


def test_spares_take_requests_again_when_planning_is_switched_off():
    cluster = with_spares(count=3, hold_s=60)
    cluster.operator(DrainAsked(1, "p-1"))
    cluster.carry_out()
    # One more is on its way when planning ends.
    cluster.tick(KEEP)
    (coming,) = cluster.wanted
    cluster.plan_no_more()
    cluster.carry_out()
    cluster.join(coming, Role.DECODE)
    cluster.tick(seconds=5)
    cluster.carry_out()
    up = {"p-2": "prefill", "d-2": "decode", coming: "decode"}
    assert cluster.roles == FIRST | up
    # What the operator has drained stays the operator's.
    assert not cluster.workers["p-1"].accepting
    cluster.apply()
    cluster.tick(KEEP)
    cluster.tick(KEEP)
    assert [held.worker for held in status(cluster).held] == ["p-1"]


@given(st.integers(0, 2**32))
@settings(max_examples=seeds(40, 400), deadline=None)
def test_whatever_happens_spares_and_hands_are_told_apart(seed):
    chance, cluster = Random(seed), ScaledCluster(hold_s=20, spares=1 + seed % 3)
    for _ in range(30):
        scenes(chance, cluster)
        cluster.gateway.machine.audit()
        shown = status(cluster)
        assert not set(shown.spares) & {held.worker for held in shown.held}


def test_a_planner_that_comes_back_asks_anew_for_what_it_wants_now():
    cluster = ScaledCluster()
    cluster.tick(Plan(prefill=2, decode=2))
    assert actions(cluster) == ["p-1 starts as prefill"]
    cluster.plan_no_more()
    cluster.tick(seconds=100)
    cluster.apply(spares=1)
    cluster.tick(KEEP)
    assert actions(cluster) == ["p-1 starts as a spare"]
    assert cluster.planner.fleet.failed_starts == 0


@given(st.integers(0, 2**32))
@settings(max_examples=seeds(30, 300), deadline=None)
def test_nobody_is_left_standing_by_whatever_happens_before_planning_is_switched_off(seed):
    chance, cluster = Random(seed), ScaledCluster(hold_s=20, spares=1 + seed % 3)
    for _ in range(3):
        for _ in range(10):
            scenes(chance, cluster)
        cluster.carry_out()
        held = {each.worker for each in status(cluster).held}
        if chance.randrange(2):
            cluster.plan_no_more()
        else:
            cluster.apply(mode=PlanningMode.ADVISORY)
            # The first workers are waited for.
            cluster.tick(seconds=20)
            cluster.look()
        cluster.carry_out()
        cluster.tick(seconds=1)
        waiting = {name for name, each in cluster.workers.items() if each.spare}
        assert waiting <= held
        cluster.apply(mode=PlanningMode.AUTOMATIC)
