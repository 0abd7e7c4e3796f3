"""Rate limits at a gateway: which calls of an account come in, and what their answers use up.

Stands before the router: what it rejects the router never sees. A call with several answers comes
in as a whole or not at all. What is rejected later, by admission or a full queue, gets back what it
was charged; what is cancelled does not, for its prompt was, or is about to be, computed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tandem.cluster.audit import invariant
from tandem.cluster.router.use_totals import UseTotals
from tandem.facts.rate_limits import LimitTerms
from tandem.messages.gateway import Deliver, GatewayEffect
from tandem.messages.router import (
    CutOff,
    Explain,
    LeaveOut,
    Reject,
    RequestSubmitted,
    RequestWithdrawn,
)
from tandem.messages.worker import FailRequest
from tandem.policy.qos.rate_limits import LimitReached, RateLimiter

# Calls whose other requests are still to come; they do so within moments, unless their client has
# left.
MOST_CALLS = 1024


@dataclass(slots=True)
class LimitedCall:
    """A call of an account with limits: what it was charged, until that is given back, or why it
    did not come in. So many of its requests are `to_come`."""

    account: str
    requests: int
    tokens: int
    to_come: int
    reached: LimitReached | None = None


@dataclass(frozen=True, slots=True)
class LimitedRequest:
    """A request under way, of an account with limits."""

    call: LimitedCall
    arrival_ns: int


class CallLimits:
    """One for a gateway. Nothing is remembered of accounts without limits. Limits are divided by
    the gateways of `terms` that are silent: what the others let through is counted here. `use`
    counts what is charged, for them."""

    def __init__(self, terms: LimitTerms, use: UseTotals, *, explains: bool = False) -> None:
        self.limiter = RateLimiter(terms)
        self._gateways, self._connected = terms.gateways, 0
        self._use = use
        self._limits = not terms.empty
        self._explains = explains
        self._open: dict[str, LimitedRequest] = {}
        self._calls: dict[str, LimitedCall] = {}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to limit, nor to count to the end."""
        return not (self._limits or self._open)

    def rejections(self, event: RequestSubmitted, now_ns: int) -> list[GatewayEffect]:
        """What keeps this request out; nothing: it comes in, and is charged."""
        if self.limiter.terms.of(event.tenant).empty:
            return []
        call, is_first = self._call_of(event, now_ns)
        request_id = event.request.request_id
        if call.reached is None:
            if self.limiter.started(call.account, now_ns):
                self._use.runs(call.account, 1)
                self._open[request_id] = LimitedRequest(call, now_ns)
            return []
        by, reason, wait_s = call.reached.by, call.reached.reason, call.reached.wait_ns / 1e9
        effects: list[GatewayEffect] = []
        if self._explains and is_first:
            figures = (("retry_after_s", wait_s), ("limit", str(by)))
            effects.append(Explain(request_id, "limits", reason, figures))
        return [*effects, Reject(request_id, reason, wait_s, by)]

    def withdrawn(self, event: RequestWithdrawn, now_ns: int) -> None:
        """A client has left, or had to give way."""
        if event.rejected:
            request = self._open.get(event.request_id)
            call = self._calls.get(event.call_id) if request is None else request.call
            if call is not None and call.reached is None:
                self._give_back(call, now_ns)
        self._ended(event.request_id, now_ns)

    def reconfigure(self, terms: LimitTerms, now_ns: int, *, explains: bool) -> None:
        """Other limits from now on. What was used stays used; requests of accounts that had none
        before are not counted."""
        self._limits, self._gateways = not terms.empty, terms.gateways
        self._explains = explains
        self._divide(terms, now_ns)

    def others_connected(self, gateways: int, now_ns: int) -> None:
        """What so many other gateways let through is known from now on."""
        self._connected = gateways
        self._divide(self.limiter.terms, now_ns)

    def used_elsewhere(self, account: str, requests: int, tokens: int, now_ns: int) -> None:
        """Another gateway has let so much more of the account through; less than 0: it has given
        back."""
        if requests > 0 or tokens > 0:
            self.limiter.charge(account, max(0, requests), max(0, tokens), now_ns)
        if requests < 0 or tokens < 0:
            self.limiter.give_back(account, max(0, -requests), max(0, -tokens), now_ns)

    def run_elsewhere(self, account: str, requests: int, now_ns: int) -> None:
        """So many requests of the account wait or run at other gateways."""
        self.limiter.set_running_elsewhere(account, requests, now_ns)

    def follow(self, effects: Iterable[GatewayEffect], now_ns: int) -> None:
        """What a turn of the gateway gave its clients."""
        for effect in effects if self._open else ():
            match effect:
                case Deliver():
                    self._delivered(effect, now_ns)
                case Reject(request_id):
                    if request := self._open.get(request_id):
                        self._give_back(request.call, now_ns)
                    self._ended(request_id, now_ns)
                case LeaveOut(request_id):
                    if request := self._open.get(request_id):
                        self.limiter.give_back(request.call.account, 1, 0, now_ns)
                        self._use.charged(request.call.account, -1, 0)
                        request.call.requests = max(0, request.call.requests - 1)
                    self._ended(request_id, now_ns)
                case CutOff(request_id) | FailRequest(request_id):
                    self._ended(request_id, now_ns)

    def audit(self, requests: Mapping[str, object]) -> None:
        """Assert that what is counted as under way is so, of these `requests` of the router."""
        invariant(self._open.keys() <= requests.keys(), "limited requests are under way")
        running: dict[str, int] = {}
        for request in self._open.values():
            running[request.call.account] = running.get(request.call.account, 0) + 1
        invariant(running == self.limiter.running(), "accounts run as many as are under way")

    def _call_of(self, event: RequestSubmitted, now_ns: int) -> tuple[LimitedCall, bool]:
        """The call that the request belongs to, with what was decided about that; and whether the
        request is its first one."""
        size = event.call
        known = None if size is None else self._calls.get(size.call_id)
        if size is not None and known is not None:
            known.to_come -= 1
            if not known.to_come:
                del self._calls[size.call_id]
            return known, False
        request, account = event.request, event.tenant
        requests, tokens = 1, len(request.prompt_tokens) + len(request.output_tokens)
        if size is not None:
            requests, tokens = size.requests, size.prompt_tokens
        reached = self.limiter.judge(account, requests, tokens, now_ns)
        call = LimitedCall(account, requests, tokens, requests - 1, reached)
        if reached is None:
            self.limiter.charge(account, requests, tokens, now_ns)
            self._use.charged(account, requests, tokens)
        if size is not None and call.to_come:
            self._calls[size.call_id] = call
            if len(self._calls) > MOST_CALLS:
                del self._calls[next(iter(self._calls))]
        return call, True

    def _delivered(self, effect: Deliver, now_ns: int) -> None:
        emission, under_way = effect.emission, self._open
        rows: dict[str, int] = {}
        for request_id, reason in zip(emission.request_ids, emission.finish_reasons, strict=True):
            request = under_way.get(request_id)
            if request is None:
                continue
            account = request.call.account
            rows[account] = rows.get(account, 0) + 1
            if reason is not None:
                self._ended(request_id, now_ns)
        for account, count in rows.items():
            self.limiter.charge_tokens(account, count * effect.repeats, now_ns)
            self._use.charged(account, 0, count * effect.repeats)

    def _give_back(self, call: LimitedCall, now_ns: int) -> None:
        """Once, however many of its requests are rejected."""
        self.limiter.give_back(call.account, call.requests, call.tokens, now_ns)
        self._use.charged(call.account, -call.requests, -call.tokens)
        call.requests = call.tokens = 0

    def _ended(self, request_id: str, now_ns: int) -> None:
        request = self._open.pop(request_id, None)
        if request is not None:
            self.limiter.ended(request.call.account, now_ns - request.arrival_ns)
            self._use.runs(request.call.account, -1)

    def _divide(self, terms: LimitTerms, now_ns: int) -> None:
        unheard = max(1, self._gateways - self._connected)
        if (terms, unheard) != (self.limiter.terms, self.limiter.terms.gateways):
            self.limiter.limits_changed(replace(terms, gateways=unheard), now_ns)
