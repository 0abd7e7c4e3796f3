"""The router's view of a worker's load: its last report and what was sent since."""

from collections import deque
from random import Random

import pytest
from msgspec import structs

from tandem.cluster.router.fleet import Capacity, Fleet
from tandem.facts.fleet import Role
from tandem.messages.router import LoadReported
from tandem.policy.qos.classes import Classes, ServiceClass
from tandem.policy.views import RequestView, WorkerView
from tests.cluster.cluster_parts import COST


def fleet() -> Fleet:
    one = Fleet({"w": Capacity(COST, block_size=4, block_count=100, max_sequences=8)})
    one.join("w", Role.BOTH, 0)
    return one


def idle(received_events: int | None = None) -> LoadReported:
    return LoadReported("w", 0, 0, 0, 0, 100, received_events)


def look(one: Fleet) -> WorkerView:
    (view,) = one.views()
    return view


def send(one: Fleet, tokens: int) -> None:
    one.send("w", tokens, tokens)
    one.events_sent("w", 1)


def arrive(one: Fleet, tokens: int) -> None:
    one.expect_decode("w", "r", tokens)
    one.decode_arrived("w", "r", tokens)
    one.events_sent("w", 1)


def figures(one: Fleet) -> tuple[int, int, int, int, int]:
    return structs.astuple(one.workers["w"].sent)


def test_an_old_report_leaves_what_was_sent_since():
    one = fleet()
    send(one, 8)
    send(one, 20)
    arrive(one, 12)
    one.report(idle(received_events=1), 1)
    assert figures(one) == (1, 20, 5, 1, 12)
    assert look(one).queued_prefill_tokens == 20
    one.report(idle(received_events=2), 2)
    assert figures(one) == (0, 0, 0, 1, 12)
    one.report(idle(received_events=3), 3)
    assert figures(one) == (0, 0, 0, 0, 0)


def test_what_has_not_gone_out_yet_is_in_no_report():
    one = fleet()
    send(one, 8)
    one.send("w", 20, 20)
    one.report(idle(received_events=1), 1)
    assert figures(one) == (1, 20, 5, 0, 0)


def test_a_report_that_counts_nothing_knows_of_all():
    one = fleet()
    send(one, 8)
    one.report(idle(), 1)
    assert figures(one) == (0, 0, 0, 0, 0)
    send(one, 8)
    one.report(idle(received_events=2), 2)
    assert figures(one) == (0, 0, 0, 0, 0)


def test_a_worker_that_comes_back_has_received_nothing():
    one = fleet()
    send(one, 8)
    one.lose("w")
    one.join("w", Role.BOTH, 1)
    send(one, 20)
    one.report(idle(received_events=0), 2)
    assert figures(one) == (1, 20, 5, 0, 0)


@pytest.mark.parametrize("seed", range(50))
def test_a_report_takes_off_exactly_what_the_worker_had_received(seed: int) -> None:
    """Orders go down and reports go up, each in order, as late as they like. Some orders carry no
    load."""
    chance, one = Random(seed), fleet()
    sent: list[tuple[int, int, int, int, int]] = []
    received_events, reported, reports = 0, 0, deque([0])
    for _ in range(200):
        match chance.randrange(5):
            case 0:
                tokens = chance.randint(1, 50)
                send(one, tokens)
                sent.append((1, tokens, -(-tokens // 4), 0, 0))
            case 1:
                tokens = chance.randint(1, 50)
                arrive(one, tokens)
                sent.append((0, 0, 0, 1, tokens))
            case 2:
                one.events_sent("w", 1)
                sent.append((0, 0, 0, 0, 0))
            case 3:
                received_events = chance.randint(received_events, len(sent))
                reports.append(received_events)
            case _ if reports:
                reported = reports.popleft()
                one.report(idle(reported), 1)
        unreceived = sent[reported:]
        assert figures(one) == tuple(sum(each[i] for each in unreceived) for i in range(5))
    one.report(idle(len(sent)), 2)
    assert figures(one) == (0, 0, 0, 0, 0)
    assert not one.workers["w"].sent_by


def test_what_is_typical_of_the_prompts_at_a_worker_follows_what_is_sent():
    fleet = Fleet({"w": Capacity(COST, 4, 100, 4)})
    fleet.join("w", Role.BOTH, 0)
    assert fleet.views()[0].typical_prefill_tokens == 0
    fleet.send("w", 500, 600)
    assert fleet.views()[0].typical_prefill_tokens == 500
    for _ in range(50):
        fleet.send("w", 100, 600)
    assert 100 <= fleet.views()[0].typical_prefill_tokens < 105


def test_less_urgent_prompts_wait_behind_a_more_urgent_one_but_for_the_step_under_way():
    fleet = Fleet({"w": Capacity(COST, 4, 100, 4)})
    fleet.join("w", Role.BOTH, 0)
    tracked = fleet.workers["w"]
    for name, priority, tokens in (("a", 0, 30), ("b", 5, 100), ("c", 5, 70)):
        fleet.send("w", tokens, tokens)
        tracked.prefilling.add(name, priority, tokens)
    (plain,) = fleet.views()
    assert (plain.queued_prefill_tokens, plain.waiting_requests) == (200, 3)
    (urgent,) = fleet.views_ahead(0)
    assert urgent.queued_prefill_tokens == 30 + COST.chunk_tokens
    assert urgent.waiting_requests == 1
    # The very same object, so that what was estimated of it need not be estimated again.
    assert fleet.views_ahead(0)[0] is urgent
    assert fleet.views_ahead(5)[0] is plain
    tracked.prefilling.discard("b")
    tracked.prefilling.discard("c")
    assert fleet.views_ahead(0)[0] is plain
    assert len(tracked.prefilling) == 1


def test_answers_of_less_urgent_prompts_begin_after_those_of_a_more_urgent_one():
    fleet = Fleet({"p": Capacity(COST, 4, 100, 4), "d": Capacity(COST, 4, 100, 4)})
    fleet.join("d", Role.DECODE, 0)
    fleet.join("p", Role.PREFILL, 0)
    for name, priority, tokens in (("a", 0, 30), ("b", 5, 100)):
        fleet.send("p", tokens, tokens)
        fleet.workers["p"].prefilling.add(name, priority, tokens)
        fleet.expect_decode("d", name, tokens, priority)
    # One that moves from another decode worker waits for no prompt.
    fleet.expect_decode("d", "c", 70)
    assert [(view.expected_decodes, view.expected_context_tokens) for view in fleet.views()] == [
        (3, 200),
        (0, 0),
    ]
    ahead = fleet.views_ahead(0)[0]
    assert (ahead.expected_decodes, ahead.expected_context_tokens) == (2, 100)
    assert fleet.views_ahead(5)[0] is fleet.views()[0]
    fleet.expect_no_decode("d", "b")
    assert fleet.views_ahead(0)[0] is fleet.views()[0]


POOLS = {"a0": "a", "a1": "a", "b0": "b", "m0": "main", "m1": "main", "s0": "s", "s1": "s"}
# What the workers of some pools serve instead of the cluster's model.
MODELS = {"s": "small"}
SMALL = ServiceClass("small", pools=("s",), model="small")
SOME_CLASSES = [
    Classes((ServiceClass("one", pools=("a",)), ServiceClass("two", pools=("a", "b")), SMALL)),
    Classes((ServiceClass("one", pools=("b",)), SMALL, ServiceClass("two"))),
    Classes((ServiceClass("one"), ServiceClass("two"))),
]
NAMES = ("one", "two", "small", "")


@pytest.mark.parametrize("seed", range(20))
def test_who_is_open_to_whom_follows_whatever_happens_to_the_workers(seed: int) -> None:
    chance, classes = Random(seed), SOME_CLASSES[seed % 3]
    one = Fleet(
        {
            name: Capacity(COST, 4, 100, 4, pool, MODELS.get(pool, ""))
            for name, pool in POOLS.items()
        },
        classes,
    )
    for _ in range(60):
        worker = chance.choice(list(POOLS))
        match chance.randrange(7) if worker in one.workers else 0:
            case 0 | 1:
                one.join(worker, chance.choice(list(Role)), 0)
            case 2:
                one.lose(worker)
            case 3:
                one.drain(worker)
            case 4:
                classes = chance.choice(SOME_CLASSES)
                one.reconfigure(classes)
            case _:
                one.take_role(worker, chance.choice(list(Role)))
        views = one.views()
        shared = [each for each in views if not classes.dedicated_to(POOLS[each.worker])]
        served = {}
        for each in classes.classes:
            own = [view for view in views if POOLS[view.worker] in each.pools]
            taking = [view.role for view in own if view.accepting]
            both = any(role.prefills for role in taking) and any(role.decodes for role in taking)
            if both or each.model:
                served[each.name] = own
        for name in NAMES:
            for model in ("", "small"):
                view = RequestView("r", 0, 0, 1, 1.0, service_class=name, model=model)
                alike = served.get(name) if classes.named(name).model == model else None
                if alike is None:
                    alike = [each for each in shared if MODELS.get(POOLS[each.worker], "") == model]
                assert one.open_to(view, views) == alike
            for other in NAMES:
                pools = {each.name: set(each.pools) for each in classes.classes}
                common = name == other or bool(pools.get(name, set()) & pools.get(other, set()))
                both = (name in served) + (other in served)
                assert one.share_workers(name, other) == (both == 0 or (both == 2 and common))
        assert one.on_own == served.keys()
