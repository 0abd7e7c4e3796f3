"""Tiers: only what was stored is found, nothing twice, and what came is there or went once."""

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tandem.cluster.tiers.store import Arrival, TierMove, TierMoves, TierStore
from tandem.facts.fleet import Tier
from tandem.policy.eviction.pinned import Pin, Pinned
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
    assert store.prefix(chain("abc")) == 1
    assert store.prefix(chain("xyz")) == 3


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
    assert store.prefix(chain("ab")) == 2
    assert store.store(chain("xy"), 10).added == chain("xy")


def test_a_tier_that_is_down_finds_and_wants_nothing_and_remembers():
    store = store_of(4)
    store.store(chain("ab"), 0)
    store.up = False
    assert store.prefix(chain("ab")) == 0
    assert store.expect(chain("c")) == ()
    store.up = True
    assert store.prefix(chain("ab")) == 2


def test_a_block_is_copied_once():
    store = store_of(4)
    assert store.expect(chain("aba")) == chain("ab")
    assert store.expect(chain("abc")) == chain("c")
    store.forgo(chain("b"))
    store.store(chain("a"), 0)
    assert store.expect(chain("ab")) == chain("b")


def test_clearing_forgets_what_was_there_and_what_was_on_its_way():
    store = store_of(4)
    store.store(chain("abc"), 0)
    store.expect(chain("d"))
    store.drop(chain("cz"))
    store.clear()
    assert store.blocks == 0
    assert store.expect(chain("ad")) == chain("ad")


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
    def forgo(self, digests):
        self.tier.forgo(digests)
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

    @rule()
    def clear(self):
        self.tier.clear()
        self.resident.clear()
        self.expected.clear()

    @invariant()
    def what_is_found_is_what_was_stored_and_neither_evicted_nor_dropped(self):
        assert {digest for digest in EVERY_BLOCK if self.tier.holds(digest)} == self.resident
        assert sorted(self.tier.listing()) == sorted(self.resident)

    @invariant()
    def it_never_holds_more_than_it_may(self):
        assert self.tier.blocks == len(self.resident) <= self.tier.capacity_blocks


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_the_laws_of_a_tier_hold_under_every_eviction_order(eviction):
    laws = type("Laws", (TierLaws,), {"eviction": eviction})
    run_state_machine_as_test(laws, settings=settings(max_examples=40))


def hierarchy(host: int = 4, disk: int = 8, remote: int = 8) -> TierMoves:
    return TierMoves(
        {Tier.REMOTE: store_of(remote), Tier.HOST: store_of(host), Tier.DISK: store_of(disk)}
    )


def test_sealed_blocks_are_written_to_the_host_and_to_the_pool():
    tiers = hierarchy()
    moves = tiers.write_through(chain("ab"))
    assert moves == [
        TierMove(Tier.DEVICE, Tier.HOST, chain("ab")),
        TierMove(Tier.DEVICE, Tier.REMOTE, chain("ab")),
    ]
    assert tiers.write_through(chain("ab")) == []
    assert tiers.tiers[Tier.HOST].prefix(chain("ab")) == 0
    assert tiers.arrived(moves[0], 5) == Arrival(chain("ab"), (), ())
    assert tiers.tiers[Tier.HOST].prefix(chain("abc")) == 2


def test_without_host_memory_blocks_go_straight_to_the_disk():
    tiers = TierMoves({Tier.DISK: store_of(4)})
    assert tiers.write_through(chain("a")) == [TierMove(Tier.DEVICE, Tier.DISK, chain("a"))]


def test_the_host_demotes_to_the_disk_and_the_disk_forgets():
    tiers = hierarchy(host=2, disk=2)
    tiers.arrived(TierMove(Tier.DEVICE, Tier.HOST, chain("ab")), 0)
    arrival = tiers.arrived(TierMove(Tier.DEVICE, Tier.HOST, chain("cd")), 1)
    # The tail is evicted first; on the disk the blocks are a chain in its order again.
    assert arrival.evicted == chain("ba")
    assert arrival.moves == (TierMove(Tier.HOST, Tier.DISK, chain("ab")),)
    assert not any(store.prefix(chain("ab")) for store in tiers.tiers.values())
    assert tiers.arrived(arrival.moves[0], 2) == Arrival(chain("ab"), (), ())
    assert tiers.tiers[Tier.DISK].prefix(chain("ab")) == 2
    assert tiers.arrived(TierMove(Tier.HOST, Tier.DISK, chain("x")), 3) == Arrival(
        chain("x"), chain("b"), ()
    )


def test_the_pool_is_shared_and_may_be_down():
    pool = store_of(8)
    one, other = TierMoves({Tier.REMOTE: pool}), TierMoves({Tier.REMOTE: pool})
    (move,) = one.write_through(chain("ab"))
    assert other.write_through(chain("ab")) == []
    one.lost(move)
    (move,) = other.write_through(chain("ab"))
    pool.up = False
    assert other.arrived(move, 1) == Arrival((), (), ())
    pool.up = True
    assert pool.prefix(chain("ab")) == 0
    (move,) = one.write_through(chain("ab"))
    one.arrived(move, 2)
    assert other.tiers[Tier.REMOTE].prefix(chain("ab")) == 2


@given(st.lists(st.tuples(BLOCKS, st.booleans()), max_size=30))
def test_every_block_that_was_ever_written_is_accounted_for(writes):
    """Moves arrive or are lost in the end; what a tier took in is there or was evicted once."""
    tiers = hierarchy(host=3, disk=4, remote=5)
    taken, given_up = Counter[tuple[Tier, bytes]](), Counter[tuple[Tier, bytes]]()
    for now_ns, (digests, arrives) in enumerate(writes):
        moves = tiers.write_through(digests)
        while moves:
            move = moves.pop(0)
            if not arrives:
                tiers.lost(move)
                continue
            arrival = tiers.arrived(move, now_ns)
            taken.update((move.target, digest) for digest in arrival.added)
            given_up.update((move.target, digest) for digest in arrival.evicted)
            moves += arrival.moves
    for tier, store in tiers.tiers.items():
        for digest in EVERY_BLOCK:
            assert taken[tier, digest] - given_up[tier, digest] == store.holds(digest)
        # Nothing is on its way any more: all that is not here is wanted.
        assert len(store.expect(EVERY_BLOCK)) == len(EVERY_BLOCK) - store.blocks


@pytest.mark.parametrize("capacity_blocks", [0, -1])
def test_a_tier_has_room(capacity_blocks):
    with pytest.raises(AssertionError):
        store_of(capacity_blocks)
