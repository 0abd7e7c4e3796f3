"""Events and effects of the gateway machine."""

from dataclasses import dataclass

from msgspec import Struct

from tandem.facts.fleet import Role
from tandem.facts.kv import KvExport, TierFigures
from tandem.messages.cluster import Audited, ToGateway, ToWorker
from tandem.messages.planning import PlanDecision, PlanningStatus
from tandem.messages.router import (
    Explain,
    LoadReported,
    Reject,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.messages.worker import EmitTokens, FailRequest


class MessageFromWorker(Struct, frozen=True):
    """A message from the process that the transport knows as `peer`."""

    peer: str
    message: ToGateway


@dataclass(frozen=True, slots=True)
class PeerGone:
    """That process has ended, or its queue is full because it does not read; or, where it has not
    `died`, it is well but may not stay."""

    peer: str
    reason: str
    died: bool = True


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """An operator wants a worker to take no more requests and, when nothing is left, to take
    `then_role` or (with `leave`) to end; with `again` whoever started its process starts it anew.
    Ends with one `OperationEnded`: at once when it cannot be, else when the worker has done it
    (without `then_role` and `leave`: when it is empty)."""

    operation_id: int
    worker: str
    then_role: Role | None = None
    leave: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class UndrainAsked:
    """An operator wants a drained worker to take requests again."""

    operation_id: int
    worker: str


@dataclass(frozen=True, slots=True)
class AuditAsked:
    """An operator wants every worker's `Audited`; ends with one `AuditEnded`."""

    operation_id: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """Whoever launches processes could not start this worker, or has given it up."""

    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The instant that `next_wakeup` gave is here."""


GatewayEvent = (
    MessageFromWorker
    | PeerGone
    | RequestSubmitted
    | RequestWithdrawn
    | DrainAsked
    | UndrainAsked
    | AuditAsked
    | StartFailed
    | TimePassed
)


class SendToWorker(Struct, frozen=True):
    """Send this to the process `peer`, after everything sent to it before."""

    peer: str
    message: ToWorker


class Deliver(Struct, frozen=True):
    """Tokens for clients; the ids are those that clients' requests were submitted with. `worker`
    drew them, all of them `repeats` times in a row."""

    emission: EmitTokens
    worker: str = ""
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class Fence:
    """The process `peer` counts as dead: close its channel, and end it where possible."""

    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class OperationEnded:
    """What an operator asked for is done, or (`problem`) cannot be."""

    operation_id: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AuditEnded:
    """The reports of all processes, and the first broken law of the gateway itself, if any."""

    operation_id: int
    workers: tuple[Audited, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Start the process of this worker with this role, unless it runs or is being started: a name
    is never started twice. It appears by its `Register`; where it cannot start, `StartFailed`."""

    worker: str
    role: Role


@dataclass(frozen=True, slots=True)
class PlanDecided:
    """What the planner decided at this tick, for the records. Its actions are effects of their
    own."""

    decision: PlanDecision


GatewayEffect = (
    SendToWorker
    | Deliver
    | Reject
    | FailRequest
    | Explain
    | Fence
    | OperationEnded
    | AuditEnded
    | StartWorker
    | PlanDecided
)


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as a gateway sees it, with what it did since it joined. `seconds` are those spent
    reading KV from others, `moved_bytes` what it read, `sent_bytes` what others read from it.
    `fetches` from slower tiers brought `fetched_tokens`; the worker reports the figures of its
    `tiers` itself, for all gateways together."""

    worker: str
    pool: str
    incarnation: str
    role: Role
    accepting: bool
    last_seen_s: float
    load: LoadReported
    total_blocks: int
    prompts: int
    output_tokens: int
    transfers: int
    failed_transfers: int
    moved_bytes: int
    sent_bytes: int
    spans: int
    seconds: float
    connectors: tuple[str, ...]
    export: KvExport
    fetches: int = 0
    failed_fetches: int = 0
    fetched_tokens: int = 0
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0
    tiers: tuple[TierFigures, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolNodeStatus:
    """One process of the shared pool, as last reported."""

    node: str
    incarnation: str
    address: str
    last_seen_s: float
    capacity_blocks: int
    block_bytes: int
    tiers: tuple[TierFigures, ...]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """All that one gateway knows. `lost` are processes that died, latest last, with why.
    `recomputed_tokens` is what takeovers cost: tokens that had to be computed once more. `planning`
    is the planner's, if this gateway has it."""

    gateway: str
    up_s: float
    workers: tuple[WorkerStatus, ...]
    waiting_requests: int
    running_requests: int
    finished_requests: int
    takeovers: int
    lost: tuple[tuple[str, str], ...]
    recomputed_tokens: int = 0
    pool_nodes: tuple[PoolNodeStatus, ...] = ()
    planning: PlanningStatus | None = None

    @property
    def members(self) -> frozenset[str]:
        """Names of all workers and processes of the shared pool."""
        return frozenset(
            [each.worker for each in self.workers] + [each.node for each in self.pool_nodes]
        )
