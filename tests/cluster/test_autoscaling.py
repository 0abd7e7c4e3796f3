"""What a planner's wishes come to: starts, drains and flips, within the bounds of the pools and
within what operators do by hand."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tandem.facts.fleet import PlanningMode, Role
from tandem.facts.request import Request
from tandem.messages.cluster import Drain, Undrain
from tandem.messages.gateway import (
    DrainAsked,
    OperationEnded,
    PeerGone,
    PlanDecided,
    UndrainAsked,
)
from tandem.messages.router import CutOff, Reject, RequestSubmitted, RequestWithdrawn
from tandem.policy.planning.contract import Flip, Move, Plan
from tandem.policy.qos.classes import Classes, ServiceClass
from tests.cluster.cluster_parts import GatewayUnderTest, drew, of_kind, register
from tests.cluster.scaled_cluster import DECODE, PREFILL, SECOND, ScaledCluster
from tests.seeds import seeds

FIRST = {"d-0": "decode", "d-1": "decode", "p-0": "prefill"}


def actions(cluster: ScaledCluster) -> list[str]:
    """Of the last decision."""
    return [action.text for action in cluster.decisions[-1].actions]


def test_a_gateway_without_planning_decides_nothing():
    gateway = GatewayUnderTest(register("a"))
    effects = gateway.pass_time(10**11)
    assert not of_kind(effects, PlanDecided)
    assert gateway.machine.status(gateway.now_ns).planning is None


def test_missing_workers_are_started_once_with_the_hardware_of_their_role_first():
    cluster = ScaledCluster()
    cluster.tick(Plan(prefill=4, decode=3, reason="more"))
    assert actions(cluster) == [
        "p-1 starts as prefill",
        "p-2 starts as prefill",
        "d-2 starts as prefill",
        "d-3 starts as decode",
    ]
    cluster.tick(Plan(prefill=4, decode=3))
    assert actions(cluster) == []
    cluster.start_wanted()
    assert cluster.roles == FIRST | {
        "p-1": "prefill",
        "p-2": "prefill",
        "d-2": "prefill",
        "d-3": "decode",
    }
    cluster.tick(Plan(prefill=9, decode=9))
    assert actions(cluster) == []


def test_the_newest_goes_first_and_leaves():
    cluster = ScaledCluster()
    cluster.tick(Plan(decode=3))
    cluster.start_wanted()
    cluster.tick(Plan(decode=2))
    assert actions(cluster) == ["d-2 drains and goes"]
    assert cluster.orders == [("d-2", Drain(leave=True))]
    cluster.tick(Plan(decode=2))
    assert actions(cluster) == []
    cluster.carry_out()
    assert cluster.roles == FIRST
    # It may be had again.
    cluster.tick(Plan(decode=3))
    assert actions(cluster) == ["d-2 starts as decode"]


def test_a_pool_keeps_its_least():
    cluster = ScaledCluster()
    cluster.tick(Plan(prefill=0, decode=0))
    assert actions(cluster) == ["d-1 drains and goes"]


def test_a_flip_counts_in_its_new_role_and_its_end_is_reported_to_no_operator():
    cluster = ScaledCluster()
    cluster.tick(Plan(prefill=2, decode=1, flips=(Flip("d-1", "prefill"),)))
    assert actions(cluster) == ["d-1 becomes prefill"]
    cluster.tick(Plan(prefill=2, decode=1))
    assert actions(cluster) == []
    assert cluster.policy.seen[-1].starting == {"prefill": 1}
    cluster.carry_out()
    assert cluster.roles == FIRST | {"d-1": "prefill"}
    assert not of_kind(cluster.effects, OperationEnded)
    assert cluster.planner.status(cluster.gateway.now_ns).held == ()


def test_the_last_worker_of_a_phase_is_never_taken_from_it():
    cluster = ScaledCluster()
    cluster.tick(
        Plan(flips=(Flip("p-0", "decode"), Flip("d-0", "prefill"), Flip("d-1", "prefill")))
    )
    assert actions(cluster) == ["d-0 becomes prefill"]


def test_advice_is_recorded_and_nothing_is_done():
    cluster = ScaledCluster(mode=PlanningMode.ADVISORY)
    plan = Plan(prefill=1, decode=3, flips=(Flip("d-1", "prefill"),), reason="busy")
    for _ in range(3):
        cluster.tick(plan)
        assert (
            actions(cluster)
            == [
                "d-1 becomes prefill",
                "d-2 starts as decode",
                "d-3 starts as decode",
                "p-0 drains and goes",
            ][:3]
        )
    assert cluster.decisions[-1].text.startswith("busy: would do: d-1 becomes prefill; ")
    assert not cluster.orders
    assert not cluster.wanted
    status = cluster.planner.status(cluster.gateway.now_ns)
    assert (status.starts, status.flips, status.starting, status.draining) == (0, 0, (), ())
    # It is recorded at each tick, and shown once.
    assert [decision.serial for decision in status.decisions] == [1]
    cluster.tick(Plan(reason="idle"))
    status = cluster.planner.status(cluster.gateway.now_ns)
    assert status.last_reason == "idle"
    assert [decision.serial for decision in status.decisions] == [1]
    assert [decision.serial for decision in cluster.decisions] == [1, 2, 3, 4]


def test_who_died_is_waited_for_and_then_replaced():
    cluster = ScaledCluster()
    cluster.die("d-1")
    cluster.tick(Plan(prefill=1, decode=2))
    assert actions(cluster) == []
    # A start would have taken 5 s; whoever launched it has not brought it back.
    cluster.tick(seconds=16)
    cluster.tick(Plan(prefill=1, decode=2))
    assert actions(cluster) == ["d-1 starts as decode"]


def test_a_worker_that_is_given_up_makes_room_for_another():
    cluster = ScaledCluster()
    cluster.tick(Plan(decode=3))
    assert cluster.wanted == {"d-2": Role.DECODE}
    cluster.fail_start("d-2")
    cluster.tick(Plan(decode=3))
    assert actions(cluster) == ["d-3 starts as decode"]
    cluster.die("d-0")
    cluster.fail_start("d-0")
    cluster.tick(Plan(prefill=1, decode=3))
    # It is not tried again at once, and there is no other name but those of the other pool.
    assert actions(cluster) == ["p-1 starts as decode"]
    assert cluster.planner.status(cluster.gateway.now_ns).failed_starts == 1


def test_what_never_comes_up_is_given_up():
    cluster = ScaledCluster()
    cluster.tick(Plan(decode=3))
    cluster.tick(seconds=59)
    assert cluster.planner.status(cluster.gateway.now_ns).starting
    cluster.tick(seconds=3)
    status = cluster.planner.status(cluster.gateway.now_ns)
    assert (status.starting, status.failed_starts) == ((), 1)


def test_nothing_is_planned_before_the_first_workers_are_up():
    cluster = ScaledCluster(joined=("p-0", "d-0"))
    cluster.tick(Plan(prefill=1, decode=1))
    assert cluster.decisions == []
    cluster.join("d-1", Role.DECODE)
    cluster.tick(Plan(prefill=1, decode=1))
    assert actions(cluster) == ["d-1 drains and goes"]
    # One that has not come up in its time is no reason to wait for ever.
    late = ScaledCluster(joined=("p-0", "d-0"))
    late.tick(Plan(prefill=1, decode=2), seconds=16)
    assert [action.text for action in late.decisions[0].actions] == ["d-1 starts as decode"]


def test_an_operators_drain_holds_until_it_is_undrained():
    cluster = ScaledCluster()
    cluster.operator(DrainAsked(1, "d-1"))
    cluster.carry_out()
    cluster.orders.clear()
    cluster.tick(Plan(prefill=1, decode=3, flips=(Flip("d-1", "prefill"),)))
    # It does not count either: what it did another one is to do.
    assert actions(cluster) == ["d-2 starts as decode", "d-3 starts as decode"]
    assert [view.worker for view in cluster.policy.seen[-1].workers] == ["d-0", "p-0"]
    cluster.tick(Plan(prefill=1, decode=1), seconds=3600)
    status = cluster.planner.status(cluster.gateway.now_ns)
    assert [(held.worker, held.why, held.left_s) for held in status.held] == [
        ("d-1", "drained", None)
    ]
    assert cluster.orders == []
    cluster.operator(UndrainAsked(2, "d-1"))
    cluster.carry_out()
    assert cluster.planner.status(cluster.gateway.now_ns).held == ()
    cluster.tick(Plan(prefill=1, decode=1))
    assert actions(cluster) == ["d-1 drains and goes"]


@pytest.mark.parametrize("here", [True, False], ids=["asked here", "asked another gateway"])
def test_an_operators_flip_holds_for_its_time(here):
    cluster = ScaledCluster(hold_s=60)
    if here:
        cluster.operator(DrainAsked(1, "d-1", Drain(then_role=Role.PREFILL)))
        cluster.carry_out()
        cluster.orders.clear()
    else:
        cluster.drain_elsewhere("d-1", Drain(then_role=Role.PREFILL))
    plan = Plan(prefill=1, decode=2, flips=(Flip("d-1", "decode"),))
    cluster.tick(plan)
    assert actions(cluster) == ["d-2 starts as decode"]
    assert cluster.policy.seen[-1].held == {"d-1"}
    cluster.tick(seconds=50)
    held = cluster.planner.status(cluster.gateway.now_ns).held
    assert [each.why for each in held] == ["flipped to prefill"]
    assert 0 < held[0].left_s < 10
    cluster.tick(seconds=10)
    cluster.tick(Plan(flips=(Flip("d-1", "decode"),)))
    assert actions(cluster) == ["d-1 becomes decode"]


def test_undrain_gives_a_flipped_worker_back_at_once():
    cluster = ScaledCluster()
    cluster.drain_elsewhere("d-1", Drain(then_role=Role.PREFILL))
    effects = cluster.operator(UndrainAsked(7, "d-1"))
    assert of_kind(effects, OperationEnded) == [OperationEnded(7)]
    cluster.tick(Plan(flips=(Flip("d-1", "decode"),)))
    assert actions(cluster) == ["d-1 becomes decode"]


def test_an_operators_order_goes_before_that_of_the_planner():
    cluster = ScaledCluster()
    cluster.tick(Plan(flips=(Flip("d-1", "prefill"),)))
    effects = cluster.operator(DrainAsked(1, "d-1"))
    assert not of_kind(effects, OperationEnded)
    cluster.workers["d-1"].orders.popleft()
    cluster.carry_out()
    assert cluster.orders[-1] == ("d-1", Drain())
    cluster.tick(Plan(prefill=1, decode=1))
    assert [held.why for held in cluster.planner.status(cluster.gateway.now_ns).held] == ["drained"]
    assert actions(cluster) == []


def test_undraining_what_the_planner_drains_holds():
    cluster = ScaledCluster(hold_s=60)
    cluster.tick(Plan(prefill=1, decode=1))
    assert cluster.orders == [("d-1", Drain(leave=True))]
    # It drains, and has not left yet.
    cluster.workers["d-1"].orders.clear()
    cluster.drain_elsewhere("d-1", Drain())
    cluster.drain_elsewhere("d-1", Undrain())
    cluster.tick(Plan(prefill=1, decode=1))
    assert actions(cluster) == ["d-0 drains and goes"]


def test_what_an_operator_sent_away_is_not_started_again_for_a_time():
    cluster = ScaledCluster(hold_s=60)
    cluster.drain_elsewhere("d-1", Drain(leave=True))
    cluster.tick(Plan(prefill=1, decode=2))
    assert actions(cluster) == ["d-2 starts as decode"]
    cluster.start_wanted()
    cluster.tick(Plan(prefill=1, decode=3))
    assert actions(cluster) == ["d-3 starts as decode"]
    cluster.start_wanted()
    cluster.tick(seconds=60)
    cluster.tick(Plan(prefill=1, decode=4))
    assert actions(cluster) == ["d-1 starts as decode"]


def test_a_worker_that_an_operator_restarts_is_left_alone():
    cluster = ScaledCluster(hold_s=60)
    cluster.drain_elsewhere("d-1", Drain(leave=True, again=True))
    cluster.tick(seconds=30)
    cluster.join("d-1", Role.DECODE)
    cluster.tick(Plan(prefill=1, decode=1), seconds=59)
    held = cluster.planner.status(cluster.gateway.now_ns).held
    assert [each.why for each in held] == ["restarted"]
    assert actions(cluster) == []


def test_what_an_operator_restarts_or_flips_is_waited_for():
    cluster = ScaledCluster()
    cluster.operator(DrainAsked(1, "d-1", Drain(leave=True, again=True)))
    for _ in range(2):
        cluster.tick(Plan(prefill=1, decode=2))
        assert actions(cluster) == []
    order = cluster.workers["d-1"].orders.popleft()
    cluster.drain_elsewhere("d-1", Drain())
    cluster.tick(Plan(prefill=1, decode=2))
    assert actions(cluster) == []
    cluster.drain_elsewhere("d-1", order)
    assert "d-1" not in cluster.workers
    cluster.tick(Plan(prefill=1, decode=2))
    assert actions(cluster) == []
    cluster.join("d-1", Role.DECODE)
    cluster.operator(DrainAsked(2, "d-1", Drain(then_role=Role.PREFILL)))
    cluster.workers["d-1"].orders.clear()
    cluster.drain_elsewhere("d-1", Drain())
    cluster.tick(Plan(prefill=2, decode=1))
    assert actions(cluster) == []
    assert cluster.policy.seen[-1].starting == {"prefill": 1}


def test_joined_workers_count_and_never_leave():
    cluster = ScaledCluster()
    cluster.join("mine", Role.DECODE)
    cluster.tick(Plan(prefill=1, decode=3))
    assert actions(cluster) == []
    assert cluster.policy.seen[-1].max_workers == PREFILL.max_count + DECODE.max_count + 1
    for _ in range(3):
        cluster.tick(Plan(prefill=1, decode=0))
        cluster.carry_out()
    assert cluster.roles == {"d-0": "decode", "mine": "decode", "p-0": "prefill"}


def test_a_planners_order_survives_a_broken_connection():
    cluster = ScaledCluster()
    cluster.tick(Plan(flips=(Flip("d-1", "prefill"),)))
    played = cluster.workers["d-1"]
    played.orders.clear()
    cluster.drain_elsewhere("d-1", Drain())
    peer_died = played.incarnation
    cluster.die("d-1")
    cluster.workers["d-1"] = played
    cluster.effects += cluster.gateway.receive(
        register("d-1", Role.DECODE, incarnation=str(peer_died), accepting=False)
    )
    assert cluster.planner.status(cluster.gateway.now_ns).held == ()
    cluster.drain_elsewhere("d-1", Drain(then_role=Role.PREFILL))
    assert cluster.planner.status(cluster.gateway.now_ns).held == ()
    assert cluster.roles["d-1"] == "prefill"


def test_a_hold_survives_a_broken_connection_and_is_no_longer_for_it():
    cluster = ScaledCluster(hold_s=60)
    cluster.drain_elsewhere("d-1", Drain(then_role=Role.PREFILL))
    cluster.drain_elsewhere("d-0", Drain())
    for worker in ("d-0", "d-1"):
        cluster.tick(seconds=20)
        played = cluster.workers[worker]
        cluster.die(worker)
        cluster.workers[worker] = played
        incarnation, accepting = str(played.incarnation), played.accepting
        cluster.gateway.receive(
            register(worker, played.role, incarnation=incarnation, accepting=accepting)
        )
    shown = cluster.planner.status(cluster.gateway.now_ns).held
    assert [(held.worker, held.why) for held in shown] == [
        ("d-0", "drained"),
        ("d-1", "flipped to prefill"),
    ]
    assert shown[1].left_s == pytest.approx(20.0)


def test_an_order_that_was_not_received_before_the_connection_broke_is_forgotten():
    cluster = ScaledCluster()
    cluster.tick(Plan(prefill=1, decode=1))
    played = cluster.workers["d-1"]
    played.orders.clear()
    cluster.die("d-1")
    cluster.workers["d-1"] = played
    cluster.gateway.receive(register("d-1", Role.DECODE, incarnation=str(played.incarnation)))
    status = cluster.planner.status(cluster.gateway.now_ns)
    assert (status.draining, status.held) == ((), ())
    cluster.tick(Plan(prefill=1, decode=1))
    assert actions(cluster) == ["d-1 drains and goes"]


def test_the_planner_learns_what_clients_got():
    cluster = ScaledCluster()
    gateway = cluster.gateway
    for serial in range(4):
        gateway.submit(f"r{serial}", prompt_tokens=9)
    gateway.pass_time(SECOND // 2)
    gateway.receive(drew("p-0", "r0", "r1"), incarnation="1")
    gateway.pass_time(SECOND // 4)
    gateway.handle(RequestWithdrawn("r1"), RequestWithdrawn("r2"))
    cluster.tick(seconds=31)
    (window,) = cluster.policy.seen[-1].windows
    # A client that left was served that far; who got nothing shows no lengths.
    assert (window.requests, window.lengths) == (4, ((9, 1),))
    assert window.ttft_s == pytest.approx((0.5,))
    figures = dict(cluster.decisions[-1].figures)
    assert figures["arrivals_per_s"] == pytest.approx(4 / 30)
    assert figures["ttft_kept"] == 1.0
    assert figures["output_tokens"] == 1.0


def test_an_answer_that_is_cut_off_was_work():
    cluster = ScaledCluster()
    gateway = cluster.gateway
    for name, due_ns in (("cut", SECOND // 2), ("late", None)):
        request = Request(name, tuple(range(9)))
        waited_ns = gateway.now_ns - SECOND // 4
        event = RequestSubmitted(request, 10.0, answer_due_ns=due_ns, arrived_ns=waited_ns)
        gateway.handle(structs.replace(event, deadline_ns=None if due_ns else SECOND // 2))
    gateway.receive(drew("p-0", "cut"), incarnation="1")
    effects = gateway.pass_time(SECOND * 3 // 4)
    assert [each.request_id for each in of_kind(effects, CutOff)] == ["cut"]
    assert [each.request_id for each in of_kind(effects, Reject)] == ["late"]
    cluster.tick(seconds=31)
    (window,) = cluster.policy.seen[-1].windows
    assert (window.requests, window.lengths) == (2, ((9, 1),))
    # With what it had waited before it could be submitted.
    assert window.ttft_s == pytest.approx((0.25,))


def test_what_an_operator_did_holds_while_planning_is_off():
    cluster = ScaledCluster(hold_s=60)
    cluster.drain_elsewhere("d-1", Drain(Role.PREFILL))
    cluster.tick(Plan(prefill=1, decode=2), seconds=1)
    cluster.tick(Plan(prefill=2, decode=1, flips=(Flip("d-1", "decode"),)))
    assert "d-1" not in " ".join(actions(cluster))
    cluster.plan_no_more()
    cluster.tick(seconds=5)
    cluster.apply()
    cluster.tick(Plan(prefill=1, decode=2, flips=(Flip("d-1", "decode"),)))
    status = cluster.planner.status(cluster.gateway.now_ns)
    assert [(held.worker, held.why) for held in status.held] == [("d-1", "flipped to prefill")]
    assert "d-1" not in " ".join(actions(cluster))


def test_an_order_under_way_stays_the_planners_while_planning_is_off():
    cluster = ScaledCluster(hold_s=60)
    cluster.tick(Plan(prefill=2, decode=1, flips=(Flip("d-1", "prefill"),)))
    order = cluster.workers["d-1"].orders.popleft()
    cluster.plan_no_more()
    cluster.drain_elsewhere("d-1", order)
    cluster.apply()
    cluster.tick(Plan(prefill=2, decode=1))
    assert cluster.planner.status(cluster.gateway.now_ns).held == ()
    assert actions(cluster) == []


def scenes(chance: Random, cluster: ScaledCluster) -> None:
    """Something happens, and the next tick wants something."""
    worker = chance.choice(sorted({*PREFILL.workers, *DECODE.workers}))
    lives = worker in cluster.workers
    match chance.randrange(8):
        case 0 if lives:
            cluster.die(worker)
        case 1 if lives:
            order = chance.choice(
                [Drain(), Drain(Role.PREFILL), Drain(Role.DECODE), Drain(leave=True), Undrain()]
            )
            cluster.drain_elsewhere(worker, order)
        case 2 if lives:
            cluster.operator(DrainAsked(1 + chance.randrange(100), worker))
        case 3 if lives:
            cluster.operator(UndrainAsked(1 + chance.randrange(100), worker))
        case 4 if worker in cluster.wanted:
            cluster.fail_start(worker)
        case 5 if not lives:
            cluster.join(worker, chance.choice([Role.PREFILL, Role.DECODE]))
        case 6:
            cluster.carry_out()
        case _:
            cluster.start_wanted()
    before = {w for w, played in cluster.workers.items() if played.accepting}
    # On the planner's order: they stay in their pool.
    flipping = {w for w, role in cluster.planner.fleet.draining.items() if role is not None}
    held = {each.worker for each in cluster.planner.status(cluster.gateway.now_ns).held}
    seen = len(cluster.orders), len(cluster.decisions)
    flips = [Flip(w, chance.choice(["prefill", "decode"])) for w in sorted(before)]
    flips = [flip for flip in flips if chance.random() < 0.2]
    moves = (Move(worker, chance.choice(sorted(before)), 10),) if before else ()
    plan = Plan(chance.randrange(6), chance.randrange(6), flips=tuple(flips), moves=moves)
    cluster.tick(plan, seconds=chance.choice([1.0, 1.0, 7.0]))
    for ordered, order in cluster.orders[seen[0] :]:
        if order.leave:
            pool = PREFILL if ordered.startswith("p") else DECODE
            staying = (before | flipping) & set(pool.workers) - {ordered}
            going = {w for w, each in cluster.orders[seen[0] :] if each.leave}
            assert len(staying - going) >= pool.min_count
    acted = {
        action.worker for decision in cluster.decisions[seen[1] :] for action in decision.actions
    }
    # A hold may have ended within the tick, whose time is at most seven seconds.
    assert (
        not acted
        & held
        & {each.worker for each in cluster.planner.status(cluster.gateway.now_ns).held}
    )
    assert cluster.wanted.keys() <= {*PREFILL.workers, *DECODE.workers}


@given(st.integers(0, 2**32))
@settings(max_examples=seeds(60, 600), deadline=None)
def test_whatever_happens_bounds_and_hands_are_heeded(seed):
    """The launcher of the test refuses a name that lives or is started already."""
    chance, cluster = Random(seed), ScaledCluster(hold_s=20)
    for _ in range(30):
        scenes(chance, cluster)


@given(st.integers(0, 2**32), st.integers(0, 10**18))
@settings(max_examples=seeds(10, 100), deadline=None)
def test_the_same_happenings_give_the_same_plans_whenever_they_begin(seed, begin_ns):
    runs = []
    for start_ns in (0, begin_ns):
        chance, cluster = Random(seed), ScaledCluster(hold_s=20, begin_ns=start_ns)
        for _ in range(15):
            scenes(chance, cluster)
        decisions = [
            structs.replace(each, instant_ns=each.instant_ns - start_ns)
            for each in cluster.decisions
        ]
        runs.append((decisions, cluster.orders, cluster.wanted))
    assert runs[0] == runs[1]


def test_workers_that_are_a_classs_own_and_what_they_serve_are_no_part_of_the_plan():
    lane = ServiceClass("fast", pools=("lane",))
    cluster = ScaledCluster(classes=Classes((lane, ServiceClass("usual")), default="usual"))
    gateway = cluster.gateway
    gateway.receive(register("lane-0", Role.BOTH, pool="lane"))

    def windows() -> int:
        """The requests in the last window, of one per class."""
        for name in ("fast", "usual"):
            asked = Request(f"{name}{gateway.now_ns}", tuple(range(9)))
            gateway.handle(RequestSubmitted(asked, 10.0, service_class=name))
        cluster.tick(seconds=30.0)
        return cluster.policy.seen[-1].windows[-1].requests

    assert windows() == 1
    assert "lane-0" not in [view.worker for view in cluster.policy.seen[-1].workers]
    # Nobody else computes what the only shared prefill worker computes.
    cluster.tick(Plan(1, 2, flips=(Flip("p-0", "decode"),)))
    assert actions(cluster) == []
    # With the lane down its class is served by the workers that are planned.
    gateway.handle(PeerGone("lane-0/1", "it was killed"))
    assert windows() == 2
