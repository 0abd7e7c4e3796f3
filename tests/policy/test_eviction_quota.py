"""Quotas: nobody has more than its share, whoever has gives up its own, pins included."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tandem.cluster.tiers.store import TierStore
from tandem.policy.eviction.pinned import Pin, Pinned
from tandem.policy.eviction.policies import EVICTIONS, Lru, make_eviction
from tandem.policy.eviction.quota import Quota


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
    assert order.keys("a") == 2


def test_a_pinned_block_counts_and_newcomers_stay_out():
    order = quota_of(10, a=2)
    store = TierStore(10, order, order.excess)
    store.store(keys("a1", "a2"), 0)
    assert order.pin(b"a1", Pin(until_ns=100), 0)
    assert not order.pin(b"a2", Pin(until_ns=100), 0), "half of its share is pinned"
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
                order.pin(digest, Pin(now_ns + 5, priority=len(digests)), now_ns)
        assert set(store.listing()) == expected
        assert store.blocks <= 7
        for tenant, most in quotas.items():
            mine = [digest for digest in expected if tenant_of(digest) == tenant]
            assert len(mine) == order.keys(tenant) <= most
