"""The driver contract of a shared pool machine: its ports, and how effects are performed on
them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from tandem.cluster.node.driver import GatewaysPort, PoolPort
from tandem.facts.fleet import Tier
from tandem.messages.node import (
    ConnectPoolNode,
    CopyBlocks,
    ForgetBlocks,
    ForgetPoolNode,
    Leave,
    SendToGateway,
)
from tandem.messages.pool_node import AnswerOffer, FetchHeld, PoolNodeEffect, SendReplica


class PoolClientsPort(Protocol):
    """Workers, and other processes of the pool, that bring and fetch blocks."""

    def answer_offer(self, answer: AnswerOffer) -> None: ...

    def fetch_held(self, order: FetchHeld) -> None:
        """Ends with `BlocksFetched`."""
        ...


class PoolStoresPort(Protocol):
    """The memory of the process, and the disk or server behind it."""

    def copy_between_tiers(self, order: CopyBlocks) -> None:
        """Ends with `BlocksKept`."""
        ...

    def forget_in_tier(self, tier: Tier, digests: tuple[bytes, ...]) -> None: ...


class SiblingsPort(PoolPort, Protocol):
    """The other processes of the pool."""

    def send_replica(self, order: SendReplica) -> None:
        """Ends with `ReplicaEnded`."""
        ...


@dataclass(frozen=True, slots=True)
class PoolNodePorts:
    gateways: GatewaysPort
    clients: PoolClientsPort
    stores: PoolStoresPort
    siblings: SiblingsPort


def perform(effects: Iterable[PoolNodeEffect], ports: PoolNodePorts) -> Leave | None:
    """Have the effects done, in order. Gives how the process is to end, if it is to."""
    for effect in effects:
        match effect:
            case SendToGateway(gateway, message):
                ports.gateways.send_to_gateway(gateway, message)
            case AnswerOffer():
                ports.clients.answer_offer(effect)
            case FetchHeld():
                ports.clients.fetch_held(effect)
            case SendReplica():
                ports.siblings.send_replica(effect)
            case CopyBlocks():
                ports.stores.copy_between_tiers(effect)
            case ForgetBlocks(tier, digests):
                ports.stores.forget_in_tier(tier, digests)
            case ConnectPoolNode(node, incarnation, address):
                ports.siblings.connect_pool_node(node, incarnation, address)
            case ForgetPoolNode(node, incarnation):
                ports.siblings.disconnect_pool_node(node, incarnation)
            case Leave():
                return effect
    return None
