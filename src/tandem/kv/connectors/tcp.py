"""The way between hosts that needs nothing but sockets: one-sided reads and writes over TCP.

Both sides prove that they know the cluster's secret before anything else. The bytes themselves are
neither encrypted nor signed: who can change packets on the network can read and spoil KV, so it
belongs on a network of one's own, or in a tunnel.
"""

import ctypes
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, Literal

import msgspec

from tandem.kv.connector import Completion, ConnectorError, Spans
from tandem.kv.connectors import tcp_frames as frames
from tandem.kv.connectors.tcp_door import TcpLimits, listening_socket
from tandem.kv.connectors.tcp_link import Carry, TcpLink, Way
from tandem.kv.connectors.tcp_server import TcpServer
from tandem.kv.connectors.tickets import Tickets
from tandem.kv.region import Region
from tandem.kv.spans import join_spans, problem_of

SECRET_BYTES: Final = 16
CLOSE_S: Final = 5.0
DEFAULT_LIMITS: Final = TcpLimits()


class TcpDescription(msgspec.Struct, frozen=True):
    """Where a process listens, and which start of it."""

    host: str
    port: int
    incarnation: bytes
    bytes: int
    version: Literal[1] = 1


class TcpConnector:
    """`host` is the address to listen at, and the one that peers are told unless `advertised_host`
    is another: a number in any case, because nobody knows how long a name takes. `entropy(n)`
    gives n bytes that nobody can guess.

    Tickets to one peer are carried out one after the other, to several side by side. A write that
    ends with a problem may still have bytes on the way to the peer; a read never writes after its
    end.
    """

    def __init__(
        self,
        host: str,
        secret: bytes,
        *,
        entropy: Callable[[int], bytes],
        port: int = 0,
        advertised_host: str = "",
        limits: TcpLimits = DEFAULT_LIMITS,
    ) -> None:
        if len(secret) < SECRET_BYTES:
            raise ConnectorError(
                f"a secret of {len(secret)} bytes; at least {SECRET_BYTES}, please"
            )
        self._place = (host, port)
        self._advertised_host = advertised_host or host
        if problem := address_problem(self._advertised_host):
            raise ConnectorError(f"peers cannot be told {self._advertised_host!r}: {problem}")
        self._cluster_secret = secret
        self._incarnation = entropy(frames.INCARNATION_BYTES)
        self._entropy = entropy
        self._limits = limits
        self._memories: list[memoryview] = []
        self._server: TcpServer | None = None
        self._exported_bytes = 0
        self._links: dict[str, tuple[TcpLink, int]] = {}
        self._ending: list[TcpLink] = []
        self._tickets = Tickets()

    @property
    def name(self) -> str:
        return "tcp"

    def register(self, region: Region, *, exported: bool) -> int:
        """An exported region is served from now on. Raises `ConnectorError` when the address is
        not to be had."""
        if region.device != "cpu":
            raise ConnectorError(f"tcp moves memory of the host, not of {region.device}")
        memory = _memory_of(region)
        if exported:
            assert self._server is None
            self._server = TcpServer(
                listening_socket(*self._place),
                memory,
                frames.Credentials(self._cluster_secret, self._incarnation),
                entropy=self._entropy,
                limits=self._limits,
            )
            self._exported_bytes = region.bytes
        self._memories.append(memory)
        return len(self._memories) - 1

    def describe(self) -> bytes:
        assert self._server is not None
        return msgspec.msgpack.encode(
            TcpDescription(
                self._advertised_host, self._server.port, self._incarnation, self._exported_bytes
            )
        )

    def connect(self, peer: str, description: bytes) -> None:
        try:
            found = msgspec.msgpack.decode(description, type=TcpDescription)
        except msgspec.MsgspecError as error:
            raise ConnectorError(f"{peer} describes its memory in no known way: {error}") from error
        if problem := address_problem(found.host):
            raise ConnectorError(f"{peer} is said to be at {found.host!r}: {problem}")
        self.disconnect(peer)
        way = Way(
            peer,
            (found.host, found.port),
            frames.Credentials(self._cluster_secret, found.incarnation),
            self._entropy,
            self._limits,
        )
        self._links[peer] = (TcpLink(way, self._tickets), found.bytes)

    def disconnect(self, peer: str) -> None:
        if peer in self._links:
            link, _ = self._links.pop(peer)
            self._tickets.cancel_peer(peer, f"disconnected from {peer}")
            link.end(f"disconnected from {peer}")
            self._ending = [*(other for other in self._ending if other.alive), link]

    def read(self, peer: str, spans: Spans, handle: int) -> int:
        return self._carry(peer, frames.Kind.READ, spans, handle)

    def write(self, peer: str, spans: Spans, handle: int) -> int:
        return self._carry(peer, frames.Kind.WRITE, spans, handle)

    def cancel(self, ticket: int) -> None:
        self._tickets.cancel(ticket)

    def poll(self, timeout_s: float) -> list[Completion]:
        return self._tickets.poll(timeout_s)

    def close(self) -> None:
        self._tickets.close("the connector was closed")
        links = [link for link, _ in self._links.values()]
        for link in links:
            link.end("the connector was closed")
        for link in [*links, *self._ending]:
            link.join(CLOSE_S)
        if self._server is not None:
            self._server.close(CLOSE_S)

    def _carry(self, peer: str, kind: frames.Kind, spans: Spans, handle: int) -> int:
        memory = self._memories[handle]
        ticket = self._tickets.open(peer)
        if peer not in self._links:
            self._tickets.end(ticket, f"not connected to {peer}")
            return ticket.number
        link, peer_bytes = self._links[peer]
        if problem := problem_of(spans, peer_bytes, len(memory)):
            self._tickets.end(ticket, problem)
        else:
            link.put(Carry(ticket, kind, join_spans(spans), memory))
        return ticket.number


def address_problem(host: str) -> str:
    """Why a peer cannot be reached at it; empty when it can be tried."""
    try:
        address = ip_address(host)
    except ValueError:
        return "it is no address in numbers"
    return "it stands for all addresses of a host" if address.is_unspecified else ""


def _memory_of(region: Region) -> memoryview:
    return memoryview((ctypes.c_ubyte * region.bytes).from_address(region.address)).cast("B")
