"""Ends that move, against a plain dictionary."""

import hypothesis.strategies as st
from hypothesis import given

from tandem.twin.network.model import Ends

KEYS = st.integers(0, 4)
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.integers(0, 20)),
    st.tuples(st.just("remove"), KEYS, st.just(0)),
    st.tuples(st.just("take"), st.just(0), st.just(0)),
)


@given(st.lists(STEPS, max_size=200))
def test_it_is_a_dictionary_in_order_of_time(steps):
    ends, due = Ends(), {}
    for verb, key, instant_ns in steps:
        if verb == "put":
            ends.put(key, instant_ns)
            due[key] = instant_ns
        elif verb == "remove":
            ends.remove(key)
            due.pop(key, None)
        elif due:
            next_ns = min(due.values())
            assert ends.take(next_ns) == sorted(k for k, at_ns in due.items() if at_ns == next_ns)
            due = {k: at_ns for k, at_ns in due.items() if at_ns != next_ns}
        assert ends.next_ns() == min(due.values(), default=None)


def test_replaced_entries_do_not_pile_up():
    ends = Ends()
    for instant_ns in range(10_000):
        ends.put(7, instant_ns)
    assert len(ends._entries) < 100
    assert ends.take(9_999) == [7]
    assert ends.next_ns() is None
    assert not ends._current
