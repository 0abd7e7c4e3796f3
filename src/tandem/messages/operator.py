"""Messages between an operator's terminal and a gateway.

Every question has a number of the asker's own choice, which its answer repeats.
"""

from dataclasses import dataclass

from tandem.facts.fleet import Role
from tandem.messages.cluster import Audited
from tandem.messages.gateway import ClusterStatus


@dataclass(frozen=True, slots=True)
class AskStatus:
    """A request for the gateway's status. Answered by `StatusReported`."""

    question: int


@dataclass(frozen=True, slots=True)
class AskDrain:
    """See `DrainAsked`. Answered by `Done` when it is over."""

    question: int
    worker: str
    then_role: Role | None = None
    leave: bool = False
    again: bool = False


@dataclass(frozen=True, slots=True)
class AskUndrain:
    """See `UndrainAsked`. Answered by `Done`."""

    question: int
    worker: str


@dataclass(frozen=True, slots=True)
class AskAudit:
    """An audit of all workers. Answered by `AuditReported`."""

    question: int


@dataclass(frozen=True, slots=True)
class ReportStartFailed:
    """A worker that the planner wants (`PlanningStatus.starting`) could not be started, or is given
    up. Answered by `Done`."""

    question: int
    worker: str
    reason: str


@dataclass(frozen=True, slots=True)
class StatusReported:
    """The gateway's view at one instant."""

    question: int
    status: ClusterStatus


@dataclass(frozen=True, slots=True)
class AuditReported:
    """Everybody's books; `problem` is the first broken law of the gateway's own, or empty."""

    question: int
    workers: tuple[Audited, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for is done, or (`problem`) cannot be."""

    question: int
    problem: str = ""


Question = AskStatus | AskDrain | AskUndrain | AskAudit | ReportStartFailed
Answer = StatusReported | AuditReported | Done
# A message's place is its number on the wire: new ones come last.
OperatorMessage = AskStatus | AskDrain | AskUndrain | AskAudit | Answer | ReportStartFailed
