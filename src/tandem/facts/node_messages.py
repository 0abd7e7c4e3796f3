"""What the node machine of a worker process is told, and what it asks for."""

from dataclasses import dataclass

from tandem.facts.cluster_messages import ToGateway, ToWorker
from tandem.facts.gateway_messages import TimePassed
from tandem.facts.kv_export import KvExport, MoveKv, MoveReport
from tandem.facts.messages import RunStep, StepDone


@dataclass(frozen=True, slots=True)
class GatewayConnected:
    """The channel to this gateway works (again)."""

    gateway: str


@dataclass(frozen=True, slots=True)
class GatewaySaid:
    """A message from the gateway at the other end of this channel."""

    gateway: str
    message: ToWorker


@dataclass(frozen=True, slots=True)
class GatewayGone:
    """The channel is broken, or its queue is full because nobody reads."""

    gateway: str


@dataclass(frozen=True, slots=True)
class MoveFinished:
    """`StartMove` is over: nobody writes to the blocks any more."""

    move_id: int
    report: MoveReport


@dataclass(frozen=True, slots=True)
class BlocksPublished:
    """`PublishBlocks` is done: others may read the blocks."""

    publication_id: int


@dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The process is to end, orderly: drain, hand over, say goodbye."""


NodeEvent = (
    GatewayConnected
    | GatewaySaid
    | GatewayGone
    | StepDone
    | MoveFinished
    | BlocksPublished
    | LeaveRequested
    | TimePassed
)


@dataclass(frozen=True, slots=True)
class SendToGateway:
    """Send this on the channel to `gateway`, after everything sent there before."""

    gateway: str
    message: ToGateway


@dataclass(frozen=True, slots=True)
class StartMove:
    """Read KV from a peer into own blocks, then say `MoveFinished`."""

    move_id: int
    order: MoveKv


@dataclass(frozen=True, slots=True)
class EndMove:
    """Stop this move soon; `MoveFinished` still comes."""

    move_id: int


@dataclass(frozen=True, slots=True)
class PublishBlocks:
    """Write the headers of these blocks (generation, checksums), so that others may read them and
    check what they read, then say `BlocksPublished`. Nobody writes to them meanwhile."""

    publication_id: int
    blocks: tuple[int, ...]
    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConnectPeer:
    """KV may be read from this worker from now on."""

    worker: str
    incarnation: str
    export: KvExport


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """Nothing will be read from it any more."""

    worker: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Leave:
    """End the process; `reason` is empty when that was wanted."""

    reason: str = ""


NodeEffect = (
    RunStep | SendToGateway | StartMove | EndMove | PublishBlocks | ConnectPeer | ForgetPeer | Leave
)
