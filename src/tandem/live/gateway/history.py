"""The request histories of a gateway, for `tandem explain`: what was decided about each request, on
which figures, and what came of it. Bounded by age and memory; no prompts, tokens or keys."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from tandem.facts.request import Request
from tandem.facts.tracing import TraceContext
from tandem.live.clock import NS_PER_S
from tandem.messages.operator import RequestEvent, RequestHistory
from tandem.messages.router import Explain
from tandem.messages.worker import EmitTokens
from tandem.report.record import Ending

KEPT_NS = 3600 * NS_PER_S
# Candidates of each phase whose figures are kept.
MOST_EXPLAINED = 16
# Of a request that is taken up again and again, the latest.
MOST_EVENTS = 64
# Of what has one name: a client may give all of its calls the same.
MOST_FOUND = 128
# Beside its packed history: ids and places in tables.
ENTRY_BYTES = 1024

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Asker:
    """Who sent a request, and by which call (its `X-Request-Id`), which has a span where that is
    traced."""

    tenant: str = ""
    service_class: str = ""
    session: str = ""
    call_id: str = ""
    trace: TraceContext | None = None


@dataclass(slots=True)
class _Open:
    """A request that has not ended, with its packed events. Instants are -1 until they come."""

    asker: Asker
    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    first_token_ns: int = -1
    last_token_ns: int = -1
    emitted_tokens: int = 0
    cached_tokens: int = 0
    events: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Ended:
    """When it ended, by which call it came, and its packed history."""

    end_ns: int
    call_id: str
    packed: bytes

    @property
    def held_bytes(self) -> int:
        return ENTRY_BYTES + len(self.packed)


class _Kept(msgspec.Struct, frozen=True):
    """As it is packed: the history without its events, and these."""

    history: RequestHistory
    events: list[msgspec.Raw]


Traced = Callable[[bytes, TraceContext], None]
"""Gets the packed history of a request of a traced call once it has ended."""
_decode_event = msgspec.msgpack.Decoder(RequestEvent).decode
_decode_kept = msgspec.msgpack.Decoder(_Kept).decode


class RequestHistories:
    """Those of the last hour, as far as `memory_bytes` reach; 0: nothing is kept. Where there is no
    room the oldest that have ended go, then the oldest decisions of those that have not.

    Ids of the gateway's requests begin with `prefix`, which their clients do not know."""

    def __init__(self, prefix: str, memory_bytes: int, traced: Traced | None = None) -> None:
        self._prefix = prefix
        self._traced = traced
        self._memory_bytes = memory_bytes
        self._open: dict[str, _Open] = {}
        self._ended: OrderedDict[str, _Ended] = OrderedDict()
        self._bytes = 0
        # The requests of an answer, and of a call, by its id.
        self._named: dict[str, dict[str, None]] = {}

    def resize(self, memory_bytes: int, now_ns: int) -> None:
        """Have so much memory from now on."""
        self._memory_bytes = memory_bytes
        self._make_room(now_ns)

    def request_arrived(self, request: Request, asker: Asker, now_ns: int) -> bool:
        """A client asks, whether or not it is let in. An id may come again once it has ended.
        Whether this one is remembered."""
        request_id = request.request_id
        if not self._memory_bytes or request_id in self._open:
            return False
        if request_id in self._ended:
            self._forget(request_id)
        prompt_tokens, max_tokens = len(request.prompt_tokens), request.sampling.max_tokens
        self._open[request_id] = _Open(asker, now_ns, prompt_tokens, max_tokens)
        self._bytes += ENTRY_BYTES
        for name in self._names_of(request_id, asker.call_id):
            self._named.setdefault(name, {})[request_id] = None
        self._make_room(now_ns)
        return True

    def explain(self, effect: Explain, now_ns: int) -> None:
        """A decision about a request."""
        entry = self._open.get(effect.request_id)
        if entry is None:
            return
        after_ns = now_ns - entry.arrival_ns
        event = _encode(RequestEvent(after_ns, effect.kind, effect.text, effect.figures))
        entry.events.append(event)
        self._bytes += len(event)
        self._make_room(now_ns)
        while entry.events and (
            self._bytes > self._memory_bytes or len(entry.events) > MOST_EVENTS
        ):
            self._bytes -= len(entry.events.pop(0))

    def delivered(self, emission: EmitTokens, now_ns: int) -> None:
        """Tokens for clients."""
        if not self._open:
            return
        for row, request_id in enumerate(emission.request_ids):
            entry = self._open.get(request_id)
            if entry is None:
                continue
            if entry.first_token_ns < 0:
                entry.first_token_ns = now_ns
                entry.cached_tokens = emission.cached_tokens[row]
            entry.last_token_ns = now_ns
            entry.emitted_tokens += 1
            if (reason := emission.finish_reasons[row]) is not None:
                self.request_ended(request_id, Ending.FINISHED, str(reason), now_ns)

    def request_ended(self, request_id: str, ending: Ending, reason: str, now_ns: int) -> None:
        """The first ending counts; later ones, and unknown ids, are ignored."""
        entry = self._open.pop(request_id, None)
        if entry is None:
            return
        history = _history(request_id, entry, str(ending), reason, now_ns)
        packed = _encode(_Kept(history, [msgspec.Raw(event) for event in entry.events]))
        if self._traced is not None and entry.asker.trace is not None:
            self._traced(packed, entry.asker.trace)
        self._bytes -= ENTRY_BYTES + sum(map(len, entry.events))
        ended = _Ended(now_ns, entry.asker.call_id, zlib.compress(packed, 1))
        self._ended[request_id] = ended
        self._bytes += ended.held_bytes
        self._make_room(now_ns)

    def find(self, name: str, now_ns: int) -> tuple[RequestHistory, ...]:
        """The request of this id, with or without the gateway in front; or all of the answer, or of
        the calls, that have it."""
        own_id = name.removeprefix(self._prefix)
        exact = self._prefix + own_id
        known = exact in self._open or exact in self._ended
        request_ids: Sequence[str] = [exact] if known else list(self._named.get(own_id, ()))
        found = (self._history_of(each, now_ns) for each in request_ids[-MOST_FOUND:])
        return tuple(history for history in found if history is not None)

    def latest(self, account: str | None, most: int, now_ns: int) -> list[RequestHistory]:
        """The latest of this account (None: of everybody) without their events: those that run,
        and then those that have ended last."""
        found: list[RequestHistory] = []
        for request_id in (*reversed(self._open), *reversed(self._ended)):
            if len(found) == most:
                break
            history = self._history_of(request_id, now_ns, events=False)
            if history is not None and account in (None, history.tenant):
                found.append(history)
        return found

    def _history_of(
        self, request_id: str, now_ns: int, *, events: bool = True
    ) -> RequestHistory | None:
        if (entry := self._open.get(request_id)) is not None:
            history = _history(request_id, entry, "", "", now_ns)
            happened = tuple(map(_decode_event, entry.events)) if events else ()
            return msgspec.structs.replace(history, events=happened)
        ended = self._ended[request_id]
        if ended.end_ns < now_ns - KEPT_NS:
            return None
        return unpacked(zlib.decompress(ended.packed), events=events)

    def _make_room(self, now_ns: int) -> None:
        while self._ended:
            request_id, oldest = next(iter(self._ended.items()))
            if self._bytes <= self._memory_bytes and oldest.end_ns >= now_ns - KEPT_NS:
                return
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        ended = self._ended.pop(request_id)
        self._bytes -= ended.held_bytes
        for name in self._names_of(request_id, ended.call_id):
            requests = self._named[name]
            del requests[request_id]
            if not requests:
                del self._named[name]

    def _names_of(self, request_id: str, call_id: str) -> set[str]:
        """By what else than its own id a request is found: that of the answer of which it is a
        choice, and that of its call."""
        answer_id = request_id.removeprefix(self._prefix).rpartition("-")[0]
        return {answer_id, call_id} - {""}


def unpacked(packed: bytes, *, events: bool = True) -> RequestHistory:
    """The history of a request that has ended, with its `events` or without."""
    kept = _decode_kept(packed)
    happened = tuple(map(_decode_event, kept.events)) if events else ()
    return msgspec.structs.replace(kept.history, events=happened)


def _history(
    request_id: str, entry: _Open, ending: str, reason: str, now_ns: int
) -> RequestHistory:
    def after(instant_ns: int) -> int:
        return -1 if instant_ns < 0 else instant_ns - entry.arrival_ns

    return RequestHistory(
        request_id=request_id,
        arrival_ns=entry.arrival_ns,
        tenant=entry.asker.tenant,
        service_class=entry.asker.service_class,
        session=entry.asker.session,
        prompt_tokens=entry.prompt_tokens,
        cached_tokens=entry.cached_tokens,
        max_tokens=entry.max_tokens,
        emitted_tokens=entry.emitted_tokens,
        ending=ending,
        reason=reason,
        first_token_ns=after(entry.first_token_ns),
        last_token_ns=after(entry.last_token_ns),
        end_ns=after(now_ns) if ending else -1,
        events=(),
    )
