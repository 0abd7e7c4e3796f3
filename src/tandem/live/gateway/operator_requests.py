"""Requests of operators in progress: which operator asked what, until it has its answer."""

from tandem.messages.cluster import Audited
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    ClusterStatus,
    DrainAsked,
    OperationEnded,
    UndrainAsked,
)
from tandem.messages.operator import (
    Answer,
    AskAudit,
    AskDrain,
    AskStatus,
    AskUndrain,
    AuditReported,
    Done,
    OperatorMessage,
    StatusReported,
)

Asked = DrainAsked | UndrainAsked | AuditAsked
# Nobody asks so many things at once; the oldest go without an answer then.
MOST_QUESTIONS = 1024


class OperatorRequests:
    """Turns questions into what a gateway machine is told, and its ends into answers."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[str, int]] = {}
        self._serial = 0

    def ask(self, peer: str, message: OperatorMessage) -> Asked | None:
        """What the machine is to be told; None for what is no operation."""
        match message:
            case AskDrain(question, worker, then_role, leave, again):
                return DrainAsked(self._number(peer, question), worker, then_role, leave, again)
            case AskUndrain(question, worker):
                return UndrainAsked(self._number(peer, question), worker)
            case AskAudit(question):
                return AuditAsked(self._number(peer, question))
        return None

    def status(self, message: AskStatus, status: ClusterStatus) -> Answer:
        return StatusReported(message.question, status)

    def ended(self, effect: OperationEnded | AuditEnded) -> tuple[str, Answer] | None:
        """Whom to answer, and what."""
        asker = self._asked.pop(effect.operation_id, None)
        if asker is None:
            return None
        peer, question = asker
        if isinstance(effect, OperationEnded):
            return peer, Done(question, effect.problem)
        workers: tuple[Audited, ...] = effect.workers
        return peer, AuditReported(question, workers, effect.problem)

    def _number(self, peer: str, question: int) -> int:
        self._serial += 1
        self._asked[self._serial] = (peer, question)
        if len(self._asked) > MOST_QUESTIONS:
            del self._asked[next(iter(self._asked))]
        return self._serial
