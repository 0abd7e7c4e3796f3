"""Messages between an operator's terminal and a gateway.

Every question has a number of the asker's own choice, which its answer repeats.
"""

from msgspec import Struct

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


class StatusReported(Struct, frozen=True):
    """The gateway's view at one instant."""

    question: int
    status: ClusterStatus


class AuditReported(Struct, frozen=True):
    """Everybody's books; `problem` is the first broken law of the gateway's own, or empty."""

    question: int
    workers: tuple[Audited, ...]
    problem: str = ""


class Done(Struct, frozen=True):
    """What was asked for is done, or (`problem`) cannot be."""

    question: int
    problem: str = ""


Question = AskStatus | AskDrain | AskUndrain | AskAudit | ReportStartFailed
Answer = StatusReported | AuditReported | Done
# A message's place is its number on the wire: new ones come last.
OperatorMessage = AskStatus | AskDrain | AskUndrain | AskAudit | Answer | ReportStartFailed
