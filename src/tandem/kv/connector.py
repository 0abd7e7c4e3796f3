"""How bytes get from the memory of one process into that of another: one small port, several ways.

A connector knows offsets and lengths, never blocks, layouts or requests; whether the bytes are the
right ones is for the mover to check.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tandem.facts.errors import TandemError
from tandem.kv.region import Region


class ConnectorError(TandemError):
    """A peer cannot be reached this way, or not any more. Says which and why."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Pieces of memory: piece i is `lengths[i]` bytes at `remote[i]` of the peer's exported region
    and at `local[i]` of a region of one's own. int64 arrays of one length."""

    remote: NDArray[np.int64]
    local: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @property
    def bytes(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True, slots=True)
class Completion:
    """A ticket is over; `problem` is empty when all its bytes are where they should be. After
    that nobody writes to the target on its behalf."""

    ticket: int
    problem: str = ""


class Connector(Protocol):
    """Use from one thread, but `close`. Reads and writes run in the background; `poll` tells their
    ends, each exactly once. Memory of registered regions outlives the connector."""

    @property
    def name(self) -> str: ...

    def register(self, region: Region, *, exported: bool) -> int:
        """Make memory known; gives a handle for `read` and `write`. The one exported region is
        what peers read and write; the others are only ends of one's own."""
        ...

    def describe(self) -> bytes:
        """What a peer of the same connector needs for `connect`; after `register`."""
        ...

    def connect(self, peer: str, description: bytes) -> None:
        """Get ready to reach a peer. Raises `ConnectorError` when this is not the way to it: not on
        this host, another version, nobody there."""
        ...

    def disconnect(self, peer: str) -> None:
        """Nothing more is wanted of it; its open tickets end with a problem."""
        ...

    def read(self, peer: str, spans: Spans, handle: int) -> int:
        """Begin to copy the peer's bytes into the own region `handle`. Gives a ticket."""
        ...

    def write(self, peer: str, spans: Spans, handle: int) -> int:
        """Begin to copy own bytes into the peer's exported region. Gives a ticket."""
        ...

    def cancel(self, ticket: int) -> None:
        """End it soon; its completion still comes. Unknown tickets are ignored."""
        ...

    def poll(self, timeout_s: float) -> list[Completion]:
        """What has ended; waits up to `timeout_s` for the first."""
        ...

    def close(self) -> None:
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
