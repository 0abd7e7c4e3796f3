"""Connection limits of one server, which all its connections share: how many there may be and of
whom, what their unfinished heads hold, and the one timer that closes those whose head is overdue.
"""

import asyncio
import resource
from typing import Final, Protocol

from tandem.api.config import ConnectionLimits
from tandem.api.connections.table import (
    ConnectionCapacity,
    ConnectionPlace,
    ConnectionTable,
    UnfinishedHeads,
    client_network,
)

# Of all the files that the process may have open so many, or a quarter, are not for clients: its
# workers and operators come over connections too. Some of them are the reserve for probes.
KEPT_FILES: Final = 256
RESERVE: Final = 64
UNBOUNDED: Final = 1 << 30
# Where nobody says how many connections there may be. Each may cost some memory.
MOST_CONNECTIONS: Final = 8192
# What unfinished heads may hold in all, but for those of up to so many bytes.
UNFINISHED_BYTES: Final = 64 << 20
SMALL_HEAD_BYTES: Final = 4 << 10


class GatedConnection(Protocol):
    """A connection as the gate sees it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    def cut(self) -> None:
        """Close it at once."""
        ...

    def head_overdue(self) -> None:
        """No complete head in its time."""
        ...

    def __hash__(self) -> int: ...


class ConnectionGate:
    """What all connections of one server share; use it from one event loop."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._table: ConnectionTable[GatedConnection] = ConnectionTable(
            limits.head_timeout_s, limits.gives_way_s
        )
        self._heads: UnfinishedHeads[GatedConnection] = UnfinishedHeads(
            UNFINISHED_BYTES, SMALL_HEAD_BYTES
        )
        self._timer: asyncio.TimerHandle | None = None

    def connection_arrived(self, connection: GatedConnection, address: str) -> ConnectionPlace:
        place, evicted = self._table.connection_arrived(
            connection, client_network(address), self._capacity(), connection.loop.time()
        )
        if evicted is not None:
            evicted.cut()
        if place is ConnectionPlace.RESERVE or self._timer is None:
            self._watch(connection.loop)
        return place

    def head_completed(self, connection: GatedConnection) -> None:
        self._table.head_completed(connection)

    def awaits_head(self, connection: GatedConnection) -> None:
        """For its next request."""
        self._table.awaits_head(connection, connection.loop.time())
        if self._timer is None:
            self._watch(connection.loop)

    def holds_unparsed(self, connection: GatedConnection, unparsed_bytes: int) -> None:
        """In its parser. Where all hold too much, who has held much for longest goes."""
        for other in self._heads.holds_unparsed(connection, unparsed_bytes):
            other.cut()

    def connection_left(self, connection: GatedConnection) -> None:
        self._heads.holds_unparsed(connection, 0)
        self._table.connection_left(connection)

    def _capacity(self) -> ConnectionCapacity:
        """As of now: the system may take files away from a process that runs."""
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files == resource.RLIM_INFINITY:
            files = UNBOUNDED
        kept = min(KEPT_FILES, files // 4)
        most = self.limits.connections or MOST_CONNECTIONS
        normal = max(1, min(most, files - kept))
        per_address = self.limits.connections_per_address or max(1, normal // 4)
        return ConnectionCapacity(normal, min(normal, per_address), min(RESERVE, kept // 2))

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer for all: they are in the order in which they are due."""
        due_s = self._table.next_wakeup_s()
        if due_s is None or (self._timer is not None and self._timer.when() <= due_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(due_s, self._close_overdue, loop)

    def _close_overdue(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        for connection in self._table.overdue(loop.time()):
            connection.head_overdue()
        self._watch(loop)
