"""Laws that every eviction order keeps, and each simple order against its slow, obvious twin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.facts.errors import InvalidConfiguration
from tandem.policy.eviction.pins_and_quotas import Pinned
from tandem.policy.eviction.policies import EVICTIONS, CostAware, Fifo, Lfu, Lru, make_eviction

CAPACITY = 5
# A key that is asked for; or, when negative, one that leaves by itself.
ACCESSES = st.lists(st.integers(-12, 12), max_size=120)
ORDERS = {name: lambda name=name: make_eviction(name, CAPACITY) for name in EVICTIONS} | {
    "pinned": lambda: Pinned(Lru(), 2)
}


def evicted(order, accesses):
    """The victims of a cache of CAPACITY keys, in order; checks that each was resident."""
    resident, victims = set(), []
    for now_ns, access in enumerate(accesses):
        key = abs(access)
        if access < 0:
            if key in resident:
                order.remove(key)
                resident.remove(key)
        elif key in resident:
            order.touch(key, now_ns)
        else:
            order.insert(key, now_ns)
            resident.add(key)
            if len(resident) > CAPACITY:
                victim = order.victim(now_ns)
                assert victim in resident
                assert order.victim(now_ns) == victim, "it stays until it is removed"
                order.remove(victim)
                resident.remove(victim)
                victims.append(victim)
    return victims, resident


@pytest.mark.parametrize("name", ORDERS)
@given(accesses=ACCESSES)
def test_residents_are_conserved(name, accesses):
    order = ORDERS[name]()
    _, resident = evicted(order, accesses)
    drained = []
    while (victim := order.victim(len(accesses))) is not None:
        order.remove(victim)
        drained.append(victim)
    assert sorted(drained) == sorted(resident)


@pytest.mark.parametrize("name", ORDERS)
@given(accesses=ACCESSES)
def test_later_clocks_and_other_names_decide_alike(name, accesses):
    """Nothing depends on the absolute instant or on how a key is hashed or compared."""

    class Named:
        def __init__(self, order):
            self._order = order
            self._keys = {key: f"block {(key * 7) % 13}" for key in range(13)}
            self._back = {text: key for key, text in self._keys.items()}

        def insert(self, key, now_ns):
            self._order.insert(self._keys[key], now_ns + 10**18)

        def touch(self, key, now_ns):
            self._order.touch(self._keys[key], now_ns + 10**18)

        def remove(self, key):
            self._order.remove(self._keys[key])

        def victim(self, now_ns):
            return self._back.get(self._order.victim(now_ns + 10**18))

    assert evicted(ORDERS[name](), accesses) == evicted(Named(ORDERS[name]()), accesses)


class NaiveList:
    """The front goes first; `moves` says whether a touch sends a key to the end."""

    def __init__(self, moves):
        self.keys, self.moves = [], moves

    def insert(self, key, now_ns):
        self.keys.append(key)

    def touch(self, key, now_ns):
        if self.moves:
            self.keys.remove(key)
            self.keys.append(key)

    def remove(self, key):
        self.keys.remove(key)

    def victim(self, now_ns):
        return self.keys[0]


class NaiveWorth:
    """GDSF as its paper writes it, and with a price of None LFU: a scan for the least worth, of
    equal ones the least recently used."""

    def __init__(self, price):
        self.price, self.known, self.floor, self.clock = price, {}, 0.0, 0

    def insert(self, key, now_ns):
        self.use(key, 1)

    def touch(self, key, now_ns):
        self.use(key, self.known[key][2] + 1)

    def use(self, key, uses):
        self.clock += 1
        worth = uses if self.price is None else self.floor + uses * self.price(key)
        self.known[key] = (worth, self.clock, uses)

    def remove(self, key):
        del self.known[key]

    def victim(self, now_ns):
        key = min(self.known, key=lambda key: self.known[key][:2])
        self.floor = self.known[key][0]
        return key


def price(key):
    return 0.25 + key % 3


@given(ACCESSES)
def test_lru_and_fifo_are_lists(accesses):
    assert evicted(Lru(), accesses) == evicted(NaiveList(moves=True), accesses)
    assert evicted(Fifo(), accesses) == evicted(NaiveList(moves=False), accesses)


@given(ACCESSES)
def test_lfu_and_cost_aware_are_scans(accesses):
    assert evicted(Lfu(), accesses) == evicted(NaiveWorth(None), accesses)
    assert evicted(CostAware(price), accesses) == evicted(NaiveWorth(price), accesses)


def test_fifo_ignores_hits_and_lru_does_not():
    accesses = [1, 2, 3, 4, 5, 1, 6]
    assert evicted(Fifo(), accesses)[0] == [1]
    assert evicted(Lru(), accesses)[0] == [2]


def test_lfu_forgets_the_uses_of_what_left():
    # 1 is used three times, leaves by itself and comes back with a single use: 2 to 5 have two.
    accesses = [1, 1, 1, -1, 2, 2, 3, 3, 4, 4, 5, 5, 1, 6]
    assert evicted(Lfu(), accesses)[0] == [1]


def test_dear_blocks_stay_longer_but_not_for_ever():
    order = CostAware(lambda key: 10.0 if key == 0 else 1.0)
    victims, _ = evicted(order, range(60))
    # The floor rises by 1 for every CAPACITY - 1 cheap victims until it reaches the dear one.
    assert victims[:36] == list(range(1, 37))
    assert 0 in victims[36:]


def test_an_unknown_name_is_said_with_the_known_ones():
    with pytest.raises(InvalidConfiguration, match=r"lru, fifo, lfu, arc, cost, got 'lur'"):
        make_eviction("lur", 4)
