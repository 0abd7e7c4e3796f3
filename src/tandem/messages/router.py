"""Events (past tense) and effects (imperative) of the router machine."""

from dataclasses import dataclass, field

from msgspec import Struct

from tandem.facts.blocks import BlockChanges
from tandem.facts.fleet import Role, Tier
from tandem.facts.request import Request
from tandem.facts.slo import Slo
from tandem.messages.worker import (
    EmitTokens,
    FailRequest,
    ImportBlocks,
    KvComputed,
    WorkerEvent,
)


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A request of a client. `expected_output_tokens` is a prediction; the rest is tenant, QoS and
    SLO. What it leaves in slower tiers is pinned for `pin_ns` after its answer."""

    request: Request
    expected_output_tokens: float
    tenant: str = ""
    service_class: str = ""
    session: str = ""
    slo: Slo = field(default_factory=Slo)
    deadline_ns: int | None = None
    pin_ns: int = 0


@dataclass(frozen=True, slots=True)
class RequestWithdrawn:
    """A client has cancelled this request."""

    request_id: str


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is up, empty, and takes requests in this role."""

    worker: str
    role: Role


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker is gone, with all KV it had; its requests go on elsewhere. `died`: it was not to
    leave, so that one of them may be what it died of."""

    worker: str
    died: bool = True


@dataclass(frozen=True, slots=True)
class PoolNodeLost:
    """A process of the shared pool is gone, with what it held."""

    node: str


@dataclass(frozen=True, slots=True)
class WorkerDrained:
    """From now on the worker gets no new requests; what it has it finishes."""

    worker: str


@dataclass(frozen=True, slots=True)
class RoleTaken:
    """A drained worker is empty and takes requests again, in this role."""

    worker: str
    role: Role


@dataclass(frozen=True, slots=True)
class MigrationsRequested:
    """Decoding requests with about `tokens` tokens of KV should go on at `target`."""

    source: str
    target: str
    tokens: int


class LoadReported(Struct, frozen=True):
    """What a worker carries at one instant, sequences left out whose whole prompt comes from
    another worker: `running_sequences` decode and attend to `context_tokens` in all,
    `waiting_requests` do not run yet, `queued_prefill_tokens` are known prompt tokens that no step
    has computed and no import brings. Of the events that the router sent since the worker joined,
    the first `received_events` had been received by then; None: all."""

    worker: str
    running_sequences: int
    waiting_requests: int
    queued_prefill_tokens: int
    context_tokens: int
    free_blocks: int
    received_events: int | None = None


class BlocksReported(Struct, frozen=True):
    """A tier of a worker began or ceased to hold blocks; for the tier REMOTE `worker` is a process
    of the shared pool, or empty."""

    worker: str
    tier: Tier
    changes: BlockChanges


@dataclass(frozen=True, slots=True)
class BlocksListed:
    """All blocks that a tier of a worker holds, true before its report `next_sequence_number`."""

    worker: str
    tier: Tier
    hashes: tuple[bytes, ...]
    next_sequence_number: int


class TokensReported(Struct, frozen=True):
    """A worker drew `repeats` tokens for each of these sequences; `emission` has the last."""

    worker: str
    emission: EmitTokens
    repeats: int = 1


@dataclass(frozen=True, slots=True)
class KvReported:
    """A worker has KV that another will read."""

    worker: str
    computed: KvComputed


@dataclass(frozen=True, slots=True)
class ImportReported:
    """A worker has blocks ready to be filled."""

    worker: str
    wanted: ImportBlocks


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """A transfer is over; when not `arrived` its content is lost but for its first `tokens`."""

    transfer_id: int
    arrived: bool
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A worker would not take the request: its queue is full, or the prompt does not fit, which no
    waiting helps (`retry_after_s` 0)."""

    worker: str
    request_id: str
    reason: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RequestBroken:
    """A worker cannot go on with this request, and no other could; `reason` is for its client."""

    worker: str
    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RequestsLost:
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


@dataclass(frozen=True, slots=True)
class StartTransfer:
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


@dataclass(frozen=True, slots=True)
class CancelTransfer:
    """Stop this transfer; its end is not awaited."""

    transfer_id: int


@dataclass(frozen=True, slots=True)
class Reject:
    """The request never ran and is refused; the client may retry after `retry_after_s`."""

    request_id: str
    reason: str
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Explain:
    """One decision with what it was based on, for the records."""

    request_id: str
    kind: str
    text: str
    figures: tuple[tuple[str, float | str], ...] = ()


@dataclass(frozen=True, slots=True)
class AskForBlocks:
    """A report of this tier was missed: request a new `BlocksListed`."""

    worker: str
    tier: Tier


RouterEffect = (
    SendEvent | StartTransfer | CancelTransfer | Reject | FailRequest | Explain | AskForBlocks
)
