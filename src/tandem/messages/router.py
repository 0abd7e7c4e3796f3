"""Events (past tense) and effects (imperative) of the router machine."""

from typing import Annotated

from msgspec import Meta, Struct, field

from tandem.facts.adapter import AdapterFigures
from tandem.facts.blocks import BlockChanges, BlockHash
from tandem.facts.bounds import Count, Nanoseconds
from tandem.facts.errors import Rejection
from tandem.facts.fleet import Role, Tier
from tandem.facts.rate_limits import CallSize
from tandem.facts.request import Request
from tandem.facts.slo import Slo
from tandem.facts.step_totals import DraftTotals, StepTotals
from tandem.messages.worker import (
    EmitTokens,
    FailRequest,
    ImportBlocks,
    KvComputed,
    WorkerEvent,
)


class FollowedPause(Struct, frozen=True, array_like=True):
    """The pause of a session after an answer: a tool runs for `announced_ns` (None: as long as is
    learnt). KV is kept for pauses of up to `longest_ns`."""

    longest_ns: Nanoseconds
    announced_ns: Nanoseconds | None = None


class RequestSubmitted(Struct, frozen=True):
    """A request of a client. `expected_output_tokens` is a prediction; the rest is tenant, QoS and
    SLO. What it leaves in slower tiers is pinned for `pin_ns` after its answer. With a `pause` its
    session's KV leaves the device while a tool runs, and is back before the next call. Its first
    token is due at `deadline_ns`, its last at `answer_due_ns`, if ever. `call` is that of which it
    is one of several requests, which come one after the other. It has been here since `arrived_ns`
    (None: it comes now), as where it waited for workers to come back."""

    request: Request
    expected_output_tokens: float
    tenant: str = ""
    service_class: str = ""
    session: str = ""
    slo: Slo = field(default_factory=Slo)
    deadline_ns: int | None = None
    pin_ns: int = 0
    call: CallSize | None = None
    answer_due_ns: int | None = None
    pause: FollowedPause | None = None
    arrived_ns: int | None = None


class RequestWithdrawn(Struct, frozen=True):
    """Nobody reads on: the client has cancelled this request, or is `satisfied` with what it has of
    the answer (as where a stop string was found), or the request was `rejected` by a full queue,
    perhaps before it was submitted: then its call (`call_id`) is known by its other requests."""

    request_id: str
    rejected: bool = False
    call_id: str = ""
    satisfied: bool = False


class WorkerJoined(Struct, frozen=True):
    """A worker is up, empty, and takes requests in this role."""

    worker: str
    role: Role


class WorkerLost(Struct, frozen=True):
    """A worker is gone, with all KV it had; its requests go on elsewhere. `died`: it was not to
    leave, so that one of them may be what it died of."""

    worker: str
    died: bool = True


class PoolNodeLost(Struct, frozen=True):
    """A process of the shared pool is gone, with what it held."""

    node: str


class WorkerDrained(Struct, frozen=True):
    """From now on the worker gets no new requests; what it has it finishes."""

    worker: str


class RoleTaken(Struct, frozen=True):
    """A drained worker is empty and takes requests again, in this role."""

    worker: str
    role: Role


class MigrationsRequested(Struct, frozen=True):
    """Decoding requests with about `tokens` tokens of KV should go on at `target`."""

    source: str
    target: str
    tokens: int


class LoadReported(Struct, frozen=True):
    """What a worker carries at one instant, sequences left out whose whole prompt comes from
    another worker: `running_sequences` decode and attend to `context_tokens` in all,
    `waiting_requests` do not run yet, `queued_prefill_tokens` are known prompt tokens that no step
    has computed and no import brings. Of the events that the router sent since the worker joined,
    the first `received_events` had been received by then; None: all. `steps` is what its steps took
    since its start, `drafts` what came of its drafts and `adapters` those that it has, now and
    then; empty or None: as reported before."""

    worker: str
    running_sequences: Count
    waiting_requests: Count
    queued_prefill_tokens: Count
    context_tokens: Count
    free_blocks: Count
    received_events: Count | None = None
    steps: tuple[StepTotals, ...] = ()
    drafts: DraftTotals | None = None
    adapters: AdapterFigures | None = None


class BlocksReported(Struct, frozen=True):
    """A tier of a worker began or ceased to hold blocks; for the tier REMOTE `worker` is a process
    of the shared pool, or empty."""

    worker: str
    tier: Tier
    changes: BlockChanges


class BlocksListed(Struct, frozen=True):
    """All blocks that a tier of a worker holds, true before its report `next_sequence_number`."""

    worker: str
    tier: Tier
    hashes: tuple[BlockHash, ...]
    next_sequence_number: Count


Repeats = Annotated[int, Meta(ge=1, le=1 << 20)]


class TokensReported(Struct, frozen=True):
    """A worker drew `repeats` tokens for each of these sequences; `emission` has the last."""

    worker: str
    emission: EmitTokens
    repeats: Repeats = 1


class KvReported(Struct, frozen=True):
    """A worker has KV that another will read."""

    worker: str
    computed: KvComputed


class ImportReported(Struct, frozen=True):
    """A worker has blocks ready to be filled."""

    worker: str
    wanted: ImportBlocks


class TransferEnded(Struct, frozen=True):
    """A transfer is over; when not `arrived` its content is lost but for its first `tokens`."""

    transfer_id: int
    arrived: bool
    tokens: int = 0


class RequestRefused(Struct, frozen=True):
    """A worker would not take the request: its queue is full, or the prompt does not fit, which no
    waiting helps (`retry_after_s` 0)."""

    worker: str
    request_id: str
    reason: str
    retry_after_s: float = 0.0


class RequestBroken(Struct, frozen=True):
    """A worker cannot go on with this request, and no other could; `reason` is for its client."""

    worker: str
    request_id: str
    reason: str


class RequestsLost(Struct, frozen=True):
    """A worker had to give these requests up, though it lives: they go on elsewhere."""

    worker: str
    request_ids: tuple[str, ...]


RouterEvent = (
    RequestSubmitted
    | RequestWithdrawn
    | WorkerJoined
    | WorkerLost
    | PoolNodeLost
    | WorkerDrained
    | RoleTaken
    | MigrationsRequested
    | LoadReported
    | BlocksReported
    | BlocksListed
    | TokensReported
    | KvReported
    | ImportReported
    | TransferEnded
    | RequestRefused
    | RequestBroken
    | RequestsLost
)


class SendEvent(Struct, frozen=True):
    """Give this event to the worker's machine."""

    worker: str
    event: WorkerEvent


class StartTransfer(Struct, frozen=True):
    """Copy the KV of tokens `first_token .. end_token` of a request to `target`: from the device of
    the worker `source`, or, when that is empty, from `tier` (the target's own host memory or disk,
    or the shared pool). Ends with `TransferEnded`."""

    transfer_id: int
    request_id: str
    source: str
    tier: Tier
    target: str
    first_token: int
    end_token: int


class CancelTransfer(Struct, frozen=True):
    """Have `target` stop this transfer; its end is not awaited."""

    transfer_id: int
    target: str


class Reject(Struct, frozen=True):
    """The request never ran and is refused; the client may retry after `retry_after_s` (0: no
    waiting helps, and the reason begins with the field at fault)."""

    request_id: str
    reason: str
    retry_after_s: float
    by: Rejection = Rejection.ADMISSION


class LeaveOut(Struct, frozen=True):
    """The request is not admitted, and its call goes on without it: other answers to the same
    prompt are given."""

    request_id: str
    reason: str


class CutOff(Struct, frozen=True):
    """The answer ends here, with what there is of it: no more time was given."""

    request_id: str


class AnnounceDegraded(Struct, frozen=True):
    """The request is admitted with something cut, as "max_tokens=256", which its client is told."""

    request_id: str
    degraded: str


class Explain(Struct, frozen=True):
    """One decision with what it was based on, for the records."""

    request_id: str
    kind: str
    text: str
    figures: tuple[tuple[str, float | str], ...] = ()


class AskForBlocks(Struct, frozen=True):
    """A report of this tier was missed: request a new `BlocksListed`."""

    worker: str
    tier: Tier


RouterEffect = (
    SendEvent
    | StartTransfer
    | CancelTransfer
    | Reject
    | LeaveOut
    | CutOff
    | AnnounceDegraded
    | FailRequest
    | Explain
    | AskForBlocks
)
