"""Events and effects of the gateway machine. Events with a tag stand in a journal as they are."""

from msgspec import Struct, field

from tandem.facts.adapter import AdapterFigures
from tandem.facts.calibration import Calibration
from tandem.facts.correction import UNCORRECTED, Correction
from tandem.facts.fleet import Role
from tandem.facts.kv import KvExport, TierFigures
from tandem.facts.shapes import FleetShape, RecordedRequest, ShapeFigures
from tandem.facts.step_totals import DraftTotals, StepTotals
from tandem.messages.cluster import Audited, Drain, ToGateway, ToWorker
from tandem.messages.planning import PlanDecision, PlanningStatus
from tandem.messages.router import (
    AnnounceDegraded,
    CutOff,
    Explain,
    LeaveOut,
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


class PeerGone(Struct, frozen=True, array_like=True, tag="g"):
    """That process has ended, or its queue is full because it does not read; or, where it has not
    `died`, it is well but may not stay."""

    peer: str
    reason: str
    died: bool = True


class DrainAsked(Struct, frozen=True, array_like=True, tag="d"):
    """An operator wants a worker drained. Ends with one `OperationEnded`: at once when it cannot
    be, else when the worker has done as the `order` has it (to stay: when it is empty)."""

    operation_id: int
    worker: str
    order: Drain = Drain()


class UndrainAsked(Struct, frozen=True, array_like=True, tag="u"):
    """An operator wants a drained worker to take requests again."""

    operation_id: int
    worker: str


class AuditAsked(Struct, frozen=True, array_like=True, tag="a"):
    """An operator wants every worker's `Audited`; ends with one `AuditEnded`."""

    operation_id: int


class PrefixCacheResetAsked(Struct, frozen=True, array_like=True, tag="x"):
    """An operator wants all processes to forget what they have cached, with `external` in slower
    tiers and the shared pool as well. Ends with one `OperationEnded` when all have."""

    operation_id: int
    external: bool = False


class StartFailed(Struct, frozen=True, array_like=True, tag="f"):
    """Whoever launches processes could not start this worker, or has given it up."""

    worker: str
    reason: str


class ShapesSimulated(Struct, frozen=True, array_like=True, tag="z"):
    """The answer to `SimulateShapes` of this id: the `figures` of as many of its shapes, in their
    order, as could be had, or the `problem`. It took `cpu_s` seconds of a processor (0: nobody
    counts them)."""

    question_id: int
    figures: tuple[ShapeFigures, ...] = ()
    problem: str = ""
    cpu_s: float = 0.0


class ToolsCalled(Struct, frozen=True, array_like=True, tag="p"):
    """The answer that a session got last ended in calls of these tools: its next call comes when
    they are done."""

    account: str
    session: str
    tools: tuple[str, ...]


class TimePassed(Struct, frozen=True, array_like=True, tag="n"):
    """The instant that `next_wakeup` gave is here."""


GatewayEvent = (
    MessageFromWorker
    | PeerGone
    | RequestSubmitted
    | RequestWithdrawn
    | DrainAsked
    | UndrainAsked
    | AuditAsked
    | PrefixCacheResetAsked
    | StartFailed
    | ShapesSimulated
    | ToolsCalled
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


class Fence(Struct, frozen=True):
    """The process `peer` counts as dead: close its channel, and end it where possible."""

    peer: str
    reason: str


class OperationEnded(Struct, frozen=True):
    """What an operator asked for is done, or (`problem`) cannot be."""

    operation_id: int
    problem: str = ""


class AuditEnded(Struct, frozen=True):
    """The reports of all processes, and the first broken law of the gateway itself, if any."""

    operation_id: int
    workers: tuple[Audited, ...]
    problem: str = ""


class StartWorker(Struct, frozen=True):
    """Start the process of this worker with this role, unless it runs or is being started: a name
    is never started twice. It appears by its `Register`; where it cannot start, `StartFailed`."""

    worker: str
    role: Role


class SimulateShapes(Struct, frozen=True):
    """Simulate how each of the `shapes` of the fleet would have served this `demand`, oldest
    request first, arriving `speed` times as fast. Ends with one `ShapesSimulated`: by `limit_s`,
    and after `cpu_s` of computing with what there is. One is asked for at a time. Digests in the
    demand are of blocks of `block_size` tokens."""

    question_id: int
    shapes: tuple[FleetShape, ...]
    demand: tuple[RecordedRequest, ...]
    block_size: int
    speed: float
    cpu_s: float
    limit_s: float


class PlanDecided(Struct, frozen=True):
    """What the planner decided at this tick, for the records. Its actions are effects of their
    own."""

    decision: PlanDecision


class ConfigurationTaken(Struct, frozen=True):
    """From this instant on the gateway decides by the configuration of this number."""

    number: int


GatewayEffect = (
    SendToWorker
    | Deliver
    | Reject
    | LeaveOut
    | CutOff
    | AnnounceDegraded
    | FailRequest
    | Explain
    | Fence
    | OperationEnded
    | AuditEnded
    | StartWorker
    | SimulateShapes
    | PlanDecided
    | ConfigurationTaken
)


class WorkerCounters(Struct):
    """What a worker has done since it joined. `seconds` are those spent reading KV from others,
    `moved_bytes` what it read, `sent_bytes` what others read from it. `fetches` from slower tiers
    brought `fetched_tokens`."""

    prompts: int = 0
    output_tokens: int = 0
    transfers: int = 0
    failed_transfers: int = 0
    moved_bytes: int = 0
    sent_bytes: int = 0
    spans: int = 0
    seconds: float = 0.0
    connectors: tuple[str, ...] = ()
    fetches: int = 0
    failed_fetches: int = 0
    fetched_tokens: int = 0
    fetched_bytes: int = 0
    fetch_seconds: float = 0.0


# A snapshot of the counters; msgspec, unlike dataclasses, may freeze it.
class WorkerStatus(WorkerCounters, frozen=True, kw_only=True):  # type: ignore[misc]
    """One worker as a gateway sees it, with what it did. The worker reports the figures of its
    `tiers`, `steps`, `drafts` and `adapters` itself, for all gateways together; `correction` is
    what this gateway has learnt. So many of its `moved_bytes` were `read_from` each worker."""

    worker: str
    pool: str
    incarnation: str
    role: Role
    accepting: bool
    spare: bool = False
    last_seen_s: float
    load: LoadReported
    total_blocks: int
    export: KvExport
    tiers: tuple[TierFigures, ...] = ()
    steps: tuple[StepTotals, ...] = ()
    drafts: DraftTotals | None = None
    adapters: AdapterFigures | None = None
    correction: Correction = UNCORRECTED
    read_from: tuple[tuple[str, int], ...] = ()


class PoolNodeStatus(Struct, frozen=True):
    """One process of the shared pool, as last reported."""

    node: str
    incarnation: str
    address: str
    last_seen_s: float
    capacity_blocks: int
    block_bytes: int
    tiers: tuple[TierFigures, ...]


class BreakerStatus(Struct, frozen=True):
    """The circuit breaker of a service class: its stage, the share of the SLO that is given out,
    how often it was opened, and why last."""

    service_class: str
    stage: str
    share: float
    opened: int
    cause: str


class PauseStatus(Struct, frozen=True):
    """What a gateway remembers of `sessions` between calls, so many of them `paused` with an
    expected end, and what came of that since its start. Of `followed` pauses so many were
    `announced` by clients; `prefetches` were ordered. Sessions came back `before` a prefetch, or
    `after`, by `error_s` earlier or later than expected in the mean."""

    sessions: int
    paused: int
    followed: int
    announced: int
    prefetches: int
    before: int
    after: int
    error_s: float


class ClusterStatus(Struct, frozen=True):
    """All that one gateway knows. `lost` are processes that died, latest last, with why.
    `recomputed_tokens` is what takeovers cost: tokens that had to be computed once more. `planning`
    is the planner's, if this gateway has it; `breakers` are those of admission, and `pauses` are
    there where pauses are followed. `configuration` is the number of the configuration by which it
    decides, 0 for the one that the cluster started with. `calibration` is of the requests that
    ended in the last ten minutes, `calibration_total` of all."""

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
    configuration: int = 0
    calibration: Calibration = field(default_factory=Calibration)
    calibration_total: Calibration = field(default_factory=Calibration)
    breakers: tuple[BreakerStatus, ...] = ()
    pauses: PauseStatus | None = None

    @property
    def members(self) -> frozenset[str]:
        """Names of all workers and processes of the shared pool."""
        return frozenset(
            [each.worker for each in self.workers] + [each.node for each in self.pool_nodes]
        )
