"""Lists of pieces to copy, made fewer and cut to size. Knows nothing of what the bytes mean."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tandem.kv.connector import Spans


def join_spans(spans: Spans) -> Spans:
    """The same bytes in fewer pieces: a piece that follows its predecessor at both ends becomes a
    part of it. Keeps the order; drops empty pieces."""
    filled = spans.lengths > 0
    remote, local = spans.remote[filled], spans.local[filled]
    lengths = spans.lengths[filled]
    if len(lengths) == 0:
        return Spans(remote, local, lengths)
    follows = (remote[1:] == (remote + lengths)[:-1]) & (local[1:] == (local + lengths)[:-1])
    firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
    return Spans(remote[firsts], local[firsts], np.add.reduceat(lengths, firsts))


def batches(spans: Spans, limit_bytes: int, limit_spans: int) -> Iterator[Spans]:
    """The same bytes in the same order, as lists of at most that many bytes and pieces. Pieces
    must not be empty (as `join_spans` leaves them)."""
    ends = np.cumsum(spans.lengths)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - spans.lengths
    # Seen as one stream of bytes, it is cut wherever a piece begins and at multiples of the limit.
    cuts = np.union1d(starts, np.arange(0, total, limit_bytes, dtype=np.int64))
    owner = np.searchsorted(ends, cuts, side="right")
    within = cuts - starts[owner]
    remote, local = spans.remote[owner] + within, spans.local[owner] + within
    lengths = np.diff(np.append(cuts, total))
    for first, end in _groups(cuts // limit_bytes, limit_spans):
        yield Spans(remote[first:end], local[first:end], lengths[first:end])


def _groups(keys: NDArray[np.int64], limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of equal keys, in parts of at most `limit`."""
    edges = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), len(keys)]
    for first, end in pairwise(edges):
        for start in range(first, end, limit):
            yield start, min(start + limit, end)


def outside(offsets: NDArray[np.int64], lengths: NDArray[np.int64], region_bytes: int) -> bool:
    """Whether any piece is not wholly within a region (or has a length below zero)."""
    # Compared with what is left instead of added up: sums of hostile numbers overflow.
    bad = (lengths < 0) | (offsets < 0) | (offsets > region_bytes)
    return bool((bad | (lengths > region_bytes - np.where(bad, 0, offsets))).any())


def problem_of(spans: Spans, remote_bytes: int, local_bytes: int) -> str:
    """What forbids to copy these pieces; empty when nothing does."""
    count = len(spans.lengths)
    arrays = (spans.remote, spans.local, spans.lengths)
    if any(array.dtype != np.int64 or array.shape != (count,) for array in arrays):
        return "the spans are not int64 arrays of one length"
    if outside(spans.remote, spans.lengths, remote_bytes):
        return f"a span lies outside the peer's region of {remote_bytes} bytes"
    if outside(spans.local, spans.lengths, local_bytes):
        return f"a span lies outside the own region of {local_bytes} bytes"
    return ""
