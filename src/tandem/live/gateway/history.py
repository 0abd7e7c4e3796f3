"""The request histories of a gateway, for `tandem explain`: what was decided about each request, on
which figures, and what came of it. Bounded by age and memory; no prompts, tokens or keys."""

import zlib
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec

from tandem.live.clock import NS_PER_S
from tandem.messages.operator import RequestEvent, RequestHistory
from tandem.messages.router import Explain, RequestSubmitted
from tandem.messages.worker import EmitTokens

KEPT_NS = 3600 * NS_PER_S
# Choices that one answer may have.
MOST_CHOICES = 128
# A request that is taken up again and again has its latest decisions.
MOST_EVENTS = 64
# Beside its packed history: ids and places in tables.
ENTRY_BYTES = 512

_DECODER = msgspec.msgpack.Decoder(RequestHistory)


@dataclass(slots=True)
class _Open:
    """A request that has not ended. Instants are -1 until they come."""

    submitted: RequestSubmitted
    arrival_ns: int
    first_token_ns: int = -1
    last_token_ns: int = -1
    emitted_tokens: int = 0
    cached_tokens: int = 0
    events: list[RequestEvent] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ended:
    """One that has ended: when, which call it was of, and its history, packed."""

    end_ns: int
    call_id: str
    packed: bytes

    @property
    def held_bytes(self) -> int:
        return ENTRY_BYTES + len(self.packed)


class RequestHistories:
    """Those of the last hour, as far as `memory_bytes` reach; 0: nothing is kept. An ended one is
    packed; the oldest go first."""

    def __init__(self, memory_bytes: int) -> None:
        self._memory_bytes = memory_bytes
        self._open: dict[str, _Open] = {}
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._bytes = 0
        # Of a request: the call that it is of. Of a call: the answer that it had last.
        self._call_of: dict[str, str] = {}
        self._answer_of: dict[str, str] = {}

    def request_called(self, request_id: str, call_id: str) -> None:
        """The request is of this call, before it is submitted. Whoever was refused knows no other
        id."""
        if self._memory_bytes and call_id:
            own_id = _own_id(request_id)
            self._call_of[own_id], self._answer_of[call_id] = call_id, _answer_id(own_id)

    def request_submitted(self, event: RequestSubmitted, now_ns: int) -> None:
        if self._memory_bytes:
            self._open[_own_id(event.request.request_id)] = _Open(event, now_ns)

    def explain(self, effect: Explain, now_ns: int) -> None:
        """A decision about a request."""
        if entry := self._open.get(_own_id(effect.request_id)):
            after_ns = now_ns - entry.arrival_ns
            entry.events.append(RequestEvent(after_ns, effect.kind, effect.text, effect.figures))
            del entry.events[:-MOST_EVENTS]

    def delivered(self, emission: EmitTokens, now_ns: int) -> None:
        """Tokens for clients."""
        for row, request_id in enumerate(emission.request_ids):
            entry = self._open.get(_own_id(request_id))
            if entry is None:
                continue
            if entry.first_token_ns < 0:
                entry.first_token_ns = now_ns
                entry.cached_tokens = emission.cached_tokens[row]
            entry.last_token_ns = now_ns
            entry.emitted_tokens += 1
            if (reason := emission.finish_reasons[row]) is not None:
                self.request_ended(request_id, "finished", str(reason), now_ns)

    def request_ended(self, request_id: str, ending: str, reason: str, now_ns: int) -> None:
        """It is finished, rejected, failed or withdrawn; unknown ids are ignored."""
        own_id = _own_id(request_id)
        call_id = self._call_of.pop(own_id, "")
        entry = self._open.pop(own_id, None)
        if entry is None:
            self._forget_call(call_id, own_id)
            return
        history = _history(entry, ending, reason, now_ns)
        packed = zlib.compress(msgspec.msgpack.encode(history), 1)
        if own_id in self._ended:
            self._bytes -= self._ended.pop(own_id).held_bytes
        ended = self._ended[own_id] = _Ended(now_ns, call_id, packed)
        self._bytes += ended.held_bytes
        while self._ended:
            oldest_id, oldest = next(iter(self._ended.items()))
            if self._bytes <= self._memory_bytes and oldest.end_ns >= now_ns - KEPT_NS:
                break
            del self._ended[oldest_id]
            self._bytes -= oldest.held_bytes
            self._forget_call(oldest.call_id, oldest_id)

    def find(self, name: str, now_ns: int) -> tuple[RequestHistory, ...]:
        """The request of this id, or all choices of the answer, or of the call, that has it."""
        name = _own_id(name)
        name = self._answer_of.get(name, name)
        names = [name, *(f"{name}-{choice}" for choice in range(MOST_CHOICES))]
        found = (self._history_of(each, now_ns) for each in names)
        return tuple(history for history in found if history is not None)

    def _history_of(self, own_id: str, now_ns: int) -> RequestHistory | None:
        if (entry := self._open.get(own_id)) is not None:
            return _history(entry, "", "", now_ns)
        ended = self._ended.get(own_id)
        if ended is None or ended.end_ns < now_ns - KEPT_NS:
            return None
        return _DECODER.decode(zlib.decompress(ended.packed))

    def _forget_call(self, call_id: str, own_id: str) -> None:
        """Unless it has got another answer since."""
        if self._answer_of.get(call_id) == _answer_id(own_id):
            del self._answer_of[call_id]


def _own_id(request_id: str) -> str:
    """As its client knows it, without the gateway that it came to."""
    return request_id.rpartition("/")[2]


def _answer_id(own_id: str) -> str:
    """Of which this request is a choice."""
    return own_id.rpartition("-")[0] or own_id


def _history(entry: _Open, ending: str, reason: str, now_ns: int) -> RequestHistory:
    def after(instant_ns: int) -> int:
        return -1 if instant_ns < 0 else instant_ns - entry.arrival_ns

    submitted, request = entry.submitted, entry.submitted.request
    return RequestHistory(
        request_id=request.request_id,
        arrival_ns=entry.arrival_ns,
        tenant=submitted.tenant,
        service_class=submitted.service_class,
        session=submitted.session,
        prompt_tokens=len(request.prompt_tokens),
        cached_tokens=entry.cached_tokens,
        max_tokens=request.sampling.max_tokens,
        emitted_tokens=entry.emitted_tokens,
        ending=ending,
        reason=reason,
        first_token_ns=after(entry.first_token_ns),
        last_token_ns=after(entry.last_token_ns),
        end_ns=after(now_ns) if ending else -1,
        events=tuple(entry.events),
    )
