"""Max-min shares: nobody keeps the others out, and both forms give way alike."""

import random

from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.fair_shares import FairBudget, FairShares


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_places_go_to_even_shares_and_accounts_are_forgotten(actions):
    holders: FairShares[int] = FairShares()
    for serial, (owner, leaves) in enumerate(actions):
        if len(holders) >= 8:
            largest = holders.gives_way(owner)
            if largest is None:
                assert all(holders.held_by(owner) + 1 >= holders.held_by(each) for each in "abc")
                continue
            held = holders.held_by(largest)
            assert held >= holders.held_by(owner) + 2
            holders.discard(holders.newest(largest))
        holders.add(serial, owner)
        if leaves:
            holders.discard(serial)
        assert len(holders) == sum(holders.held_by(each) for each in "abc") <= 8


def test_whoever_holds_less_than_an_equal_share_finds_room():
    chance, shares, held = random.Random(1), FairBudget[int](1000), dict[int, tuple[str, int]]()
    for item in range(3000):
        account, more = chance.choice("abcd"), chance.randint(1, 60)
        mine = sum(amount for who, amount in held.values() if who == account)
        try:
            for victim in shares.reserve(item, account, more):
                # Only of who held more.
                loser = held[victim][0]
                theirs = sum(amount for who, amount in held.values() if who == loser)
                assert loser != account
                assert theirs > mine + more
                del held[victim]
            held[item] = (account, more)
        except OverflowError:
            assert mine + more > 1000 // 4 - 60
        if chance.random() < 0.1:
            gone = chance.choice(sorted(held))
            shares.give_back(gone)
            del held[gone]
        assert shares.held == sum(amount for _, amount in held.values()) <= 1000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_a_budget_of_places_gives_way_as_counted_places_do(actions):
    places, budget = FairShares[int](), FairBudget[int](8)
    for serial, (owner, leaves) in enumerate(actions):
        try:
            victims = budget.reserve(serial, owner, 1)
        except OverflowError:
            assert len(places) == 8
            assert places.gives_way(owner) is None
            continue
        if len(places) == 8:
            loser = places.newest(places.gives_way(owner))
            assert victims == [loser]
            places.discard(loser)
        places.add(serial, owner)
        if leaves:
            places.discard(serial)
            budget.give_back(serial)
        assert len(places) == places.held == budget.held


def test_an_item_that_is_added_again_is_the_newest():
    shares = FairShares[str]()
    for item in ("one", "two", "one"):
        shares.add(item, "a")
    assert (shares.oldest("a"), shares.newest("a"), shares.held_by("a")) == ("two", "one", 2)
