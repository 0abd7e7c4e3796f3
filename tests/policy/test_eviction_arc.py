"""ARC against a straightforward transliteration of figure 4 of its paper."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.eviction.policies import Arc


class Paper:
    """ARC(c) of Megiddo and Modha, FAST 2003, figure 4. Lists run from LRU to MRU."""

    def __init__(self, c):
        self.c, self.p = c, 0.0
        self.t1, self.t2, self.b1, self.b2 = [], [], [], []

    def request(self, x):
        """Gives the page that left the cache, if any."""
        self.out = None
        if x in self.t1 or x in self.t2:  # Case I
            (self.t1 if x in self.t1 else self.t2).remove(x)
            self.t2.append(x)
        elif x in self.b1:  # Case II
            self.p = min(float(self.c), self.p + max(1.0, len(self.b2) / len(self.b1)))
            self.replace(x)
            self.b1.remove(x)
            self.t2.append(x)
        elif x in self.b2:  # Case III
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self.replace(x)
            self.b2.remove(x)
            self.t2.append(x)
        else:  # Case IV
            total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
            if len(self.t1) + len(self.b1) == self.c:
                if len(self.t1) < self.c:
                    self.b1.pop(0)
                    self.replace(x)
                else:
                    self.out = self.t1.pop(0)
            elif total >= self.c:
                if total == 2 * self.c:
                    self.b2.pop(0)
                self.replace(x)
            self.t1.append(x)
        return self.out

    def replace(self, x):
        t1 = len(self.t1)
        if t1 and (t1 > self.p or (x in self.b2 and t1 == self.p)):
            self.out = self.t1.pop(0)
            self.b1.append(self.out)
        else:
            self.out = self.t2.pop(0)
            self.b2.append(self.out)


class Cache:
    """ARC behind the eviction port, driven as a cache drives it: insert, then evict."""

    def __init__(self, capacity):
        self.capacity, self.order, self.resident = capacity, Arc(capacity), set()

    def request(self, key):
        if key in self.resident:
            self.order.touch(key, 0)
            return None
        self.order.insert(key, 0)
        self.resident.add(key)
        if len(self.resident) <= self.capacity:
            return None
        victim = self.order.victim(0)
        self.order.remove(victim)
        self.resident.remove(victim)
        return victim


def lists_of(order):
    return [
        list(keys)
        for keys in (order._recent, order._frequent, order._recent_ghosts, order._frequent_ghosts)
    ]


@given(st.integers(1, 6), st.lists(st.integers(0, 14), max_size=200))
def test_decisions_lists_and_target_are_the_papers(capacity, keys):
    duel(capacity, keys)


@pytest.mark.parametrize("capacity", [1, 2, 5, 16])
def test_they_stay_the_papers_through_long_changing_loads(capacity):
    chance = Random(capacity)
    keys = []
    for phase in range(40):
        keys += range(phase, phase + 2 * capacity)
        keys += [int(chance.paretovariate(0.7)) % (4 * capacity) for _ in range(60)]
    duel(capacity, keys)


def duel(capacity, keys):
    paper, cache = Paper(capacity), Cache(capacity)
    for key in keys:
        assert cache.request(key) == paper.request(key)
        assert lists_of(cache.order) == [paper.t1, paper.t2, paper.b1, paper.b2]
        assert cache.order._recent_target == paper.p


def test_a_scan_does_not_flush_what_is_used_again_and_again():
    cache = Cache(8)
    for key in [1, 2, 3, 4] * 3 + list(range(100, 200)):
        cache.request(key)
    assert {1, 2, 3, 4} <= cache.resident


@given(st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), max_size=60))
def test_requests_of_several_blocks_keep_the_ghosts_bounded(requests):
    order, resident, capacity = Arc(8), set(), 8
    for keys in requests:
        for key in keys:
            if key in resident:
                order.touch(key, 0)
            else:
                order.insert(key, 0)
                resident.add(key)
        while len(resident) > capacity:
            victim = order.victim(0)
            order.remove(victim)
            resident.remove(victim)
        recent, frequent, recent_ghosts, frequent_ghosts = lists_of(order)
        assert sorted(recent + frequent) == sorted(resident)
        assert not {*recent_ghosts, *frequent_ghosts} & resident
        assert len(recent + frequent + recent_ghosts + frequent_ghosts) <= 2 * capacity


def test_what_was_not_evicted_leaves_no_ghost():
    order = Arc(2)
    order.insert(1, 0)
    order.insert(2, 0)
    assert order.victim(0) == 1
    order.remove(2)
    assert lists_of(order) == [[1], [], [], []]
    order.insert(2, 0)
    assert lists_of(order) == [[1, 2], [], [], []]
