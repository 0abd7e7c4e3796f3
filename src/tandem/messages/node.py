"""Events and effects of the node machine of a worker process."""

from msgspec import Struct

from tandem.facts.adapter import AdapterMemory
from tandem.facts.fleet import Tier
from tandem.facts.kv import BlockName, KvExport, MoveKv, MoveReport
from tandem.messages.cluster import ToGateway, ToWorker
from tandem.messages.gateway import TimePassed
from tandem.messages.worker import RunStep, StepDone


class GatewayConnected(Struct, frozen=True):
    """The channel to this gateway works (again)."""

    gateway: str


class MessageFromGateway(Struct, frozen=True):
    """A message from the gateway at the other end of this channel."""

    gateway: str
    message: ToWorker


class GatewayGone(Struct, frozen=True):
    """The channel is broken, or its queue is full."""

    gateway: str


class MoveFinished(Struct, frozen=True):
    """`StartMove` is over: nobody writes to the blocks any more."""

    move_id: int
    report: MoveReport


class BlocksExported(Struct, frozen=True):
    """`ExportBlocks` is done: others may read the blocks."""

    export_id: int


class BlocksStaged(Struct, frozen=True):
    """`StageBlocks` is done; not `staged` when there was no room, and then nothing is to be
    dropped."""

    copy_id: int
    staged: bool


class BlocksKept(Struct, frozen=True):
    """A copy into a tier is over: it holds `kept`. `problem` is why not the others; empty when the
    tier refused them."""

    copy_id: int
    tier: Tier
    kept: tuple[bytes, ...]
    problem: str = ""


class BlocksFetched(Struct, frozen=True):
    """A fetch is over: nobody writes to its blocks any more, and the first `blocks` of them came
    whole. `corrupt` failed their check, `missing` were not there."""

    fetch_id: int
    blocks: int
    moved_bytes: int = 0
    seconds: float = 0.0
    corrupt: tuple[bytes, ...] = ()
    missing: tuple[bytes, ...] = ()
    problem: str = ""


class AdapterMemoryChanged(Struct, frozen=True):
    """The engine's memory holds other adapters than before, or none for the first time."""

    memory: AdapterMemory


class LeaveRequested(Struct, frozen=True):
    """The process is to end, orderly: drain, transfer, deregister."""


NodeEvent = (
    GatewayConnected
    | MessageFromGateway
    | GatewayGone
    | StepDone
    | MoveFinished
    | BlocksExported
    | BlocksStaged
    | BlocksKept
    | BlocksFetched
    | AdapterMemoryChanged
    | LeaveRequested
    | TimePassed
)


class SendToGateway(Struct, frozen=True):
    """Send this on the channel to `gateway`, after everything sent there before."""

    gateway: str
    message: ToGateway


class StartMove(Struct, frozen=True):
    """Read KV from a peer into own blocks. Ends with `MoveFinished`."""

    move_id: int
    order: MoveKv


class EndMove(Struct, frozen=True):
    """Stop this move soon; `MoveFinished` still comes."""

    move_id: int


class ExportBlocks(Struct, frozen=True):
    """Write the metadata of these blocks (version, checksums), so that others may read and check
    them. Ends with `BlocksExported`. The blocks are not written to meanwhile."""

    export_id: int
    blocks: tuple[int, ...]
    versions: tuple[int, ...]


class ConnectPeer(Struct, frozen=True):
    """KV may be read from this worker from now on."""

    worker: str
    incarnation: str
    export: KvExport


class ForgetPeer(Struct, frozen=True):
    """Nothing will be read from it any more."""

    worker: str
    incarnation: str


class StageBlocks(Struct, frozen=True):
    """Copy these blocks of the device to memory beside it. Ends with `BlocksStaged`. They may be
    overwritten meanwhile: whoever asked looks at their versions before anything is kept."""

    copy_id: int
    blocks: tuple[int, ...]


class KeepStaged(Struct, frozen=True):
    """Write `rows` of a staged copy into a tier under these names. Ends with `BlocksKept`."""

    copy_id: int
    tier: Tier
    rows: tuple[int, ...]
    names: tuple[BlockName, ...]


class DropStaged(Struct, frozen=True):
    """The memory of a staged copy may be used again; nothing more is kept of it."""

    copy_id: int


class CopyBlocks(Struct, frozen=True):
    """Copy blocks from one slower tier to another. Ends with `BlocksKept` of the target."""

    copy_id: int
    source: Tier
    target: Tier
    names: tuple[BlockName, ...]


class ForgetBlocks(Struct, frozen=True):
    """A tier holds these no more: their room may be used again."""

    tier: Tier
    digests: tuple[bytes, ...]


class FetchBlocks(Struct, frozen=True):
    """Read `names[i]` from `tiers[i]` into block `target_blocks[i]` of the device, checked. Ends
    with `BlocksFetched`."""

    fetch_id: int
    tiers: tuple[Tier, ...]
    names: tuple[BlockName, ...]
    target_blocks: tuple[int, ...]


class EndFetch(Struct, frozen=True):
    """Stop this fetch soon; `BlocksFetched` still comes."""

    fetch_id: int


class ConnectPoolNode(Struct, frozen=True):
    """Blocks may be written to and read from this process of the shared pool from now on."""

    node: str
    incarnation: str
    address: str


class ForgetPoolNode(Struct, frozen=True):
    """It is gone."""

    node: str
    incarnation: str


class Leave(Struct, frozen=True):
    """End the process; `reason` is empty when that was wanted. `again`: it is to be started
    anew."""

    reason: str = ""
    again: bool = False


TierEffect = (
    StageBlocks
    | KeepStaged
    | DropStaged
    | CopyBlocks
    | ForgetBlocks
    | FetchBlocks
    | EndFetch
    | ConnectPoolNode
    | ForgetPoolNode
)

NodeEffect = (
    RunStep
    | SendToGateway
    | StartMove
    | EndMove
    | ExportBlocks
    | ConnectPeer
    | ForgetPeer
    | TierEffect
    | Leave
)
