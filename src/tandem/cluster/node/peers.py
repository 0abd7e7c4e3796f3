"""The other workers that this one may read KV from, as its gateways report them."""

from tandem.messages.cluster import PeerJoined
from tandem.messages.node import ConnectPeer, ForgetPeer, NodeEffect


class Peers:
    """By name and incarnation, each with the gateways that speak for it: connected once, forgotten
    when one gateway knows it dead or none speaks for it any more."""

    def __init__(self) -> None:
        self._told_by: dict[tuple[str, str], dict[str, None]] = {}

    def __contains__(self, peer: tuple[str, str]) -> bool:
        return peer in self._told_by

    def joined(self, gateway: str, message: PeerJoined) -> list[NodeEffect]:
        peer = message.worker, message.incarnation
        known = peer in self._told_by
        self._told_by.setdefault(peer, {})[gateway] = None
        if known:
            return []
        return [ConnectPeer(message.worker, message.incarnation, message.export)]

    def lost(self, worker: str, incarnation: str) -> list[NodeEffect]:
        if self._told_by.pop((worker, incarnation), None) is None:
            return []
        return [ForgetPeer(worker, incarnation)]

    def gateway_gone(self, gateway: str) -> list[NodeEffect]:
        """This gateway speaks for nobody any more."""
        effects: list[NodeEffect] = []
        for worker, incarnation in list(self._told_by):
            told_by = self._told_by[worker, incarnation]
            if told_by.pop(gateway, 0) is None and not told_by:
                effects += self.lost(worker, incarnation)
        return effects
