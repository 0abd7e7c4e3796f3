"""What became of the requests in a journal, and which workers there were: read from the records
alone, also where their beginning is missing."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from tandem.facts.blocks import HASH_BYTES
from tandem.facts.fleet import Role
from tandem.facts.request import FinishReason
from tandem.facts.trace import TraceRow
from tandem.messages.cluster import Deregister, Register, ToGateway
from tandem.messages.codec import TO_GATEWAY
from tandem.messages.gateway import PeerGone
from tandem.observe.journal.records import (
    EventRecord,
    Hashed,
    Head,
    Name,
    PeerMessage,
    Submitted,
    TokensDrawn,
    Turn,
    Withdrawn,
)


class Outcome(StrEnum):
    """How a request ended; `OPEN` if it had not yet."""

    FINISHED = "finished"
    WITHDRAWN = "withdrawn"
    REJECTED = "rejected"
    FAILED = "failed"
    OPEN = "open"


# The word for a decision, and how it ends a request.
_ENDS = {
    "Reject": Outcome.REJECTED,
    "LeaveOut": Outcome.REJECTED,
    "CutOff": Outcome.FINISHED,
    "FailRequest": Outcome.FAILED,
}


@dataclass(slots=True)
class PastRequest:
    """One request. Instants are -1 until they happen. `hashes` are of its prompt's full blocks as
    they were first known; `gaps_ns` lie between tokens; `attempts` counts takeovers."""

    submitted: Submitted
    arrival_ns: int
    hashes: tuple[bytes, ...] = ()
    outcome: Outcome = Outcome.OPEN
    tokens: int = 0
    cached_tokens: int = 0
    attempts: int = 0
    worker: str = ""
    first_worker: str = ""
    first_token_ns: int = -1
    last_token_ns: int = -1
    end_ns: int = -1
    gaps_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class PastWorker:
    """One worker by its last greeting, and for how long it was there."""

    registration: Register
    since_ns: int
    up_ns: int = 0


class History:
    """Made of a head and of all turns after it. It begins with the first request, at `first_ns`;
    workers were up before."""

    def __init__(self, head: Head, turns: Iterable[Turn]) -> None:
        self.head = head
        self.requests: dict[int, PastRequest] = {}
        self.workers: dict[str, PastWorker] = {}
        self.first_ns = self.last_ns = head.started_ns
        self._peers: dict[str, str] = {}
        for greeting in head.members:
            self._greeted(greeting.peer, TO_GATEWAY.decode(greeting.message), head.started_ns)
        for turn in turns:
            self.last_ns = turn.at_ns
            self._turn(turn)
        for worker in self.workers.values():
            if worker.since_ns >= 0:
                worker.up_ns += self.last_ns - worker.since_ns

    @property
    def seconds(self) -> float:
        return (self.last_ns - self.first_ns) / 1e9

    def keep_last(self, seconds: float) -> None:
        """Forget the requests that had arrived before the last so many seconds."""
        first_ns = self.last_ns - round(seconds * 1e9)
        if first_ns <= self.first_ns:
            return
        self.first_ns = first_ns
        self.requests = {
            name: request
            for name, request in self.requests.items()
            if request.arrival_ns >= first_ns
        }

    def _turn(self, turn: Turn) -> None:
        for record in turn.events:
            self._event(record, turn.at_ns)
        self._hash(turn.hashed)
        for decision in turn.decisions:
            if not isinstance(decision, str):
                continue
            kind, _, rest = decision.partition(" ")
            if outcome := _ENDS.get(kind):
                name = rest.partition(" ")[0]
                ended = self.requests.get(int(name)) if name.isdecimal() else None
                self._end(ended, outcome, turn.at_ns)

    def _event(self, record: EventRecord, at_ns: int) -> None:
        match record:
            case Submitted():
                if not self.requests:
                    self._begin(at_ns)
                self.requests[record.name] = PastRequest(record, at_ns)
            case Withdrawn(name):
                self._end(self._request(name), Outcome.WITHDRAWN, at_ns)
            case TokensDrawn():
                self._drew(record, at_ns)
            case PeerMessage(peer, message):
                self._greeted(peer, TO_GATEWAY.decode(message), at_ns)
            case PeerGone(peer):
                self._left(self._peers.get(peer, ""), at_ns)
            case _:
                pass

    def _begin(self, at_ns: int) -> None:
        self.first_ns = at_ns
        for worker in self.workers.values():
            worker.up_ns = 0
            if worker.since_ns >= 0:
                worker.since_ns = at_ns

    def _drew(self, record: TokensDrawn, at_ns: int) -> None:
        for place, name in enumerate(record.names):
            request = self._request(name)
            if request is None or request.outcome is not Outcome.OPEN:
                continue
            attempt = _attempt(name)
            if attempt < request.attempts:
                # It was taken up elsewhere meanwhile.
                continue
            request.attempts = attempt
            if request.first_token_ns < 0:
                request.first_token_ns = at_ns
                request.first_worker = record.worker
                cached = record.cached_tokens
                request.cached_tokens = cached[place] if cached else 0
            else:
                gap_ns = at_ns - request.last_token_ns
                request.gaps_ns += [gap_ns // record.repeats] * record.repeats
            request.last_token_ns = at_ns
            request.worker = record.worker
            request.tokens += record.repeats
            if record.reasons and record.reasons[place] is not None:
                aborted = record.reasons[place] == FinishReason.ABORT
                outcome = Outcome.WITHDRAWN if aborted else Outcome.FINISHED
                self._end(request, outcome, at_ns)

    def _hash(self, hashed: Iterable[Hashed]) -> None:
        before: tuple[bytes, ...] = ()
        for each in hashed:
            if each.digests is not None:
                digests = each.digests
                before = tuple(
                    digests[at : at + HASH_BYTES] for at in range(0, len(digests), HASH_BYTES)
                )
            request = self._request(each.name)
            # Under the root that most workers have by then; an answer's blocks are none of it.
            if request is not None and not each.known and not request.tokens:
                request.hashes = before

    def _greeted(self, peer: str, message: ToGateway, at_ns: int) -> None:
        if isinstance(message, Deregister):
            self._left(message.worker, at_ns)
        if not isinstance(message, Register):
            return
        self._peers[peer] = message.worker
        known = self.workers.get(message.worker)
        if known is None:
            self.workers[message.worker] = PastWorker(message, at_ns)
            return
        known.registration = message
        if known.since_ns < 0:
            known.since_ns = at_ns

    def _left(self, name: str, at_ns: int) -> None:
        worker = self.workers.get(name)
        if worker is not None and worker.since_ns >= 0:
            worker.up_ns += at_ns - worker.since_ns
            worker.since_ns = -1

    def _request(self, name: Name) -> PastRequest | None:
        number = name if isinstance(name, int) else name.partition("~")[0]
        return self.requests.get(int(number)) if str(number).isdecimal() else None

    def _end(self, request: PastRequest | None, outcome: Outcome, at_ns: int) -> None:
        if request is not None and request.outcome is Outcome.OPEN:
            request.outcome = outcome
            request.end_ns = at_ns


def _attempt(name: Name) -> int:
    """Which attempt of a request this is; one that reads a copy counts as that which it copies."""
    attempt = "" if isinstance(name, int) else name.partition("~")[2].partition(".")[0]
    return int(attempt) if attempt.isdecimal() else 0


def trace_rows(history: History) -> list[TraceRow]:
    """The recorded workload as it could be played elsewhere, by arrival. Answers are as long as
    they became; one that was refused or failed before its first token is as long as was expected.
    Requests of one session wait for each other as they did."""
    rows: list[TraceRow] = []
    serials: dict[bytes, int] = {}
    ends_ns: dict[str, int] = {}
    for request in history.requests.values():
        asked = request.submitted
        session, think_s = asked.session, 0.0
        if session and (ended_ns := ends_ns.get(session)) is not None:
            think_s = (request.arrival_ns - ended_ns) / 1e9
            if think_s < 0:
                # It did not wait for the one before it.
                session, think_s = "", 0.0
        if asked.session:
            still_open = request.end_ns < 0
            ends_ns[asked.session] = history.last_ns if still_open else request.end_ns
        rows.append(
            TraceRow(
                arrival_s=(request.arrival_ns - history.first_ns) / 1e9,
                prompt_tokens=asked.prompt_tokens,
                output_tokens=request.tokens or _expected_tokens(asked),
                block_ids=tuple(serials.setdefault(each, len(serials)) for each in request.hashes),
                block_tokens=history.head.block_size,
                session=session,
                think_s=think_s,
                tenant=asked.tenant,
                service_class=asked.service_class,
            )
        )
    return rows


def _expected_tokens(asked: Submitted) -> int:
    return max(1, min(asked.max_tokens, round(asked.expected_output_tokens)))


@dataclass(frozen=True, slots=True)
class PastPool:
    """Workers of one pool: at most `count` at a time, the most common role of their greetings, and
    the least that one of them can hold."""

    name: str
    role: Role
    count: int
    block_count: int
    context_tokens: int


def pools_of(history: History) -> Iterator[PastPool]:
    """In the order in which they came."""
    by_pool: dict[str, list[Register]] = {}
    for worker in history.workers.values():
        by_pool.setdefault(worker.registration.pool, []).append(worker.registration)
    for name, hellos in by_pool.items():
        roles = [register.role for register in hellos]
        yield PastPool(
            name=name,
            role=max(Role, key=roles.count),
            count=len(hellos),
            block_count=min(register.export.block_count for register in hellos),
            context_tokens=min(register.context_tokens for register in hellos),
        )
