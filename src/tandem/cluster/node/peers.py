"""The other workers and shared pool processes that a process may use, as its gateways report
them."""

from tandem.messages.cluster import PeerJoined, PoolNodeJoined
from tandem.messages.node import (
    ConnectPeer,
    ConnectPoolNode,
    ForgetPeer,
    ForgetPoolNode,
    NodeEffect,
)


class Peers:
    """By name and incarnation, each with the gateways that report it: connected once, forgotten
    when one gateway reports it lost or none reports it any more."""

    def __init__(self) -> None:
        self._reported_by: dict[tuple[str, str], dict[str, None]] = {}

    def __contains__(self, peer: tuple[str, str]) -> bool:
        return peer in self._reported_by

    def joined(self, gateway: str, message: PeerJoined) -> list[NodeEffect]:
        peer = message.worker, message.incarnation
        known = peer in self._reported_by
        self._reported_by.setdefault(peer, {})[gateway] = None
        if known:
            return []
        return [ConnectPeer(message.worker, message.incarnation, message.export)]

    def lost(self, worker: str, incarnation: str) -> list[NodeEffect]:
        if self._reported_by.pop((worker, incarnation), None) is None:
            return []
        return [ForgetPeer(worker, incarnation)]

    def gateway_gone(self, gateway: str) -> list[NodeEffect]:
        """This gateway reports nobody any more."""
        effects: list[NodeEffect] = []
        for worker, incarnation in list(self._reported_by):
            reported_by = self._reported_by[worker, incarnation]
            if reported_by.pop(gateway, 0) is None and not reported_by:
                effects += self.lost(worker, incarnation)
        return effects


Effect = ConnectPoolNode | ForgetPoolNode


class PoolNodes:
    """By name: the starts of a process that gateways report, each with those gateways, the one
    reported last at the end. That one is connected."""

    def __init__(self) -> None:
        self._starts: dict[str, dict[PoolNodeJoined, dict[str, None]]] = {}

    def __len__(self) -> int:
        return len(self._starts)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._starts)

    def joined(self, gateway: str, message: PoolNodeJoined) -> list[Effect]:
        """A gateway reports this start of it, and so none before it."""
        starts = self._starts.setdefault(message.node, {})
        before = next(reversed(starts), None)
        reported_by = starts.pop(message, {})
        for start in list(starts):
            starts[start].pop(gateway, None)
            if not starts[start]:
                del starts[start]
        starts[message] = reported_by | {gateway: None}
        return _instead(before, message)

    def gone(self, gateway: str, node: str, incarnation: str) -> list[Effect]:
        """A gateway has lost this start of it."""
        effects: list[Effect] = []
        starts = self._starts.get(node, {})
        for start in list(starts):
            if start.incarnation == incarnation:
                effects += self._retract(gateway, start)
        return effects

    def gateway_gone(self, gateway: str) -> list[Effect]:
        """This gateway reports nobody any more."""
        effects: list[Effect] = []
        for starts in list(self._starts.values()):
            for start in list(starts):
                effects += self._retract(gateway, start)
        return effects

    def _retract(self, gateway: str, start: PoolNodeJoined) -> list[Effect]:
        starts = self._starts[start.node]
        before = next(reversed(starts))
        reported_by = starts[start]
        reported_by.pop(gateway, None)
        if reported_by:
            return []
        del starts[start]
        if not starts:
            del self._starts[start.node]
        if start != before:
            return []
        return _instead(before, next(reversed(starts), None))


def _instead(before: PoolNodeJoined | None, after: PoolNodeJoined | None) -> list[Effect]:
    effects: list[Effect] = []
    if before == after:
        return effects
    if before is not None:
        effects.append(ForgetPoolNode(before.node, before.incarnation))
    if after is not None:
        effects.append(ConnectPoolNode(after.node, after.incarnation, after.address))
    return effects
