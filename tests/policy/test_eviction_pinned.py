"""Pins hold while they are valid, in bounds, and fall back when they end."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.eviction.pinned import Pin, Pinned
from tandem.policy.eviction.policies import Lru

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
