"""Events and effects of a shared pool process: offers and reads of clients, and its stores.
Gateways treat it like a worker."""

from msgspec import Struct

from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName
from tandem.messages.gateway import TimePassed
from tandem.messages.node import (
    BlocksFetched,
    BlocksKept,
    ConnectPoolNode,
    CopyBlocks,
    ForgetBlocks,
    ForgetPoolNode,
    GatewayConnected,
    GatewayGone,
    Leave,
    LeaveRequested,
    MessageFromGateway,
    SendToGateway,
)


class BlocksOffered(Struct, frozen=True):
    """A client has these; answered by `AnswerOffer`."""

    offer_id: int
    names: tuple[BlockName, ...]


class BlocksReceived(Struct, frozen=True):
    """Of blocks that were wanted, these have come or will not: the store of the fastest tier has
    `kept` of them now."""

    names: tuple[BlockName, ...]
    kept: tuple[bytes, ...] = ()


class BlocksAsked(Struct, frozen=True):
    """A client wants to read these; answered by `FetchHeld`."""

    fetch_id: int
    names: tuple[BlockName, ...]


class ReplicaEnded(Struct, frozen=True):
    """A `SendReplica` is over."""

    node: str


PoolNodeEvent = (
    GatewayConnected
    | MessageFromGateway
    | GatewayGone
    | BlocksOffered
    | BlocksReceived
    | BlocksAsked
    | BlocksFetched
    | BlocksKept
    | ReplicaEnded
    | LeaveRequested
    | TimePassed
)


class AnswerOffer(Struct, frozen=True):
    """`wanted` are on their way from now on, until `BlocksReceived`; `held` are here."""

    offer_id: int
    wanted: tuple[bytes, ...]
    held: tuple[bytes, ...]


class FetchHeld(Struct, frozen=True):
    """Read `names[i]`, the first of what was asked for, from `tiers[i]`, checked. Ends with
    `BlocksFetched`. There may be none."""

    fetch_id: int
    tiers: tuple[Tier, ...]
    names: tuple[BlockName, ...]


class SendReplica(Struct, frozen=True):
    """Read `names[i]` from `tiers[i]` and offer them to another process of the pool. Ends with
    `ReplicaEnded`."""

    node: str
    tiers: tuple[Tier, ...]
    names: tuple[BlockName, ...]


PoolNodeEffect = (
    SendToGateway
    | AnswerOffer
    | FetchHeld
    | SendReplica
    | CopyBlocks
    | ForgetBlocks
    | ConnectPoolNode
    | ForgetPoolNode
    | Leave
)
