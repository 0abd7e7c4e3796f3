"""The NIXL connector: the way over a fabric, which reads by RDMA, NVLink or within a host, and over
TCP at need.

Each peer has an agent of its own, because closing the agent is the only thing that surely stops
UCX from writing: a copy that was released, or whose peer was removed, still writes what comes late.
A peer over plain TCP that hangs while it is read from dies in UCX when it wakes up after that.
"""

import threading
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

import msgspec

from tandem.kv.connectors.contract import Completion, ConnectorError, Spans, join_spans
from tandem.kv.connectors.nixl_agent import NixlAgent, Pieces
from tandem.kv.connectors.transfer_handles import (
    TransferHandle,
    TransferHandles,
    parsed_description,
    poll_until_ended,
)
from tandem.kv.region import Region

TRIES = 3
_Address = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class NixlDescription(msgspec.Struct, frozen=True):
    """The memory of an agent, and how NIXL gets there."""

    agent: str
    address: _Address
    region_bytes: _Address
    device: Annotated[str, msgspec.Meta(pattern=r"^(cpu|cuda:\d{1,3})$")]
    metadata: bytes
    version: Literal[1] = 1


@dataclass(slots=True, eq=False)
class _Peer:
    """`copying` are the transfer handles by NIXL's own; `known` the own regions that the agent
    knows."""

    name: str
    memory: Region
    agent: NixlAgent
    copying: dict[int, TransferHandle] = field(default_factory=dict)
    known: set[int] = field(default_factory=set)

    def begin(self, handle: TransferHandle, spans: Spans, own: Region, region_id: int) -> None:
        """Begin to read the peer's spans into an own region, which is known by its number."""
        if region_id not in self.known:
            self.agent.register(own)
            self.known.add(region_id)
        copy = self.agent.begin(
            self.name,
            Pieces(own, spans.local, spans.lengths),
            Pieces(self.memory, spans.remote, spans.lengths),
        )
        self.copying[copy] = handle

    def take_done(self) -> list[TransferHandle]:
        done = [copy for copy in self.copying if self.agent.done(copy)]
        for copy in done:
            self.agent.release(copy)
        return [self.copying.pop(copy) for copy in done]


class NixlConnector:
    """`agent_name` must differ from that of every other worker, those that had its place before
    included. Making one raises `ConnectorError` where NIXL is not installed. A peer whose copy
    failed must be connected again, as if it had been disconnected."""

    name: Final = "nixl"

    def __init__(self, agent_name: str) -> None:
        self._agent_name = agent_name
        self._served = NixlAgent(agent_name)
        self._exported: Region | None = None
        self._regions: list[Region] = []
        self._peers: dict[str, _Peer] = {}
        self._handles = TransferHandles()
        # `close_connector` may come from another thread, and NIXL's agents know no locks.
        self._lock = threading.Lock()

    def register_region(self, region: Region, *, exported: bool) -> int:
        if exported:
            assert self._exported is None
            self._exported = region
        # Own memory is made known to a peer's agent when first needed. That of a GPU here too:
        # where UCX cannot reach it, it fails now.
        if exported or region.device != "cpu":
            self._served.register(region)
        self._regions.append(region)
        return len(self._regions) - 1

    def describe_endpoint(self) -> bytes:
        assert self._exported is not None
        return msgspec.msgpack.encode(
            NixlDescription(
                agent=self._agent_name,
                address=self._exported.address,
                region_bytes=self._exported.bytes,
                device=self._exported.device,
                metadata=self._served.metadata(),
            )
        )

    def connect_peer(self, peer: str, description: bytes) -> None:
        found = parsed_description(peer, description, NixlDescription)
        with self._lock:
            self._cut_off(peer, f"{peer} is connected anew")
            agent = self._reach(found)
            memory = Region(found.address, found.region_bytes, device=found.device)
            self._peers[peer] = _Peer(found.agent, memory, agent)

    def _reach(self, found: NixlDescription) -> NixlAgent:
        """UCX was seen to refuse a living peer over TCP, and to reach it with a fresh agent."""
        tries = 0
        while True:
            tries += 1
            agent = NixlAgent(f"{self._agent_name} reads {found.agent}")
            try:
                agent.load(found.metadata, found.agent)
            except ConnectorError:
                agent.close_agent()
                if tries == TRIES:
                    raise
            else:
                return agent

    def disconnect_peer(self, peer: str) -> None:
        with self._lock:
            self._cut_off(peer, f"disconnected from {peer}")

    def begin_read(self, peer: str, spans: Spans, region_id: int) -> int:
        own = self._regions[region_id]
        with self._lock:
            found = self._peers.get(peer)
            peer_bytes = found.memory.bytes if found else None
            handle = self._handles.open_checked(peer, spans, peer_bytes, own.bytes)
            pieces = spans if handle.ended else join_spans(spans)
            if not len(pieces.lengths):
                self._handles.end_handle(handle)
            elif found and self._handles.begin_handle(handle):
                try:
                    found.begin(handle, pieces, own, region_id)
                except ConnectorError as error:
                    self._cut_off(peer, str(error))
                    self._handles.end_handle(handle, str(error))
        return handle.number

    def cancel_handle(self, handle: int) -> None:
        # What is under way ends by itself, or with its peer: NIXL cannot take it back.
        self._handles.cancel_handle(handle)

    def poll_completions(self, timeout_s: float) -> list[Completion]:
        return poll_until_ended(self._handles, self._look, timeout_s)

    def close_connector(self) -> None:
        self._handles.end_all("the connector was closed")
        with self._lock:
            for peer in list(self._peers):
                self._cut_off(peer, "the connector was closed")
            self._served.close_agent()

    def _look(self) -> bool:
        """End what is over; gives whether anything goes on."""
        with self._lock:
            for name, peer in list(self._peers.items()):
                try:
                    for handle in peer.take_done():
                        self._handles.end_handle(handle, handle.stop)
                except ConnectorError as error:
                    # One copy that failed may be followed by late bytes of its neighbours.
                    self._cut_off(name, str(error))
            return any(peer.copying for peer in self._peers.values())

    def _cut_off(self, peer: str, problem: str) -> None:
        found = self._peers.pop(peer, None)
        if found is not None:
            found.agent.close_agent(found.copying)
            for handle in found.copying.values():
                self._handles.end_handle(handle, handle.stop or problem)
