"""Membership of the shared pool: its registered processes, and why a gateway refuses others."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from tandem.cluster.gateway.members import KEPT_LOSSES
from tandem.facts.kv_tiers import BlockFormat, TierFigures
from tandem.messages.cluster import PROTOCOL, RegisterPoolNode


@dataclass(slots=True)
class PoolNode:
    """One process. `tiers` are its figures as it told them last."""

    peer: str
    registration: RegisterPoolNode
    tiers: tuple[TierFigures, ...] = ()

    @property
    def name(self) -> str:
        return self.registration.worker


class PoolNodes:
    """By peer and by name; a name belongs to the newest start. Only those that keep blocks of
    `block_format` are let in; None lets nobody in."""

    def __init__(self, block_format: BlockFormat | None) -> None:
        self.block_format = block_format
        self._by_peer: dict[str, PoolNode] = {}
        self._by_name: dict[str, PoolNode] = {}
        self._replaced: deque[tuple[str, str]] = deque(maxlen=KEPT_LOSSES)

    def __iter__(self) -> Iterator[PoolNode]:
        """By name."""
        return iter(sorted(self._by_peer.values(), key=lambda node: node.name))

    def of_peer(self, peer: str) -> PoolNode | None:
        return self._by_peer.get(peer)

    def of_name(self, node: str) -> PoolNode | None:
        return self._by_name.get(node)

    def others(self, node: PoolNode) -> list[PoolNode]:
        return [each for each in self if each is not node]

    def add(self, node: PoolNode) -> None:
        assert node.name not in self._by_name
        assert node.peer not in self._by_peer
        self._by_name[node.name] = self._by_peer[node.peer] = node

    def remove(self, node: PoolNode) -> None:
        del self._by_name[node.name]
        del self._by_peer[node.peer]

    def outdated(self, node: PoolNode) -> None:
        """A newer start has taken its name: this one will not be let in again."""
        self._replaced.append((node.name, node.registration.incarnation))

    def objection(self, register: RegisterPoolNode) -> str:
        """Why this process cannot be had; empty when it can."""
        if register.protocol != PROTOCOL:
            return (
                f"{register.worker} (version {register.version}) speaks protocol "
                f"{register.protocol}, this gateway {PROTOCOL}; run the same version everywhere"
            )
        if self.block_format is None:
            return f"{register.worker} keeps KV for all, and this cluster has no remote tier"
        if register.format.block_bytes != self.block_format.block_bytes:
            return (
                f"{register.worker} keeps blocks of {register.format.block_bytes} bytes, this "
                f"cluster has blocks of {self.block_format.block_bytes}"
            )
        if register.format != self.block_format:
            return f"{register.worker} keeps KV of another model or layout than this cluster's"
        if (register.worker, register.incarnation) in self._replaced:
            return f"another process has taken the name {register.worker}"
        return ""
