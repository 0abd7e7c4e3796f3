"""The TCP connector: one-sided reads between hosts, with nothing but sockets.

Both sides prove that they know the cluster's secret before anything else. The bytes themselves are
neither encrypted nor signed: who can change packets on the network can read and corrupt KV, so it
belongs on a network of one's own, or in a tunnel.
"""

import ctypes
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Final, Literal

import msgspec

from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, join_spans
from tandem.kv.connectors.tcp import protocol as frames
from tandem.kv.connectors.tcp.link import LinkRequest, TcpLink
from tandem.kv.connectors.tcp.listener import TcpListener
from tandem.kv.connectors.tcp.stream import (
    PeerAddress,
    Stream,
    TcpLimits,
    listening_socket,
    pieces_of,
)
from tandem.kv.connectors.transfer_handles import TransferHandles, parsed_description
from tandem.kv.region import Region

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


class MemoryServer:
    """Serves the exported memory of a process to peers that know the secret, at `port`, from its
    making on. Whatever comes over the port, nothing beyond the region is ever touched."""

    def __init__(
        self,
        listening: socket.socket,
        memory: memoryview,
        credentials: frames.Credentials,
        *,
        entropy: Callable[[int], bytes],
        limits: TcpLimits,
    ) -> None:
        self._memory = memory
        self._limits = limits
        self._listener = TcpListener(
            listening, credentials, self._serve, entropy=entropy, limits=limits
        )
        self.port = self._listener.port

    def stop_serving(self, patience_s: float) -> None:
        """When it returns nobody reads the memory any more."""
        self._listener.close_listener(patience_s)

    def _serve(self, stream: Stream) -> None:
        while True:
            self._answer(stream)

    def _answer(self, stream: Stream) -> None:
        silence_s = self._limits.silence_s
        head = stream.receive_head(frames.HEAD_BYTES, self._limits.idle_s, silence_s)
        table = stream.receive_message(frames.parse_head(head), silence_s)
        offsets, lengths = frames.parse_table(head, table, len(self._memory))
        reply = memoryview(frames.reply(int(lengths.sum())))
        stream.send_bytes([reply, *pieces_of(self._memory, offsets, lengths)], silence_s)


class TcpConnector:
    """`host` is the address to listen at, at any port, and the one that peers get: a number,
    because nobody knows how long a name takes. `entropy(n)` gives n bytes that nobody can guess.

    What is asked of one peer is carried out one after the other, of several side by side. A read
    never writes after its end.
    """

    name: Final = "tcp"

    def __init__(
        self,
        host: str,
        secret: bytes,
        *,
        entropy: Callable[[int], bytes],
        limits: TcpLimits = DEFAULT_LIMITS,
    ) -> None:
        if len(secret) < SECRET_BYTES:
            raise ConnectorError(
                f"a secret of {len(secret)} bytes; at least {SECRET_BYTES}, please"
            )
        if problem := address_problem(host):
            raise ConnectorError(f"peers cannot be told {host!r}: {problem}")
        self._host = host
        self._cluster_secret = secret
        self._incarnation = entropy(frames.INCARNATION_BYTES)
        self._entropy = entropy
        self._limits = limits
        self._memories: list[memoryview] = []
        self._server: MemoryServer | None = None
        self._exported_bytes = 0
        self._links: dict[str, tuple[TcpLink, int]] = {}
        self._ending: list[TcpLink] = []
        self._handles = TransferHandles()

    def register_region(self, region: Region, *, exported: bool) -> int:
        """An exported region is served from now on. Raises `ConnectorError` when the address is
        not to be had."""
        if region.device != "cpu":
            raise ConnectorError(f"tcp moves memory of the host, not of {region.device}")
        memory = _memory_of(region)
        if exported:
            assert self._server is None
            self._server = MemoryServer(
                listening_socket(self._host, 0),
                memory,
                frames.Credentials(self._cluster_secret, self._incarnation),
                entropy=self._entropy,
                limits=self._limits,
            )
            self._exported_bytes = region.bytes
        self._memories.append(memory)
        return len(self._memories) - 1

    def describe_endpoint(self) -> bytes:
        assert self._server is not None
        return msgspec.msgpack.encode(
            TcpDescription(self._host, self._server.port, self._incarnation, self._exported_bytes)
        )

    def connect_peer(self, peer: str, description: bytes) -> None:
        found = parsed_description(peer, description, TcpDescription)
        if problem := address_problem(found.host):
            raise ConnectorError(f"{peer} is said to be at {found.host!r}: {problem}")
        self.disconnect_peer(peer)
        address = PeerAddress(
            peer,
            (found.host, found.port),
            frames.Credentials(self._cluster_secret, found.incarnation),
            self._entropy,
            self._limits,
        )
        self._links[peer] = (TcpLink(address, self._handles), found.bytes)

    def disconnect_peer(self, peer: str) -> None:
        if peer in self._links:
            link, _ = self._links.pop(peer)
            self._handles.cancel_peer(peer, f"disconnected from {peer}")
            link.stop_link(f"disconnected from {peer}")
            self._ending = [*(other for other in self._ending if other.alive), link]

    def begin_read(self, peer: str, spans: Spans, region_id: int) -> int:
        memory = self._memories[region_id]
        link, peer_bytes = self._links.get(peer, (None, None))
        handle = self._handles.open_checked(peer, spans, peer_bytes, len(memory))
        if link is not None and not handle.ended:
            link.post_request(LinkRequest(handle, join_spans(spans), memory))
        return handle.number

    def cancel_handle(self, handle: int) -> None:
        self._handles.cancel_handle(handle)

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        return self._handles.poll_completions(timeout_s)

    def close_connector(self) -> None:
        self._handles.end_all("the connector was closed")
        links = [link for link, _ in self._links.values()]
        for link in links:
            link.stop_link("the connector was closed")
        for link in [*links, *self._ending]:
            link.join_link(CLOSE_S)
        if self._server is not None:
            self._server.stop_serving(CLOSE_S)


def address_problem(host: str) -> str:
    """Why a peer cannot be reached at it; empty when it can be tried."""
    try:
        address = ip_address(host)
    except ValueError:
        return "it is no address in numbers"
    return "it stands for all addresses of a host" if address.is_unspecified else ""


def _memory_of(region: Region) -> memoryview:
    return memoryview((ctypes.c_ubyte * region.bytes).from_address(region.address)).cast("B")
