"""Keys by a rank that may change, against a plain dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.keyed_heap import KeyedHeap


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=400))
def test_a_keyed_heap_holds_what_was_placed_last(placements):
    heap, ranks = KeyedHeap(), {}
    for step, (key, rank) in enumerate(placements):
        if rank == 4:
            heap.discard(key)
            ranks.pop(key, None)
        else:
            heap.place(key, rank)
            ranks[key] = (rank, step)
        assert heap.first() == min(ranks, key=lambda key: ranks[key], default=None)
        assert len(heap) == len(ranks)


def test_a_keyed_heap_stays_small_when_keys_are_placed_again_and_again():
    heap = KeyedHeap()
    for step in range(2000):
        heap.place(step % 10, step)
        assert len(heap._entries) <= 2 * 10 + 64
    assert heap.first() == 1990 % 10


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 99), st.booleans())))
def test_a_keyed_heap_of_tuples_is_a_sorted_dictionary(actions):
    heap, plain = KeyedHeap(), {}
    for serial, (key, rank, leaves) in enumerate(actions):
        if leaves and key in plain:
            heap.discard(key)
            del plain[key]
        else:
            heap.place(key, (rank, serial))
            plain[key] = (rank, serial)
        assert heap.first_entry() == min(((r, k) for k, r in plain.items()), default=None)
        assert len(heap) == len(plain)
        assert all((key in heap) == (key in plain) for key in "abcdefgh")


def test_outdated_entries_do_not_pile_up():
    heap = KeyedHeap()
    heap.place("first", (-1, 0))
    for serial in range(1000):
        heap.place("moving", (0, serial))
    assert len(heap._entries) <= 2 * len(heap) + 65
