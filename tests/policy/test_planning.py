"""Laws of all planning policies, and the published rules on views made by hand."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.fleet import Role
from tandem.policy.planning.contract import Flip, Move, Plan
from tandem.policy.planning.dynamo import Dynamo, DynamoLoad, DynamoThroughput
from tandem.policy.planning.policies import PLANNINGS, Static, UtilisationThreshold, planning
from tandem.policy.planning.pools import Sizes, ttft_s, within_bounds
from tandem.policy.planning.role_flips import Arrow, TetriInfer
from tandem.policy.planning.tandem import Tandem
from tests.policy.planning_bed import COST, fleet, window, worker, workers

SECOND = 1_000_000_000
STATES = st.fixed_dictionaries(
    {
        "accepting": st.booleans(),
        "running_sequences": st.integers(0, 500),
        "queued_prefill_tokens": st.integers(0, 500_000),
        "context_tokens": st.integers(0, 400_000),
        "free_blocks": st.integers(0, 25_000),
    }
)
ROLES = st.sampled_from(Role)
VIEWS = st.lists(st.tuples(ROLES, STATES), max_size=12).map(
    lambda states: [worker(f"w{at}", role, **state) for at, (role, state) in enumerate(states)]
)
COUNTS = st.lists(st.integers(0, 200), max_size=12)


@st.composite
def fleets(draw):
    least = draw(st.integers(0, 6))
    return fleet(
        draw(VIEWS),
        tuple(window(10.0 * at, 10.0, count) for at, count in enumerate(draw(COUNTS))),
        starting=draw(st.dictionaries(ROLES.map(str), st.integers(0, 3))),
        min_workers=least,
        max_workers=max(2, least + draw(st.integers(0, 20))),
        startup_s=draw(st.sampled_from([0.0, 30.0, 300.0])),
        drain_s=draw(st.sampled_from([0.0, 20.0])),
        held=draw(st.frozensets(st.integers(0, 11).map("w{}".format), max_size=6)),
    )


@pytest.mark.parametrize("name", PLANNINGS)
@settings(max_examples=30)
@given(views=st.lists(fleets(), min_size=1, max_size=4))
def test_every_policy_keeps_the_house_rules(name, views):
    """Within the bounds, a worker of each role left, flips and moves of workers that are there;
    and the same views, in any order of the workers, give the same plans."""
    policy, twin = planning(name), planning(name)
    for tick, view in enumerate(views):
        now_ns = tick * 600 * SECOND
        plan = policy.plan(view, now_ns)
        turned = fleet(view.workers[::-1], **{key: getattr(view, key) for key in _OTHERS})
        assert plan == twin.plan(turned, now_ns)
        assert plan.reason
        if plan.prefill is not None and plan.decode is not None:
            assert min(plan.prefill, plan.decode) >= 1
            assert view.min_workers <= plan.prefill + plan.decode <= view.max_workers
        accepting = {one.worker: one for one in view.workers if one.accepting}
        for role in (Role.PREFILL, Role.DECODE):
            leaving = [flip for flip in plan.flips if accepting[flip.worker].role is role]
            there = [one for one in accepting.values() if one.role is role]
            assert not leaving or len(leaving) < len(there)
        assert len({flip.worker for flip in plan.flips}) == len(plan.flips)
        assert not view.held & {flip.worker for flip in plan.flips}
        for flip in plan.flips:
            assert {flip.role, accepting[flip.worker].role} == {Role.PREFILL, Role.DECODE}
        for move in plan.moves:
            assert accepting[move.source].role is accepting[move.target].role is Role.DECODE
            target = accepting[move.target]
            assert 0 < move.tokens <= accepting[move.source].context_tokens
            assert move.tokens <= target.free_blocks * target.block_size


_OTHERS = (
    "windows", "starting", "min_workers", "max_workers", "startup_s", "drain_s", "held",
)  # fmt: skip


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 10), st.integers(2, 30))
def test_bounds_take_the_nearest_sizes_and_share_alike(prefill, decode, least, most):
    if most < max(2, least):
        with pytest.raises(InvalidConfiguration, match=f"max_workers is {most}"):
            within_bounds(Sizes(prefill, decode), fleet(min_workers=least, max_workers=most))
        return
    wanted = Sizes(max(1, prefill), max(1, decode))
    sizes = within_bounds(wanted, fleet(min_workers=least, max_workers=most))
    assert max(2, least) <= sizes.total <= most
    if max(2, least) <= wanted.total <= most:
        assert sizes == wanted
    if min(wanted.prefill, wanted.decode, sizes.prefill - 1, sizes.decode - 1) > 0:
        pressure = max(wanted.prefill / sizes.prefill, wanted.decode / sizes.decode)
        for moved in (-1, 1):
            others = (
                wanted.prefill / (sizes.prefill + moved),
                wanted.decode / (sizes.decode - moved),
            )
            assert pressure <= max(others) + 1e-12


def test_mistakes_are_told_in_one_line():
    with pytest.raises(InvalidConfiguration, match="choose one of static, utilisation"):
        planning("magic")
    with pytest.raises(InvalidConfiguration, match=r"planning 'tandem'.*speed"):
        planning("tandem", speed=3)
    with pytest.raises(InvalidConfiguration, match="attainment"):
        Tandem(attainment=1.0)


def test_static_keeps_its_numbers():
    plan = Static(3, 5).plan(fleet(workers(1, 1)), 0)
    assert (plan.prefill, plan.decode) == (3, 5)
    assert Static().plan(fleet(workers(1, 1)), 0) == Plan(reason="fixed")


def busy(requests: int):
    """A window in which so many prompts of one second each arrive in ten seconds."""
    prompt = 15_000
    assert COST.prefill_seconds(prompt) == pytest.approx(0.966, abs=0.01)
    return (window(10.0, 10.0, requests, ((prompt, 10),)),)


@pytest.mark.parametrize(("requests", "prefill"), [(31, 5), (28, 4), (22, 4), (21, 3), (0, 3)])
def test_utilisation_goes_up_above_its_threshold_and_down_when_the_rest_stays_below(
    requests, prefill
):
    used = [worker(f"d{at}", Role.DECODE, free_blocks=10_000) for at in range(2)]
    plan = UtilisationThreshold().plan(fleet(workers(4, 0) + used, busy(requests)), 0)
    # Decode is 60 % full: one worker alone would be above the threshold.
    assert (plan.prefill, plan.decode) == (prefill, 2)


def test_utilisation_counts_what_arrived_though_nothing_of_it_has_finished():
    before, arrived = busy(30)[0], replace(busy(30)[0], end_ns=20 * SECOND, lengths=())
    used = [worker(f"d{at}", Role.DECODE, free_blocks=10_000) for at in range(2)]
    view = fleet(workers(4, 0) + used, (before, arrived))
    assert UtilisationThreshold().plan(view, 0).prefill == 5


def test_utilisation_waits_for_the_last_change():
    view = fleet(workers(4, 2), busy(60), starting={"prefill": 1})
    assert UtilisationThreshold().plan(view, 0).prefill is None


def test_a_queue_is_many_prompts_not_one_long_one():
    view = worker("p", Role.PREFILL, queued_prefill_tokens=400_000)
    assert ttft_s(view, 4000) == pytest.approx(101 * COST.prefill_seconds(4000))
    assert ttft_s(view, 4000, 2.0) == pytest.approx(201 * COST.prefill_seconds(4000))
    assert ttft_s(view, 4000) < 0.5 * COST.prefill_seconds(404_000)


def test_tetri_flips_what_was_idle_for_a_minute_when_the_other_phase_is_loaded():
    full = [worker(f"d{at}", Role.DECODE, free_blocks=5_000) for at in range(2)]
    policy, view = TetriInfer(), fleet(workers(2, 0) + full)
    assert policy.plan(view, 0).flips == ()
    assert policy.plan(view, 59 * SECOND).flips == ()
    assert policy.plan(view, 60 * SECOND).flips == (Flip("p000", "decode"),)
    policy, held = TetriInfer(), replace(view, held=frozenset({"p000"}))
    policy.plan(held, 0)
    assert policy.plan(held, 60 * SECOND).flips == (Flip("p001", "decode"),)
    # A burst of work in between starts the minute anew.
    policy = TetriInfer()
    policy.plan(view, 0)
    policy.plan(fleet(workers(2, 0, queued_prefill_tokens=50_000) + full), 30 * SECOND)
    assert policy.plan(view, 60 * SECOND).flips == ()
    # And where decode is not loaded, idle prefill instances stay.
    policy, calm = TetriInfer(), fleet(workers(2, 2))
    policy.plan(calm, 0)
    assert policy.plan(calm, 600 * SECOND).flips == ()


def test_tetri_moves_half_the_lead_from_the_hottest_to_the_coolest():
    hot = worker("hot", Role.DECODE, free_blocks=2_500, context_tokens=360_000)
    cool = worker("cool", Role.DECODE, free_blocks=17_500, context_tokens=120_000)
    warm = worker("warm", Role.DECODE, free_blocks=10_000, context_tokens=240_000)
    plan = TetriInfer().plan(fleet([*workers(1, 0), warm, hot, cool]), 0)
    assert plan.moves == (Move("hot", "cool", 120_000),)
    assert TetriInfer().plan(fleet([*workers(1, 0), warm, cool]), 0).moves == ()


def test_arrow_flips_at_once_to_the_phase_that_is_late():
    late = workers(2, 0, queued_prefill_tokens=60_000)
    slow = workers(0, 2, running_sequences=400, context_tokens=100_000)
    calm = fleet(workers(2, 2))
    assert Arrow().plan(calm, 0).flips == ()
    assert Arrow().plan(fleet(late + workers(0, 2)), 0).flips == (Flip("d000", "prefill"),)
    assert Arrow().plan(fleet(workers(2, 0) + slow), 0).flips == (Flip("p000", "decode"),)
    assert Arrow().plan(fleet(late + slow), 0).flips == ()
    assert Arrow().plan(fleet(late + workers(0, 1)), 0).flips == ()
    helped = fleet(late + workers(0, 2), starting={"prefill": 1})
    assert Arrow().plan(helped, 0).flips == ()
    # Another one flips for one that is held, if there is any.
    held = fleet(late + workers(0, 2), held=frozenset({"d000"}))
    assert Arrow().plan(held, 0).flips == (Flip("d001", "prefill"),)
    assert Arrow().plan(replace(held, held=frozenset({"d000", "d001"})), 0).flips == ()
    # Decode at 40 ms a token has no worker to spare: the rest would need 60 ms.
    full = workers(0, 2, running_sequences=200, context_tokens=100_000)
    assert Arrow().plan(fleet(late + full), 0).flips == ()


def test_dynamo_throughput_divides_the_rate_by_what_an_engine_serves():
    lengths = ((4000, 200),)
    windows = tuple(window(5.0 * at, 5.0, 50, lengths) for at in range(36))
    view = fleet(workers(1, 1), windows)
    # 10 requests/s, 0.244 s of prefill each; a batch of 97 (KV) decodes in 37.7 ms.
    assert DynamoThroughput().wanted(view) == Sizes(3, 1)
    assert DynamoThroughput().plan(view, 0).prefill == 3
    heavy = fleet(workers(1, 1), tuple(window(5.0 * at, 5.0, 500, lengths) for at in range(36)))
    assert DynamoThroughput().wanted(heavy) == Sizes(25, 8)
    plan = DynamoThroughput().plan(heavy, 0)
    assert (plan.prefill, plan.decode) == (9, 8)


def test_dynamo_load_goes_up_when_every_engine_is_late_and_down_when_one_fewer_would_do():
    def prefill(*queues):
        views = [
            worker(f"p{at}", Role.PREFILL, queued_prefill_tokens=queue)
            for at, queue in enumerate(queues)
        ]
        return DynamoLoad().plan(fleet(views + workers(0, 1)), 0).prefill

    assert prefill(60_000, 60_000) == 3
    assert prefill(60_000, 10_000) == 2
    assert prefill(10_000, 10_000) == 1
    # Two seconds promised: 1.6 s is the most that one alone may take.
    assert prefill(15_000, 15_000) == 2


def test_dynamo_joins_both_loops_with_throughput_as_the_floor():
    windows = tuple(window(5.0 * at, 5.0, 50, ((4000, 200),)) for at in range(36))
    policy = Dynamo()
    assert policy.plan(fleet(workers(1, 1), windows), 0).prefill == 3
    # Idle engines would let the load loop go down; the floor holds until it is due again.
    quiet = tuple(window(5.0 * at, 5.0, 0) for at in range(36))
    assert policy.plan(fleet(workers(3, 1), quiet), 179 * SECOND).prefill == 3
    assert policy.plan(fleet(workers(3, 1), quiet), 180 * SECOND).prefill == 2
    late = workers(3, 0, queued_prefill_tokens=60_000) + workers(0, 1)
    assert Dynamo().plan(fleet(late, windows), 0).prefill == 4
