"""The TCP connector: one-sided reads and writes between hosts, with nothing but sockets.

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

from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, join_spans, problem_of
from tandem.kv.connectors.tcp import protocol as frames
from tandem.kv.connectors.tcp.handshake import PeerAddress, TcpLimits, listening_socket
from tandem.kv.connectors.tcp.link import LinkRequest, TcpLink
from tandem.kv.connectors.tcp.listener import TcpListener
from tandem.kv.connectors.tcp.stream import Stream, pieces_of
from tandem.kv.connectors.transfer_handles import TransferHandles
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
        """When it returns nobody reads or writes the memory any more."""
        self._listener.close_listener(patience_s)

    def _serve(self, stream: Stream) -> None:
        while True:
            self._answer(stream)

    def _answer(self, stream: Stream) -> None:
        silence_s = self._limits.silence_s
        head = bytearray(frames.HEAD_BYTES)
        stream.receive_bytes([memoryview(head)[:1]], self._limits.idle_s)
        stream.receive_bytes([memoryview(head)[1:]], silence_s)
        kind, table_bytes = frames.parse_head(bytes(head))
        if kind is frames.Kind.WRITE and not self._limits.writable:
            raise frames.BadFrame("a write into memory that is only to be read")
        table = bytearray(table_bytes)
        stream.receive_bytes([memoryview(table)], silence_s)
        offsets, lengths = frames.parse_table(bytes(head), bytes(table), len(self._memory))
        reply = memoryview(frames.reply(int(lengths.sum())))
        pieces = pieces_of(self._memory, offsets, lengths)
        if kind is frames.Kind.READ:
            stream.send_bytes([reply, *pieces], silence_s)
        else:
            stream.receive_bytes(pieces, silence_s)
            stream.send_bytes([reply], silence_s)


class TcpConnector:
    """`host` is the address to listen at, and the one that peers are told unless `advertised_host`
    is another: a number in any case, because nobody knows how long a name takes. `entropy(n)`
    gives n bytes that nobody can guess.

    What is asked of one peer is carried out one after the other, of several side by side. A write
    that ends with a problem may still have bytes on the way to the peer; a read never writes after
    its end.
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
        self._server: MemoryServer | None = None
        self._exported_bytes = 0
        self._links: dict[str, tuple[TcpLink, int]] = {}
        self._ending: list[TcpLink] = []
        self._handles = TransferHandles()

    @property
    def name(self) -> str:
        return "tcp"

    def register_region(self, region: Region, *, exported: bool) -> int:
        """An exported region is served from now on. Raises `ConnectorError` when the address is
        not to be had."""
        if region.device != "cpu":
            raise ConnectorError(f"tcp moves memory of the host, not of {region.device}")
        memory = _memory_of(region)
        if exported:
            assert self._server is None
            self._server = MemoryServer(
                listening_socket(*self._place),
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
            TcpDescription(
                self._advertised_host, self._server.port, self._incarnation, self._exported_bytes
            )
        )

    def connect_peer(self, peer: str, description: bytes) -> None:
        try:
            found = msgspec.msgpack.decode(description, type=TcpDescription)
        except msgspec.MsgspecError as error:
            raise ConnectorError(f"{peer} describes its memory in no known way: {error}") from error
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
        return self._request(peer, frames.Kind.READ, spans, region_id)

    def begin_write(self, peer: str, spans: Spans, region_id: int) -> int:
        return self._request(peer, frames.Kind.WRITE, spans, region_id)

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

    def _request(self, peer: str, kind: frames.Kind, spans: Spans, region_id: int) -> int:
        memory = self._memories[region_id]
        handle = self._handles.open_handle(peer)
        if peer not in self._links:
            self._handles.end_handle(handle, f"not connected to {peer}")
            return handle.number
        link, peer_bytes = self._links[peer]
        if problem := problem_of(spans, peer_bytes, len(memory)):
            self._handles.end_handle(handle, problem)
        else:
            link.post_request(LinkRequest(handle, kind, join_spans(spans), memory))
        return handle.number


def address_problem(host: str) -> str:
    """Why a peer cannot be reached at it; empty when it can be tried."""
    try:
        address = ip_address(host)
    except ValueError:
        return "it is no address in numbers"
    return "it stands for all addresses of a host" if address.is_unspecified else ""


def _memory_of(region: Region) -> memoryview:
    return memoryview((ctypes.c_ubyte * region.bytes).from_address(region.address)).cast("B")
