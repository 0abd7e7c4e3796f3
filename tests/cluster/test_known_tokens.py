"""Known tokens are those of a plain array, whatever the prompt is held in."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from tandem.cluster.worker.sequence import KnownTokens

TOKENS = st.lists(st.integers(0, (1 << 32) - 1), max_size=8)


@given(TOKENS, TOKENS, TOKENS, st.sampled_from([tuple, list, lambda each: array("I", each)]))
def test_they_are_read_as_one_array_is(prompt, later, drawn, held_in):
    held = held_in(prompt)
    known = KnownTokens(held, later)
    for token in drawn[:3]:
        known.later.append(token)
    known.extend(array("I", drawn[3:]))
    plain = array("I", prompt + later + drawn)
    assert len(known) == len(plain)
    assert list(known) == list(plain)
    bounds = (None, *range(-len(plain) - 1, len(plain) + 2))
    for first in bounds:
        for end in bounds:
            assert known[first:end] == plain[first:end]
    assert list(held) == prompt


def test_choices_share_their_prompt():
    prompt = array("I", range(1000))
    first, second = KnownTokens(prompt), KnownTokens(prompt)
    first.later.append(7)
    assert first._prompt is second._prompt
    assert (len(first), len(second), len(prompt)) == (1001, 1000, 1000)
