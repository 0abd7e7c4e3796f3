"""Table of all connections of a server: which may stay, and which goes when there are too many.
Bookkeeping alone: no sockets and no clock, so that a whole flood can be tried without one.

Every connection is counted to its client's address. One that *waits* owes a complete request head;
the others are owed an answer. Where all places are taken, the longest waiting connection gives way;
where none waits, a newcomer comes into a small reserve, from which only probes are answered.
"""

import ipaddress
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)

# In the reserve heads must be quicker.
RESERVE_HEAD_S: Final = 2.0
# An IPv6 client has all addresses of such a network.
_NETWORK_BITS: Final = 64


class ConnectionPlace(Enum):
    """Where a new connection is."""

    NORMAL = "normal"
    RESERVE = "reserve"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ConnectionCapacity:
    """How many connections there may be: in all, of one address, and in the reserve beside."""

    normal: int
    per_address: int
    reserve: int


@dataclass(slots=True)
class _Address(Generic[Connection]):
    """Its connections outside the reserve: how many, and since when which of them wait."""

    name: str
    count: int = 0
    waiting: dict[Connection, float] = field(default_factory=dict)


class ConnectionTable(Generic[Connection]):
    """All connections of a server. Instants are seconds of one clock that never goes back. A head
    is usually there at once: only who has waited for `gives_way_s` gives way to newcomers, so that
    an honest burst of clients does not throw itself out."""

    def __init__(self, head_timeout_s: float, gives_way_s: float = 1.0) -> None:
        self._gives_way_s = gives_way_s
        self._addresses: dict[str, _Address[Connection]] = {}
        self._normal: dict[Connection, _Address[Connection]] = {}
        self._reserve: set[Connection] = set()
        # Both in the order of the instants, because everybody gets the same time.
        self._waiting: dict[Connection, float] = {}
        self._reserve_waiting: dict[Connection, float] = {}
        self._limits_s = (
            (self._waiting, head_timeout_s),
            (self._reserve_waiting, min(head_timeout_s, RESERVE_HEAD_S)),
        )

    def __len__(self) -> int:
        return len(self._normal) + len(self._reserve)

    def connection_arrived(
        self, connection: Connection, address: str, capacity: ConnectionCapacity, now_s: float
    ) -> tuple[ConnectionPlace, Connection | None]:
        """The place of a new connection, which waits from now on, and the connection that has to be
        closed for it, if any; that one is forgotten already."""
        crowd, evicted = self._crowd(address, capacity), None
        if crowd is not None:
            evicted = _longest(crowd, now_s - self._gives_way_s)
            if evicted is None:
                return self._into_reserve(connection, capacity, now_s)
            self.connection_left(evicted)
        owner = self._addresses.setdefault(address, _Address(address))
        owner.count += 1
        self._normal[connection] = owner
        owner.waiting[connection] = self._waiting[connection] = now_s
        return ConnectionPlace.NORMAL, evicted

    def head_completed(self, connection: Connection) -> None:
        """It is owed an answer."""
        self._waiting.pop(connection, None)
        self._reserve_waiting.pop(connection, None)
        if owner := self._normal.get(connection):
            owner.waiting.pop(connection, None)

    def awaits_head(self, connection: Connection, now_s: float) -> None:
        """It has its answers, and may send another head."""
        self.head_completed(connection)
        if owner := self._normal.get(connection):
            owner.waiting[connection] = self._waiting[connection] = now_s
        elif connection in self._reserve:
            self._reserve_waiting[connection] = now_s

    def connection_left(self, connection: Connection) -> None:
        """It is closed. What is not there may be told again."""
        self.head_completed(connection)
        self._reserve.discard(connection)
        if owner := self._normal.pop(connection, None):
            owner.count -= 1
            if not owner.count:
                del self._addresses[owner.name]

    def overdue(self, now_s: float) -> list[Connection]:
        """Those whose time is over, which are to be closed; told once of each wait."""
        found = []
        for waiting, limit_s in self._limits_s:
            for connection, since_s in waiting.items():
                if now_s - since_s < limit_s:
                    break
                found.append(connection)
        for connection in found:
            self.head_completed(connection)
        return found

    def next_wakeup_s(self) -> float | None:
        """When the next one is overdue, unless something happens before."""
        ends = [
            next(iter(waiting.values())) + limit_s for waiting, limit_s in self._limits_s if waiting
        ]
        return min(ends, default=None)

    def _crowd(self, address: str, capacity: ConnectionCapacity) -> dict[Connection, float] | None:
        """Who of those that take a newcomer's place wait; None where there is a place."""
        owner = self._addresses.get(address)
        if owner is not None and owner.count >= capacity.per_address:
            return owner.waiting
        return self._waiting if len(self._normal) >= capacity.normal else None

    def _into_reserve(
        self, connection: Connection, capacity: ConnectionCapacity, now_s: float
    ) -> tuple[ConnectionPlace, Connection | None]:
        evicted = None
        if len(self._reserve) >= capacity.reserve:
            # Of any age: who asks for a probe has sent its head by now.
            evicted = _longest(self._reserve_waiting, now_s)
            if evicted is None:
                return ConnectionPlace.NONE, None
            self.connection_left(evicted)
        self._reserve.add(connection)
        self._reserve_waiting[connection] = now_s
        return ConnectionPlace.RESERVE, evicted


class UnfinishedHeads(Generic[Connection]):
    """The bytes that parsers keep of heads which are not complete. Heads of up to `small_bytes`
    are bounded by the number of connections; the larger ones together by `most_bytes`."""

    def __init__(self, most_bytes: int, small_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._small_bytes = small_bytes
        self.held_bytes = 0
        # Who has been here longest is first.
        self._large: dict[Connection, int] = {}

    def holds_unparsed(self, connection: Connection, count: int) -> list[Connection]:
        """So many bytes now. Gives those that have to be closed for it, which are forgotten."""
        self.held_bytes -= self._large.get(connection, 0)
        if count <= self._small_bytes:
            self._large.pop(connection, None)
            return []
        self._large[connection] = count
        self.held_bytes += count
        cut = []
        while self.held_bytes > self._most_bytes:
            longest = next(iter(self._large))
            self.held_bytes -= self._large.pop(longest)
            cut.append(longest)
        return cut


def client_network(host: str) -> str:
    """What a client's address counts as: itself, or its network in IPv6."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(address), _NETWORK_BITS), strict=False))


def _longest(waiting: dict[Connection, float], until_s: float) -> Connection | None:
    """Who waits the longest, if that is since `until_s` or before."""
    for connection, since_s in waiting.items():
        return connection if since_s <= until_s else None
    return None
