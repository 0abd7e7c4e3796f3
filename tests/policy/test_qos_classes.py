"""Laws of service classes: who belongs where, what is reserved, and who gives back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.slo import (
    AS_THEY_WISH,
    IN_BACKGROUND,
    LEAST_URGENT,
    MOST_URGENT,
    ClientPriorities,
)
from tandem.policy.qos.classes import UNNAMED, Classes, ServiceClass, to_preempt

GOLD = ServiceClass("gold", priority=0, reserved=0.5, headers={"X-Tier": "gold"}, deadline_s=2.5)
SILVER = ServiceClass("silver", priority=1, reserved=0.25, headers={"x-tier": "silver"})
BATCH = ServiceClass("batch", priority=9, headers={"X-Tier": "batch", "X-Batch": "yes"})
CLASSES = Classes((GOLD, SILVER, BATCH), tenants={"acme": "silver"}, may_use={"acme": ("batch",)})
COUNTS = st.integers(0, 12)


def test_a_header_chooses_among_what_the_tenant_may_use():
    assert CLASSES.classify({"x-batch": "yes"}, "acme") is BATCH
    assert CLASSES.classify({"X-Tier": "silver", "X-Batch": "yes"}, "acme") is SILVER
    assert CLASSES.classify({"x-TIER": "gold"}, "acme") is SILVER
    assert CLASSES.classify({}, "acme") is SILVER
    assert CLASSES.classify({}, "stranger") is UNNAMED


def test_where_tenants_are_told_apart_a_caller_without_one_chooses_nothing():
    assert CLASSES.classify({"X-Tier": "gold"}, "") is UNNAMED
    # A tenant without a class of its own is told apart all the same.
    only_named = Classes((GOLD,), may_use={"acme": ()})
    assert only_named.classify({"X-Tier": "gold"}, "acme") is UNNAMED
    assert only_named.classify({"X-Tier": "gold"}, "") is UNNAMED


def test_without_tenants_a_header_names_the_class():
    headers_alone = Classes((GOLD, SILVER, BATCH))
    assert headers_alone.classify({"X-Tier": "silver", "X-Batch": "yes"}, "") is SILVER
    assert headers_alone.classify({"X-Tier": "Gold"}, "") is UNNAMED
    assert Classes().classify({"X-Tier": "gold"}, "acme") is UNNAMED


@given(st.integers(), st.integers(MOST_URGENT, LEAST_URGENT))
def test_a_client_never_makes_itself_more_urgent(wish, priority):
    assert UNNAMED.priority_of(wish) >= 0
    mine = ServiceClass("a", priority=priority)
    assert priority <= mine.priority_of(wish) < IN_BACKGROUND
    bounded = ServiceClass("a", client_priorities=ClientPriorities(-2, 3))
    assert bounded.priority_of(wish) == min(max(wish, -2), 3)
    assert AS_THEY_WISH.applied(0, priority) == priority


def test_a_deadline_is_counted_from_the_arrival():
    assert GOLD.deadline_ns(1_000) == 2_500_001_000
    assert SILVER.deadline_ns(1_000) is None


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(0, 1000))
def test_reserved_slots_never_exceed_the_capacity(parts, capacity):
    shares = [part / sum(parts) for part in parts]
    classes = Classes(tuple(ServiceClass(str(i), reserved=s) for i, s in enumerate(shares)))
    slots = [classes.reserved_slots(str(index), capacity) for index in range(len(shares))]
    assert sum(slots) <= capacity
    assert all(got >= share * capacity - 1 for got, share in zip(slots, shares, strict=True))


def test_a_share_that_is_whole_slots_is_not_rounded_away():
    assert Classes((ServiceClass("a", reserved=0.29),)).reserved_slots("a", 100) == 29


@given(
    waiting=st.fixed_dictionaries({"gold": COUNTS, "silver": COUNTS, "batch": COUNTS}),
    in_use=st.fixed_dictionaries({"gold": COUNTS, "silver": COUNTS, "batch": COUNTS, "": COUNTS}),
    capacity=st.integers(0, 40),
)
def test_what_is_given_back_is_just_what_the_reserves_lack(waiting, in_use, capacity):
    given_back = to_preempt(CLASSES, waiting, in_use, capacity)
    due = sum(
        max(0, min(waiting[name], CLASSES.reserved_slots(name, capacity) - in_use[name]))
        for name in waiting
    )
    free = capacity - sum(in_use.values())
    assert sum(given_back.values()) == (max(0, due - free) if due else 0)
    for name, count in given_back.items():
        assert 0 < count <= in_use[name] - CLASSES.reserved_slots(name, capacity)
    # Nobody pays while somebody less urgent still holds a borrowed slot.
    for name in given_back:
        for other in in_use:
            if CLASSES.named(other).priority > CLASSES.named(name).priority:
                borrowed = max(0, in_use[other] - CLASSES.reserved_slots(other, capacity))
                assert given_back.get(other, 0) == borrowed


def test_a_class_that_comes_back_gets_its_slots_from_the_least_urgent():
    in_use = {"silver": 4, "batch": 3, "gold": 1}
    assert to_preempt(CLASSES, {"gold": 1}, in_use, 8) == {"batch": 1}
    assert to_preempt(CLASSES, {"gold": 9}, in_use, 8) == {"batch": 3}
    assert to_preempt(CLASSES, {"gold": 9}, {"silver": 6, "batch": 2}, 8) == {
        "batch": 2,
        "silver": 2,
    }
    assert to_preempt(CLASSES, {"batch": 9}, {"silver": 8}, 8) == {}
    # Free slots are enough.
    assert to_preempt(CLASSES, {"gold": 1}, {"batch": 7}, 8) == {}


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: ServiceClass("a", reserved=1.5), "class a: reserved is 1.5; choose"),
        (lambda: ServiceClass("a", deadline_s=0.0), "class a: deadline_s is 0; choose"),
        (lambda: Classes((GOLD, GOLD)), "class name 'gold' is empty or there twice; rename"),
        (lambda: Classes((ServiceClass(""),)), "class name '' is empty or there twice; rename"),
        (
            lambda: Classes((GOLD,), {"acme": "god"}),
            "tenant acme has class god; choose one of gold",
        ),
        (
            lambda: Classes((GOLD,), may_use={"acme": ("god",)}),
            "tenant acme has class god; choose one of gold",
        ),
        (
            lambda: Classes((GOLD, ServiceClass("b", reserved=0.6))),
            "reserved shares of all classes exceed 1; lower",
        ),
        (
            lambda: Classes((GOLD, ServiceClass("b", reserved=0.5), BATCH)),
            "reserved shares add up to 1 and leave class batch nothing; lower",
        ),
    ],
)
def test_a_bad_class_is_named(build, text):
    with pytest.raises(InvalidConfiguration, match=text):
        build()


def test_what_runs_in_the_background_is_of_the_least_urgent_class_that_its_tenant_may_use():
    def of(tenant: str, classes: Classes = CLASSES, **headers: str) -> ServiceClass:
        return classes.class_of(headers, tenant, background=True)

    assert of("acme") is BATCH
    assert of("acme", X_Tier="gold") is BATCH
    assert CLASSES.class_of({"x-batch": "yes"}, "acme") is BATCH
    assert CLASSES.class_of({}, "acme") is SILVER
    # Who may use no other stays where it is.
    assert of("") is UNNAMED
    assert of("paying", Classes((GOLD, BATCH), tenants={"paying": "gold"})) is GOLD
    # Without tenants everybody may use any class, but for those that another model answers.
    assert of("", Classes((GOLD, SILVER, BATCH))) is BATCH
    small = ServiceClass("small", priority=10, pools=("small",), model="other")
    assert of("", Classes((GOLD, BATCH, small))) is BATCH
    assert of("") is UNNAMED
