"""Tiers: only what was stored is found, nothing twice, and what came is there or went once."""

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tandem.cluster.tiers.store import TierStore
from tandem.policy.eviction.pins_and_quotas import Pin, Pinned
from tandem.policy.eviction.policies import EVICTIONS, Lru, make_eviction


def chain(text: str) -> tuple[bytes, ...]:
    """Blocks named by letters."""
    return tuple(letter.encode() for letter in text)


def store_of(capacity_blocks: int) -> TierStore:
    return TierStore(capacity_blocks, Lru())


def test_the_start_of_a_chain_is_the_last_to_go():
    store = store_of(4)
    assert store.store(chain("abc"), 0).added == chain("abc")
    stored = store.store(chain("xyz"), 1)
    assert stored.added == chain("xyz")
    assert stored.evicted == chain("cb")
    assert [store.resident(each) for each in chain("abc")] == [True, False, False]
    assert all(map(store.resident, chain("xyz")))


def test_reading_a_chain_keeps_it():
    store = store_of(4)
    store.store(chain("ab"), 0)
    store.store(chain("xy"), 1)
    store.touch(chain("ab"), 2)
    assert store.store(chain("mno"), 3).evicted == chain("yxb")


def test_a_chain_longer_than_the_tier_keeps_its_start():
    store = store_of(3)
    assert store.store(chain("abcde"), 0).added == chain("abc")


def test_what_is_pinned_stays_and_newcomers_stay_out():
    eviction: Pinned[bytes] = Pinned(Lru(), 2)
    store = TierStore(2, eviction)
    store.store(chain("ab"), 0)
    for block in chain("ab"):
        eviction.pin(block, Pin(until_ns=10), 0)
    stored = store.store(chain("xy"), 5)
    assert (stored.added, stored.evicted) == ((), ())
    assert all(map(store.resident, chain("ab")))
    assert store.store(chain("xy"), 10).added == chain("xy")


def test_a_block_is_copied_once():
    store = store_of(4)
    assert store.expect(chain("aba")) == chain("ab")
    assert store.expect(chain("abc")) == chain("c")
    store.give_up(chain("b"))
    store.store(chain("a"), 0)
    assert store.expect(chain("ab")) == chain("b")


EVERY_BLOCK = [bytes([number]) for number in range(10)]
BLOCKS = st.lists(st.sampled_from(EVERY_BLOCK), max_size=5, unique=True)


class TierLaws(RuleBasedStateMachine):
    """Random chains come, are read and are dropped, under every eviction policy."""

    eviction = "lru"

    def __init__(self) -> None:
        super().__init__()
        self.tier = TierStore(4, make_eviction(self.eviction, 4))
        self.expected: set[bytes] = set()
        self.resident: set[bytes] = set()
        self.now_ns = 0

    @rule(digests=BLOCKS)
    def expect(self, digests):
        wanted = self.tier.expect(digests)
        known = self.resident | self.expected
        assert list(wanted) == [digest for digest in digests if digest not in known]
        self.expected.update(wanted)

    @rule(digests=BLOCKS)
    def give_up(self, digests):
        self.tier.give_up(digests)
        self.expected.difference_update(digests)

    @rule(digests=BLOCKS)
    def store(self, digests):
        self.now_ns += 1
        stored = self.tier.store(digests, self.now_ns)
        assert set(stored.added) <= set(digests) - self.resident
        assert set(stored.evicted) <= self.resident
        assert len(stored.evicted) == len(set(stored.evicted))
        self.expected.difference_update(digests)
        self.resident.update(stored.added)
        self.resident.difference_update(stored.evicted)
        if len(self.resident) < 4:
            assert set(digests) <= self.resident

    @precondition(lambda self: self.resident)
    @rule(data=st.data())
    def touch(self, data):
        self.now_ns += 1
        digests = data.draw(st.lists(st.sampled_from(sorted(self.resident)), unique=True))
        self.tier.touch(digests, self.now_ns)

    @rule(digests=BLOCKS)
    def drop(self, digests):
        self.tier.drop(digests)
        self.resident.difference_update(digests)

    @invariant()
    def what_is_found_is_what_was_stored_and_neither_evicted_nor_dropped(self):
        assert {digest for digest in EVERY_BLOCK if self.tier.resident(digest)} == self.resident
        assert sorted(self.tier.listing()) == sorted(self.resident)

    @invariant()
    def it_never_holds_more_than_it_may(self):
        assert self.tier.blocks == len(self.resident) <= self.tier.capacity_blocks


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_the_laws_of_a_tier_hold_under_every_eviction_order(eviction):
    laws = type("Laws", (TierLaws,), {"eviction": eviction})
    run_state_machine_as_test(laws, settings=settings(max_examples=40))


@pytest.mark.parametrize("capacity_blocks", [0, -1])
def test_a_tier_has_room(capacity_blocks):
    with pytest.raises(AssertionError):
        store_of(capacity_blocks)
