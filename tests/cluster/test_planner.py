"""Windows and ticks of the planner machine, whenever it begins and however much there is to see."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.gateway.plan_actions import ScaledPool
from tandem.cluster.gateway.planner import KEPT_REQUESTS, PlannerMachine, PlanningConfig, Thinned
from tandem.cost.correction import corrected
from tandem.facts.correction import Correction
from tandem.facts.fleet import Role
from tandem.facts.slo import Slo
from tandem.policy.planning.contract import Planning
from tandem.policy.views import WorkerView
from tests.cluster.cluster_parts import COST
from tests.cluster.scaled_cluster import SECOND, ScriptedPlanner

POOLS = tuple(
    ScaledPool(role, tuple(map(str, range(4))), 2, 1, COST) for role in (Role.PREFILL, Role.DECODE)
)


def planner(policy: Planning, begin_ns: int = 0, **config: Any) -> PlannerMachine:
    return PlannerMachine(PlanningConfig("scripted", policy, POOLS, Slo(), **config), begin_ns)


def run(begin_ns: int) -> list:
    policy = ScriptedPlanner(interval_s=10.0)
    machine = planner(policy, begin_ns)
    ticks = []
    for second in range(1, 100):
        now_ns = begin_ns + second * SECOND
        machine.request_arrived(now_ns)
        machine.request_finished((second, 5), 0.5, None, now_ns)
        if machine.next_wakeup() <= now_ns:
            machine.decide(machine.view([], {}, now_ns), now_ns)
            ticks.append(second)
    windows = [
        [(w.end_ns - begin_ns, w.requests, w.lengths, w.ttft_s, w.tpot_s) for w in view.windows]
        for view in policy.seen
    ]
    return [ticks, windows]


def test_it_does_not_matter_when_the_clock_began():
    ticks, windows = run(0)
    assert ticks == list(range(10, 100, 10))
    assert [len(seen) for seen in windows] == [0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert windows[2][0][:2] == (30 * SECOND, 29)
    assert run(1_763_000_000 * SECOND) == [ticks, windows]


def test_one_gateway_among_several_takes_the_others_demand_for_as_large():
    policy = ScriptedPlanner()
    machine = planner(policy, gateways=3)
    for second in range(10):
        machine.request_arrived(second * SECOND)
    machine.decide(machine.view([], {}, 31 * SECOND), 31 * SECOND)
    assert [window.requests for window in policy.seen[-1].windows] == [30]


def test_workers_that_joined_by_hand_come_on_top_of_the_bounds():
    machine = planner(ScriptedPlanner())
    fleet = machine.view([], {}, SECOND, held=frozenset({"a"}), joined_by_hand=3)
    assert (fleet.min_workers, fleet.max_workers, fleet.held) == (5, 11, {"a"})


def test_plans_are_made_with_what_was_learnt_of_the_workers_of_each_phase():
    machine = planner(ScriptedPlanner())

    def worker(name: str, role: Role, correction: Correction) -> WorkerView:
        cost = corrected(COST, correction)
        return WorkerView(name, role, cost, 0, True, 0, 0, 0, 0, 0, 0, 8, 16, 100, 100)

    fleet = machine.view(
        [
            worker("d0", Role.DECODE, Correction(decode=3.0, prefill=9.0)),
            worker("d1", Role.DECODE, Correction(decode=4.0)),
            worker("d2", Role.DECODE, Correction(decode=8.0)),
            worker("p0", Role.PREFILL, Correction(decode=9.0, prefill=2.0)),
        ],
        {},
        SECOND,
    )
    listed_s = COST.decode_seconds(4, 400)
    assert fleet.cost.decode_seconds(4, 400) == pytest.approx(4 * listed_s)
    assert fleet.cost.prefill_seconds(64) == pytest.approx(2 * COST.prefill_seconds(64))
    assert machine.view([], {}, SECOND).cost is COST


@given(st.integers(0, 5 * KEPT_REQUESTS))
def test_a_thinned_row_of_values_is_even_and_bounded(count):
    thinned: Thinned[int] = Thinned()
    for value in range(count):
        thinned.add(value)
    assert len(thinned.kept) <= KEPT_REQUESTS
    assert count < KEPT_REQUESTS or len(thinned.kept) > KEPT_REQUESTS // 2
    steps = {after - before for before, after in zip(thinned.kept, thinned.kept[1:], strict=False)}
    assert thinned.kept[:1] == [0][:count]
    assert len(steps) <= 1
    assert not thinned.kept or count - thinned.kept[-1] <= max(steps, default=1)
