"""Joining and cutting lists of pieces never changes which byte goes where."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.kv.connectors.contract import Spans, batches, join_spans, problem_of

# Small numbers make neighbours likely.
PIECES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 4)), max_size=12)


def spans_of(pieces: list[tuple[int, int, int]]) -> Spans:
    table = np.array(pieces, dtype=np.int64).reshape(-1, 3)
    remote, local, lengths = table.T.copy()
    return Spans(remote, local, lengths)


def byte_pairs(spans: Spans) -> list[tuple[int, int]]:
    """(remote, local) of every byte, in order."""
    return [
        (remote + index, local + index)
        for remote, local, length in zip(
            spans.remote.tolist(), spans.local.tolist(), spans.lengths.tolist(), strict=True
        )
        for index in range(length)
    ]


@given(PIECES)
def test_joined_spans_are_the_same_bytes_and_none_could_be_joined(pieces):
    before = spans_of(pieces)
    joined = join_spans(before)
    assert byte_pairs(joined) == byte_pairs(before)
    assert (joined.lengths > 0).all()
    for index in range(len(joined.lengths) - 1):
        length = joined.lengths[index]
        adjacent = joined.remote[index] + length == joined.remote[index + 1]
        assert not (adjacent and joined.local[index] + length == joined.local[index + 1])


def test_neighbours_on_one_side_alone_stay_apart():
    joined = join_spans(spans_of([(0, 0, 4), (4, 4, 4), (8, 16, 4), (0, 20, 4), (4, 24, 2)]))
    assert joined.remote.tolist() == [0, 8, 0]
    assert joined.local.tolist() == [0, 16, 20]
    assert joined.lengths.tolist() == [8, 4, 6]


@given(PIECES, st.integers(1, 9), st.integers(1, 4))
def test_batches_are_the_same_bytes_in_bounded_parts(pieces, limit_bytes, limit_spans):
    joined = join_spans(spans_of(pieces))
    parts = list(batches(joined, limit_bytes, limit_spans))
    assert [pair for part in parts for pair in byte_pairs(part)] == byte_pairs(joined)
    for part in parts:
        assert 0 < part.bytes <= limit_bytes
        assert 0 < len(part.lengths) <= limit_spans


def test_what_lies_outside_is_found():
    huge = 2**63 - 1
    assert problem_of(spans_of([(0, 0, 10), (90, 0, 10), (100, 5, 0)]), 100, 10) == ""
    for piece in [(91, 0, 10), (-1, 0, 2), (0, 0, -1), (huge, 0, huge), (101, 0, 0)]:
        assert "peer's region of 100 bytes" in problem_of(spans_of([(0, 0, 1), piece]), 100, 100)
    for piece in [(0, 91, 10), (0, -1, 2), (0, huge, 1), (0, 1, 100)]:
        assert "own region of 100 bytes" in problem_of(spans_of([piece]), 200, 100)
    short = Spans(np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64))
    assert "of one length" in problem_of(short, 10, 10)
    other = Spans(np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, np.int64))
    assert "int64" in problem_of(other, 10, 10)
