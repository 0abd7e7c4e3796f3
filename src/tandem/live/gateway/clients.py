"""The open requests of a gateway: mailboxes, waiting places, and what is counted of them."""

from collections.abc import Sequence

from tandem.cluster.gateway.demand import Demand, WaitingPlaces
from tandem.facts.errors import (
    InvalidRequest,
    LeftOut,
    Overloaded,
    Rejection,
    RequestFailed,
    TandemError,
)
from tandem.facts.request import FinishReason, Request
from tandem.facts.serving import ANYBODY, Caller, ServedBy
from tandem.facts.slo import Slo
from tandem.live.clock import now_ns
from tandem.live.mailbox import Mailbox, Mailboxes
from tandem.messages.router import AnnounceDegraded, CutOff, LeaveOut, Reject
from tandem.messages.worker import EmitTokens, FailRequest
from tandem.observe.cluster_metrics import GatewayMetrics


class Clients:
    """The clients of one gateway. `max_waiting` of them may wait for their first token, of each
    account its share."""

    def __init__(self, metrics: GatewayMetrics, max_waiting: int) -> None:
        self.metrics = metrics
        self.demand = Demand()
        self._mailboxes = Mailboxes()
        self._places = WaitingPlaces(max_waiting)
        self._served_by: dict[str, ServedBy] = {}
        # Of the open ones, those whose readers have all they want.
        self._satisfied: set[str] = set()

    def arrived(
        self,
        request: Request,
        service_class: str,
        slo: Slo,
        caller: Caller = ANYBODY,
    ) -> tuple[Mailbox, str | None]:
        """One more, and the id of another one that gave way to it: that one was refused, and nobody
        need work for it any more. Which workers get it is added to the `served_by` of its caller.
        Raises
        `InvalidRequest` for an id that is taken, `Overloaded` when too many wait."""
        request_id, demand = request.request_id, self.demand
        if request_id in self._mailboxes:
            own_id = request_id.rpartition("/")[2]
            raise InvalidRequest("request_id", f"{own_id!r} is already running")
        waiting, retry_s, instant_ns = len(self._places), demand.retry_after_s(), now_ns()
        entry = self._places.enter(request_id, request.account)
        if not entry.admitted:
            self.metrics.requests.rejected_at_once(request.tenant, Rejection.QUEUE, instant_ns)
            raise Overloaded(f"{waiting} requests wait already", retry_s)
        if entry.gives_way is not None:
            self.metrics.requests.rejected(entry.gives_way, Rejection.QUEUE, instant_ns)
            error = Overloaded(f"{waiting + 1} requests wait, most of them yours", retry_s)
            self._mailboxes.fail(entry.gives_way, error)
        demand.arrived(request_id)
        self.metrics.requests.arrived(request, instant_ns, service_class, slo)
        if caller.served_by is not None:
            self._served_by[request_id] = caller.served_by
        mailbox = self._mailboxes.open(request_id, wants_sources=caller.wants_sources)
        return mailbox, entry.gives_way

    def satisfied(self, request_id: str, instant_ns: int) -> bool:
        """The reader has all it wants, and will read no more. Gives whether the workers should drop
        the request now: one that has not begun may not have been submitted yet, and is dropped when
        its reader has left."""
        self.metrics.requests.ended(request_id, FinishReason.STOP, instant_ns)
        if request_id in self._satisfied or not self._mailboxes.has_begun(request_id):
            return False
        self._satisfied.add(request_id)
        return True

    def left(self, request_id: str, *, finished: bool) -> bool:
        """The reader reads no more, having got all of its answer or not. Gives whether the workers
        should drop it."""
        # Whoever left before taking the last word was served all the same.
        served = self._mailboxes.close(request_id) or request_id in self._satisfied
        cut_short = not served
        finished = finished or request_id in self._satisfied
        self._satisfied.discard(request_id)
        self._served_by.pop(request_id, None)
        self._places.leave(request_id)
        self.demand.left(request_id, finished=finished)
        if cut_short:
            self.metrics.requests.ended(request_id, FinishReason.ABORT, now_ns())
        return cut_short

    def sent(self, requests: Sequence[Request], worker: str, instant_ns: int) -> None:
        """A worker got these."""
        self.metrics.sent(requests, instant_ns)
        for request in requests if self._served_by else ():
            # A later attempt goes by another name.
            request_id = request.request_id.partition("~")[0]
            if served_by := self._served_by.get(request_id):
                served_by.workers[worker] = None

    def deliver(self, emission: EmitTokens, worker: str, instant_ns: int) -> None:
        """Tokens that this worker drew."""
        self._mailboxes.deliver(emission, worker)
        for request_id in emission.request_ids:
            if self.demand.got_token(request_id, instant_ns):
                self._places.leave(request_id)
        self.metrics.requests.emitted(emission, instant_ns)

    def reject(self, effect: Reject, instant_ns: int) -> None:
        """Refused for now, or, when no waiting helps, for what the request is."""
        self.metrics.requests.rejected(effect.request_id, effect.by, instant_ns)
        self._places.leave(effect.request_id)
        error: TandemError
        if effect.retry_after_s:
            error = Overloaded(effect.reason, effect.retry_after_s, effect.by)
        else:
            # A worker has refused it, as an `InvalidRequest` whose text begins with the field.
            field, _, problem = effect.reason.partition(" ")
            error = InvalidRequest(field, problem)
        self._mailboxes.fail(effect.request_id, error)

    def leave_out(self, effect: LeaveOut, instant_ns: int) -> None:
        """Its call goes on without it."""
        self.metrics.requests.rejected(effect.request_id, Rejection.ADMISSION, instant_ns)
        self.metrics.degraded("n")
        self._places.leave(effect.request_id)
        self._mailboxes.fail(effect.request_id, LeftOut(effect.reason, 0.0))

    def cut_off(self, effect: CutOff, instant_ns: int) -> None:
        """Its answer ends with what there is."""
        reason = FinishReason.DEADLINE
        self.metrics.requests.ended(effect.request_id, reason, instant_ns)
        self._mailboxes.end(effect.request_id, reason)

    def announce_degraded(self, effect: AnnounceDegraded) -> None:
        self.metrics.degraded(effect.degraded.partition("=")[0])
        self._mailboxes.announce_degraded(effect.request_id, effect.degraded)

    def fail(self, effect: FailRequest, instant_ns: int) -> None:
        """It ends without its answer."""
        self.metrics.requests.failed(effect.request_id, instant_ns)
        self._mailboxes.fail(effect.request_id, RequestFailed(effect.reason))

    def fail_all(self, error: TandemError) -> None:
        self._mailboxes.fail_all(error)
