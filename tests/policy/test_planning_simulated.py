"""What the planner makes of a simulator: when it asks, what convinces it, and that it never waits
for an answer that does not come."""

import itertools
from dataclasses import replace

import pytest

from tandem.config.cluster.keys import Choice
from tandem.config.policies import parameters
from tandem.facts.errors import InvalidConfiguration
from tandem.facts.shapes import RecordedRequest, ShapeFigures
from tandem.policy.planning.contract import Answer, Plan
from tandem.policy.planning.policies import PLANNINGS
from tandem.policy.planning.recorded_demand import settled
from tandem.policy.planning.simulated import Simulation
from tandem.policy.planning.tandem import Tandem
from tests.policy.planning_bed import fleet, window, workers

SECOND = 1_000_000_000
SIMULATION = Simulation(period_s=60.0)


def figures(kept: float, devices: int = 1) -> ShapeFigures:
    return ShapeFigures(100, kept, 1.0, 0.1, 0.2, 0.01, 0.02, devices)


class Asking:
    """A planner with a simulator that finds what `kept` has, by (prefill, decode)."""

    def __init__(self, prefill: int, decode: int, count: int = 50, **settings) -> None:
        self.policy = Tandem(simulate=True, simulation=SIMULATION)
        windows = tuple(window(10.0 * at, 10.0, count) for at in range(30))
        settings = {"max_workers": prefill + decode, "min_workers": prefill + decode} | settings
        self.view = fleet(workers(prefill, decode), windows, **settings)
        self.now_s = 300.0
        self.questions: list = []

    def tick(self, seconds: float = 10.0) -> Plan:
        self.now_s += seconds
        plan = self.policy.plan(self.view, round(self.now_s * SECOND))
        if plan.question is not None:
            self.questions.append(plan.question)
        return plan

    def answer(self, kept: dict[tuple[int, int], float], **changes) -> None:
        """Of the last question. Shapes that `kept` lacks are of no use."""
        question = self.questions[-1]
        found = tuple(figures(kept.get((p.prefill, p.decode), 0.0)) for p in question.plans)
        answer = Answer(question.serial, found, requests=400, seconds=590.0)
        self.view = replace(self.view, answer=replace(answer, **changes))


def test_it_asks_waits_and_flips_when_the_gain_is_clear():
    asking = Asking(4, 4)
    plan = asking.tick()
    sizes = [(each.prefill, each.decode) for each in plan.question.plans]
    assert sizes[0] == (4, 4)
    assert {(5, 3), (3, 5)} <= set(sizes)
    assert len(sizes) <= 6
    assert (plan.prefill, plan.decode, plan.flips) == (4, 4, ())
    assert asking.tick().question is None
    asking.answer({(4, 4): 0.81, (5, 3): 0.97, (3, 5): 0.6})
    plan = asking.tick()
    assert (plan.prefill, plan.decode) == (5, 3)
    assert [flip.role for flip in plan.flips] == ["prefill"]
    assert plan.reason == (
        "5 prefill + 3 decode would have kept 97% of the last 400 requests (10 min), "
        "4 prefill + 4 decode 81%"
    )


def test_a_gain_that_is_not_clear_changes_nothing():
    asking = Asking(4, 4)
    asking.tick()
    asking.answer({(4, 4): 0.90, (5, 3): 0.93})
    plan = asking.tick()
    assert (plan.prefill, plan.decode) == (4, 4)
    assert "too little for a change" in plan.reason


def test_where_the_present_fleet_keeps_the_slo_it_stays():
    asking = Asking(4, 4)
    asking.tick()
    asking.answer({(4, 4): 0.96, (5, 3): 1.0, (3, 5): 1.0})
    plan = asking.tick()
    assert (plan.prefill, plan.decode) == (4, 4)


def test_flips_do_not_follow_each_other_at_once():
    asking = Asking(4, 4)
    asking.tick()
    asking.answer({(4, 4): 0.5, (5, 3): 0.9})
    assert asking.tick().flips
    changed_s = asking.now_s
    asking.view = replace(asking.view, workers=workers(5, 3))
    while asking.now_s < changed_s + 110:
        plan = asking.tick()
        assert not plan.flips
        if plan.question is not None:
            asking.answer({(5, 3): 0.5, (4, 4): 0.9})


def asking_of_less(**state) -> Asking:
    """Long enough ago for the formulas to know what they could have spared all along."""
    asking = Asking(6, 6, count=10, min_workers=2)
    asking.view = replace(asking.view, workers=workers(6, 6, **state))
    asking.tick()
    for _ in range(8):
        assert asking.tick().question is None
    return asking


def answers(asking: Asking, kept: dict[tuple[int, int], float], count: int) -> list[int]:
    """How many workers are wanted after each of so many answers."""
    wanted = []
    while len(wanted) < count:
        asking.answer(kept)
        plan = asking.tick()
        wanted.append(plan.prefill + plan.decode)
        for _ in range(40):
            if asking.tick().question is not None:
                break
    return wanted


def test_a_smaller_fleet_must_convince_twice():
    assert answers(asking_of_less(), {(6, 6): 0.99, (5, 6): 0.99}, 2) == [12, 11]


def test_a_smaller_fleet_does_not_convince_while_what_runs_needs_them_all():
    full = asking_of_less(queued_prefill_tokens=40_000)
    assert answers(full, {(6, 6): 0.99, (5, 6): 0.99}, 3) == [12, 12, 12]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"problem": "no answer in 30 s"}, "without the simulator: no answer in 30 s"),
        ({"measured": 0.3}, "its costs are wrong for these workers"),
        ({"figures": ()}, "it had no time"),
    ],
)
def test_without_a_credible_answer_the_formulas_decide(changes, why):
    asking = Asking(6, 2, count=10, min_workers=2, max_workers=20)
    asking.tick()
    asking.answer({(6, 2): 0.99}, **changes)
    plan = asking.tick()
    assert why in plan.reason
    formulas = Tandem().plan(asking.view, round(asking.now_s * SECOND))
    assert (plan.prefill, plan.decode) == (formulas.prefill, formulas.decode)
    assert asking.tick().question is None


def test_an_answer_to_other_shapes_is_never_read_as_one_to_these():
    asking = Asking(4, 4)
    asking.tick()
    asking.answer({}, figures=(figures(0.9),))
    with pytest.raises(ValueError, match="shorter"):
        asking.tick()


def test_questions_are_a_period_apart_and_rare_while_all_is_well():
    asking = Asking(4, 4)
    at_s = []
    for _ in range(120):
        plan = asking.tick()
        if plan.question is not None:
            at_s.append(asking.now_s)
            asking.answer({(p.prefill, p.decode): 0.99 for p in plan.question.plans})
    gaps = [after - before for before, after in itertools.pairwise(at_s)]
    assert min(gaps) >= SIMULATION.period_s


def request(at_s: float, prompt: int, output: int) -> RecordedRequest:
    return RecordedRequest(round(at_s * SECOND), prompt, output)


def test_demand_from_before_a_shift_is_left_out():
    before = [request(at, 8000, 100) for at in range(500)]
    after = [request(at, 500, 900) for at in range(500, 600)]
    assert settled([*before, *after], 600 * SECOND, 600.0, 1000)[0].prompt_tokens == 500
    assert len(settled(before, 500 * SECOND, 600.0, 1000)) == 500
    assert len(settled(before, 500 * SECOND, 600.0, 100)) == 100
    assert settled([], 0, 600.0, 100) == []


def test_options_are_read_from_a_cluster_file():
    choice = Choice("tandem", {"simulate": True, "simulation": {"window_s": "5m", "cpu_s": "2s"}})
    made = PLANNINGS["tandem"](**parameters("planning", choice, PLANNINGS["tandem"]))
    assert made.simulation == Simulation(window_s=300, cpu_s=2)
    assert made.remembers_s == 300
    with pytest.raises(InvalidConfiguration, match="requests of the planner's simulation is 1"):
        Simulation(requests=1)


def test_an_answer_about_another_fleet_changes_nothing():
    asking = Asking(4, 4)
    asking.tick()
    asking.view = replace(asking.view, workers=workers(5, 3))
    asking.answer({(4, 4): 0.5, (5, 3): 0.5, (3, 5): 0.97})
    plan = asking.tick()
    assert (plan.prefill, plan.decode, plan.flips) == (5, 3, ())
    assert "the fleet has changed since it was simulated" in plan.reason


@pytest.mark.parametrize(("drain_s", "flips"), [(20.0, 1), (300.0, 0)])
def test_a_flip_must_win_more_than_is_lost_while_it_drains(drain_s, flips):
    asking = Asking(4, 4, drain_s=drain_s)
    asking.tick()
    asking.answer({(4, 4): 0.81, (5, 3): 0.97})
    plan = asking.tick()
    assert len(plan.flips) == flips
    assert ("too little for a change" in plan.reason) is (not flips)
