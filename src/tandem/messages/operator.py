"""Messages between an operator's terminal and a gateway.

Every question has a number of the asker's own choice, which its answer repeats.
"""

from msgspec import Struct

from tandem.facts.bounds import Size
from tandem.messages.cluster import Audited, Drain
from tandem.messages.gateway import ClusterStatus


class AskStatus(Struct, frozen=True):
    """A request for the gateway's status. Answered by `StatusReported`."""

    question: int


class AskDrain(Struct, frozen=True):
    """See `DrainAsked`. Answered by `Done` when it is over."""

    question: int
    worker: str
    order: Drain


class AskUndrain(Struct, frozen=True):
    """See `UndrainAsked`. Answered by `Done`."""

    question: int
    worker: str


class AskAudit(Struct, frozen=True):
    """An audit of all workers. Answered by `AuditReported`."""

    question: int


class ReportStartFailed(Struct, frozen=True):
    """A worker that the planner wants (`PlanningStatus.starting`) could not be started, or is given
    up. Answered by `Done`."""

    question: int
    worker: str
    reason: str


class AskExplain(Struct, frozen=True):
    """What became of a request, by its id, or of all choices of an answer or a call. Answered by
    `Explained`."""

    question: int
    request_id: str


class AskConfigure(Struct, frozen=True):
    """Decide by another configuration from now on: that of this number, as its process is to read
    it (`config.processes.GatewayConfiguration`). With `check_only` nothing changes. Answered by
    `Done` once it is taken, or why it cannot be."""

    question: int
    number: Size
    configuration: bytes
    check_only: bool


class RequestEvent(Struct, frozen=True):
    """A decision about a request, so long after it arrived; `kind` is what decided."""

    after_ns: int
    kind: str
    text: str
    figures: tuple[tuple[str, float | str], ...] = ()


class RequestHistory(Struct, frozen=True):
    """One request as its gateway saw it, which came at `arrival_ns` of the gateway's clock. Other
    instants are nanoseconds since then, -1 for what has not happened; `ending` is empty while it
    runs."""

    request_id: str
    arrival_ns: int
    tenant: str
    service_class: str
    session: str
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int
    emitted_tokens: int
    ending: str
    reason: str
    first_token_ns: int
    last_token_ns: int
    end_ns: int
    events: tuple[RequestEvent, ...]


class StatusReported(Struct, frozen=True):
    """The gateway's view at one instant."""

    question: int
    status: ClusterStatus


class AuditReported(Struct, frozen=True):
    """Everybody's books; `problem` is the first broken law of the gateway's own, or empty."""

    question: int
    workers: tuple[Audited, ...]
    problem: str = ""


class Explained(Struct, frozen=True):
    """What this gateway knows of the request; nothing where it is too long ago, or another's."""

    question: int
    now_ns: int
    histories: tuple[RequestHistory, ...]


class Done(Struct, frozen=True):
    """What was asked for is done, or (`problem`) cannot be."""

    question: int
    problem: str = ""


Question = (
    AskStatus | AskDrain | AskUndrain | AskAudit | ReportStartFailed | AskExplain | AskConfigure
)
Answer = StatusReported | AuditReported | Done | Explained
# A message's place is its number on the wire: new ones come last.
OperatorMessage = (
    AskStatus
    | AskDrain
    | AskUndrain
    | AskAudit
    | StatusReported
    | AuditReported
    | Done
    | ReportStartFailed
    | AskExplain
    | Explained
    | AskConfigure
)
