"""The connector port: how bytes get from the memory of one process into that of another, and the
lists of spans that are copied.

A connector knows offsets and lengths, never blocks, layouts or requests; whether the bytes are the
right ones is for the KV transfer engine to check (`kv.transfer.chunk`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tandem.facts.errors import TandemError
from tandem.kv.region import Region


class ConnectorError(TandemError):
    """A peer cannot be reached this way, or not any more. Says which and why."""


@dataclass(frozen=True, slots=True)
class Spans:
    """What to copy: span i is `lengths[i]` bytes at `remote[i]` of the peer's exported region
    and at `local[i]` of a region of one's own. int64 arrays of one length."""

    remote: NDArray[np.int64]
    local: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def bytes(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True)
class Completion:
    """A read is over; `problem` is empty when all its bytes are where they should be.
    After that nobody writes to the target on its behalf."""

    handle: int
    problem: str = ""


class Connector(Protocol):
    """Use from one thread, but `close_connector`. Reads run in the background, each known by a
    transfer handle; `poll_completions` gives their ends, each exactly once. Memory of registered
    regions outlives the connector. There are no writes: only its owner writes to memory."""

    @property
    def name(self) -> str: ...

    def register_region(self, region: Region, *, exported: bool) -> int:
        """Make memory known; gives its number for `begin_read`. The one exported region is what
        peers read; the others are only ends of one's own."""
        ...

    def describe_endpoint(self) -> bytes:
        """What a peer of the same connector needs for `connect_peer`; after
        `register_region`."""
        ...

    def connect_peer(self, peer: str, description: bytes) -> None:
        """Get ready to reach a peer. Raises `ConnectorError` when this is not the way to it: not on
        this host, another version, nobody there."""
        ...

    def disconnect_peer(self, peer: str) -> None:
        """Nothing more is wanted of it; its open handles end with a problem."""
        ...

    def begin_read(self, peer: str, spans: Spans, region_id: int) -> int:
        """Begin to copy the peer's bytes into the own region `region_id`. Gives a transfer
        handle."""
        ...

    def cancel_handle(self, handle: int) -> None:
        """End it soon; its completion still comes. Unknown handles are ignored."""
        ...

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        """What has ended; waits up to `timeout_s` for the first."""
        ...

    def close_connector(self) -> None:
        """Give everything back; peers that still read get an error."""
        ...


@runtime_checkable
class InPlace(Protocol):
    """What a connector can do besides when it maps the memory of its peers: whoever reads may copy
    by himself, and check what he copies in the same pass."""

    def memory_of(self, peer: str) -> NDArray[np.uint8]:
        """All of the exported region of a connected peer. The array keeps it mapped. Raises
        `ConnectorError` for others."""
        ...


def join_spans(spans: Spans) -> Spans:
    """The same bytes in fewer spans: one that follows its predecessor at both ends becomes a part
    of it. Keeps the order; drops empty spans."""
    filled = spans.lengths > 0
    remote, local = spans.remote[filled], spans.local[filled]
    lengths = spans.lengths[filled]
    if len(lengths) == 0:
        return Spans(remote, local, lengths)
    follows = (remote[1:] == (remote + lengths)[:-1]) & (local[1:] == (local + lengths)[:-1])
    firsts = np.flatnonzero(np.concatenate(([True], ~follows)))
    return Spans(remote[firsts], local[firsts], np.add.reduceat(lengths, firsts))


def batches(spans: Spans, limit_bytes: int, limit_spans: int) -> Iterator[Spans]:
    """The same bytes in the same order, as lists of at most that many bytes and spans. Spans
    must not be empty (as `join_spans` leaves them)."""
    ends = np.cumsum(spans.lengths)
    total = int(ends[-1]) if len(ends) else 0
    starts = ends - spans.lengths
    # Seen as one stream of bytes, it is cut wherever a span begins and at multiples of the limit.
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
    """Whether any span is not wholly within a region (or has a length below zero)."""
    # Compared with what is left instead of added up: sums of hostile numbers overflow.
    bad = (lengths < 0) | (offsets < 0) | (offsets > region_bytes)
    return bool((bad | (lengths > region_bytes - np.where(bad, 0, offsets))).any())


def problem_of(spans: Spans, remote_bytes: int, local_bytes: int) -> str:
    """What forbids to copy these spans; empty when nothing does."""
    count = len(spans.lengths)
    arrays = (spans.remote, spans.local, spans.lengths)
    if any(array.dtype != np.int64 or array.shape != (count,) for array in arrays):
        return "the spans are not int64 arrays of one length"
    if outside(spans.remote, spans.lengths, remote_bytes):
        return f"a span lies outside the peer's region of {remote_bytes} bytes"
    if outside(spans.local, spans.lengths, local_bytes):
        return f"a span lies outside the own region of {local_bytes} bytes"
    return ""
