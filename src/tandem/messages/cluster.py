"""Messages between gateways and workers. Each has a type of its own on the wire.

A gateway may have forgotten a worker or be new to it; a worker serves several gateways. A worker is
known by its name, and each start of its process by an incarnation.
"""

from msgspec import Struct

from tandem.facts.blocks import BlockHash, CacheRoot
from tandem.facts.bounds import Count, Name, Nanoseconds, PositiveNanoseconds, Size
from tandem.facts.fleet import Role, Tier
from tandem.facts.kv import BlockFormat, KvExport, MoveKv, MoveReport, TierFigures
from tandem.messages.router import (
    BlocksListed,
    BlocksReported,
    ImportReported,
    KvReported,
    LoadReported,
    RequestBroken,
    RequestRefused,
    RequestsLost,
    TokensReported,
)
from tandem.messages.sharing import (
    RelayedFromGateway,
    RelayToGateway,
    ShareUse,
    UseShared,
)
from tandem.messages.worker import (
    CopiesRequested,
    ImportDone,
    ImportsArrived,
    KvTransfersRequested,
    PrefillsArrived,
    PrefixCacheReset,
    RequestsAborted,
    RequestsArrived,
    SessionPaused,
    SessionReturning,
    TransferPinsReleased,
)

# Goes up whenever a message changes its meaning or its fields.
PROTOCOL = 10


class Register(Struct, frozen=True):
    """A worker registers, empty of the gateway's requests. `root` names the KV it computes;
    `accepting` is False while it drains, `spare` True while that is for standing by."""

    protocol: int
    version: str
    worker: Name
    incarnation: Name
    pool: str
    role: Role
    accepting: bool
    root: CacheRoot
    export: KvExport
    max_sequences: Size
    context_tokens: Count
    spare: bool = False


class RoleStateReported(Struct, frozen=True):
    """A worker's role, and whether it takes new requests, have changed. `spare`: it takes none
    because a planner has it stand by."""

    worker: str
    role: Role
    accepting: bool
    spare: bool = False


class MoveEnded(Struct, frozen=True):
    """A move that the gateway ordered is over."""

    worker: str
    transfer_id: int
    report: MoveReport


class Audited(Struct, frozen=True):
    """What a worker holds at one instant, for the auditor. Everything is 0 on a worker at rest, but
    `cached_blocks`. `problem` is the first broken law, or empty."""

    worker: str
    owned_blocks: int
    cached_blocks: int
    running: int
    waiting: int
    importing: int
    held: int
    leases: int
    moves: int
    problem: str


class PrefixCacheEmptied(Struct, frozen=True):
    """The process has done as the last `PrefixCacheReset` wanted."""

    worker: str


class RegisterPoolNode(Struct, frozen=True):
    """A process of the shared pool registers. Workers reach it at `address` (host:port)."""

    protocol: int
    version: str
    worker: Name
    incarnation: Name
    address: Name
    format: BlockFormat
    capacity_blocks: Count


class TiersReported(Struct, frozen=True):
    """The figures of every slower tier of a worker, or of the tiers of a pool process."""

    worker: str
    tiers: tuple[TierFigures, ...]


class Deregister(Struct, frozen=True):
    """The worker leaves, with nothing left to do."""

    worker: str


ToGateway = (
    Register
    | RoleStateReported
    | LoadReported
    | BlocksReported
    | BlocksListed
    | TokensReported
    | KvReported
    | ImportReported
    | RequestRefused
    | RequestsLost
    | MoveEnded
    | Audited
    | Deregister
    | RegisterPoolNode
    | TiersReported
    | RequestBroken
    | UseShared
    | PrefixCacheEmptied
    | RelayedFromGateway
)


class Registered(Struct, frozen=True):
    """The gateway has registered the worker. Intervals in nanoseconds: the worker reports at least
    every `report_interval_ns`, and takes a gateway silent for `silence_ns` for dead; requests whose
    lease is not renewed for `lease_ns` are given up."""

    gateway: str
    report_interval_ns: PositiveNanoseconds
    silence_ns: PositiveNanoseconds
    lease_ns: PositiveNanoseconds


class RegistrationRefused(Struct, frozen=True):
    """The gateway will never accept this worker, which ends with this reason."""

    reason: str


class RegisterAgain(Struct, frozen=True):
    """The worker is not registered (any more): it drops what the gateway asked for, and
    registers."""


class PeerJoined(Struct, frozen=True):
    """Another worker whose KV may be read from now on."""

    worker: str
    incarnation: str
    export: KvExport


class PeerLost(Struct, frozen=True):
    """That start of that worker is gone: nothing can be read from it any more."""

    worker: str
    incarnation: str


class PoolNodeJoined(Struct, frozen=True):
    """A process of the shared pool that KV blocks may be written to and read from."""

    node: Name
    incarnation: Name
    address: Name


class PoolNodeGone(Struct, frozen=True):
    """That start of that process of the shared pool is gone."""

    node: str
    incarnation: str


class FetchKv(Struct, frozen=True):
    """Read the KV of tokens `first_token .. end_token` of a request into the blocks reserved for
    it: from your own host memory or disk, or from the shared pool; from a faster tier than `tier`
    where that has it too. Ends with `MoveEnded`."""

    transfer_id: int
    request_id: str
    tier: Tier
    first_token: Count
    end_token: Count


class PinBlocks(Struct, frozen=True):
    """Keep what your slower tiers hold of this chain for so long; smaller `priority` is more
    urgent."""

    digests: tuple[BlockHash, ...]
    ttl_ns: Nanoseconds
    priority: int = 0


class LeasesRenewed(Struct, frozen=True):
    """The leases of all these requests, in whatever stage; also the gateway's heartbeat."""

    request_ids: tuple[str, ...]


class StopMove(Struct, frozen=True):
    """Cancel this move."""

    transfer_id: int


class Drain(Struct, frozen=True):
    """Take no new requests, from any gateway. `then_role`: take this role once nothing is left;
    None with `leave`: end the process then (with `again`, to be started anew); None without: stay
    so until `Undrain`, as a `spare` if a planner wants that."""

    then_role: Role | None = None
    leave: bool = False
    again: bool = False
    spare: bool = False


class Undrain(Struct, frozen=True):
    """Take requests again, in the role you have."""


class NotNeeded(Struct, frozen=True):
    """No request of this gateway needs the draining worker any more."""


class ListBlocks(Struct, frozen=True):
    """List all blocks of this tier: answered by `BlocksListed`."""

    tier: Tier


class Audit(Struct, frozen=True):
    """Check all invariants: answered by `Audited`."""


ToWorker = (
    Registered
    | RegistrationRefused
    | RegisterAgain
    | PeerJoined
    | PeerLost
    | LeasesRenewed
    | RequestsArrived
    | PrefillsArrived
    | ImportsArrived
    | ImportDone
    | CopiesRequested
    | KvTransfersRequested
    | TransferPinsReleased
    | RequestsAborted
    | MoveKv
    | StopMove
    | Drain
    | Undrain
    | NotNeeded
    | ListBlocks
    | Audit
    | PoolNodeJoined
    | PoolNodeGone
    | FetchKv
    | PinBlocks
    | SessionPaused
    | SessionReturning
    | ShareUse
    | PrefixCacheReset
    | RelayToGateway
)
