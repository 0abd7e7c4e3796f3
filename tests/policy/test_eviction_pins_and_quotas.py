"""Pins hold while they are valid, in bounds, and fall back when they end; nobody has more than its
quota, whoever has gives up its own, pins included."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cluster.tiers.store import TierStore
from tandem.policy.eviction.pins_and_quotas import Pin, Pinned, Quota
from tandem.policy.eviction.policies import EVICTIONS, Lru, make_eviction

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "pin", "unpin", "evict"]),
        st.integers(0, 9),
        st.integers(0, 3),
        st.integers(0, 12),
    ),
    max_size=80,
)


@given(ACTIONS, st.integers(0, 4))
def test_no_valid_pin_is_a_victim_and_its_bound_holds(actions, max_pinned):
    order, resident, pins = Pinned(Lru(), max_pinned), set(), {}
    for now_ns, (action, key, priority, length_ns) in enumerate(actions):
        pins = {key: pin for key, pin in pins.items() if now_ns < pin.until_ns}
        if action == "ask" and key in resident:
            order.touch(key, now_ns)
        elif action == "ask":
            order.insert(key, now_ns)
            resident.add(key)
        elif action == "pin" and key in resident:
            pin = Pin(now_ns + length_ns, priority)
            full = key not in pins and len(pins) == max_pinned
            least = max((pin.priority for pin in pins.values()), default=priority)
            assert order.pin(key, pin, now_ns) == (
                length_ns > 0 and not (full and least <= priority)
            )
            if length_ns and full and least > priority:
                # Of the least urgent ones the first to be pinned: `pins` is in that order.
                del pins[next(key for key, pin in pins.items() if pin.priority == least)]
            if length_ns and not (full and least <= priority):
                pins.pop(key, None)
                pins[key] = pin
        elif action == "unpin":
            order.unpin(key, now_ns)
            pins.pop(key, None)
        elif action == "evict":
            victim = order.victim(now_ns)
            assert (victim is None) == (resident == set(pins))
            if victim is not None:
                assert victim in resident and victim not in pins
                order.remove(victim)
                resident.remove(victim)
        assert len(pins) <= max_pinned


def test_a_pin_that_runs_out_falls_back_as_the_newest():
    order = Pinned(Lru(), 1)
    for key in "abc":
        order.insert(key, 0)
    assert order.pin("a", Pin(until_ns=10), 0)
    assert order.victim(9) == "b"
    order.remove("b")
    assert order.victim(10) == "c"
    order.remove("c")
    assert order.victim(10) == "a"


def test_a_more_urgent_pin_takes_the_place_of_the_least_urgent():
    order = Pinned(Lru(), 2)
    for key in "abc":
        order.insert(key, 0)
    assert order.pin("a", Pin(100, priority=1), 0)
    assert order.pin("b", Pin(100, priority=2), 0)
    assert not order.pin("c", Pin(100, priority=2), 0)
    assert order.pin("c", Pin(100, priority=0), 0)
    assert order.victim(1) == "b"


def test_a_pinned_key_that_leaves_takes_its_pin_along():
    order = Pinned(Lru(), 1)
    order.insert("a", 0)
    order.pin("a", Pin(100), 0)
    order.remove("a")
    order.insert("a", 1)
    assert order.victim(1) == "a"


def test_a_pin_can_be_prolonged():
    order = Pinned(Lru(), 1)
    order.insert("a", 0)
    assert order.pin("a", Pin(10), 0) and order.pin("a", Pin(50), 5)
    assert order.victim(20) is None
    assert order.victim(50) == "a"


def tenant_of(key: bytes) -> str:
    return key.decode()[0]


def quota_of(capacity: int, **quotas: int) -> Quota[bytes]:
    return Quota(capacity, lambda keys: Pinned(Lru(), keys // 2), tenant_of, quotas)


def keys(*names: str) -> list[bytes]:
    return [name.encode() for name in names]


def test_whoever_has_more_than_its_share_gives_up_its_own():
    order = quota_of(10, a=2)
    store = TierStore(10, order, order.excess)
    store.store(keys("b1", "b2"), 0)
    assert store.store(keys("a1"), 1).evicted == ()
    stored = store.store(keys("a2", "a3"), 2)
    assert stored.evicted == (b"a1",)
    assert stored.added == (b"a2", b"a3")
    assert store.blocks == 4
    assert sorted(key for key in store.listing() if tenant_of(key) == "a") == keys("a2", "a3")


def test_a_pinned_block_counts_and_newcomers_stay_out():
    order = quota_of(10, a=2)
    store = TierStore(10, order, order.excess)
    store.store(keys("a1", "a2"), 0)
    assert order.pin(b"a1", Pin(until_ns=100, owner="a"), 0)
    assert not order.pin(b"a2", Pin(until_ns=100, owner="a"), 0), "half of its share is pinned"
    assert store.store(keys("a3"), 1).evicted == (b"a2",)
    assert store.store(keys("a4"), 2).evicted == (b"a3",)
    assert store.resident(b"a1")
    assert store.store(keys("a5", "a6"), 200).added == (b"a5", b"a6")
    assert not store.resident(b"a1")


def test_a_tenant_without_any_share_keeps_nothing():
    order = quota_of(10, a=0)
    store = TierStore(10, order, order.excess)
    stored = store.store(keys("a1", "a2"), 0)
    assert (stored.added, stored.evicted) == ((), ())


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "touch", "drop", "pin"]),
        st.lists(st.sampled_from(keys(*(f"{t}{n}" for t in "abc" for n in range(6)))), max_size=4),
    ),
    max_size=40,
)


@pytest.mark.parametrize("eviction", sorted(EVICTIONS))
@settings(max_examples=60, deadline=None)
@given(operations=OPERATIONS, a=st.integers(0, 6), b=st.integers(0, 6))
def test_nobody_ever_has_more_than_its_share(eviction, operations, a, b):
    def order_of(capacity: int) -> Pinned[bytes]:
        return Pinned(make_eviction(eviction, capacity), capacity // 2)

    quotas = {"a": a, "b": b}
    order: Quota[bytes] = Quota(7, order_of, tenant_of, quotas)
    store = TierStore(7, order, order.excess)
    expected: set[bytes] = set()
    for now_ns, (what, digests) in enumerate(operations):
        blocks = tuple(dict.fromkeys(digests))
        here = [digest for digest in blocks if store.resident(digest)]
        if what == "store":
            stored = store.store(blocks, now_ns)
            assert expected.isdisjoint(stored.added)
            expected = (expected | set(stored.added)) - set(stored.evicted)
        elif what == "touch":
            store.touch(here, now_ns)
        elif what == "drop":
            store.drop(blocks)
            expected -= set(blocks)
        else:
            for digest in here:
                pin = Pin(now_ns + 5, priority=len(digests), owner=tenant_of(digest))
                order.pin(digest, pin, now_ns)
        assert set(store.listing()) == expected
        assert store.blocks <= 7
        for tenant, most in quotas.items():
            mine = [digest for digest in expected if tenant_of(digest) == tenant]
            assert len(mine) <= most
