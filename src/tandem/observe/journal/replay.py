"""Plays a journal on a fresh gateway machine, and compares what it decides with what was decided.

Exact from the start of a gateway up to the first turn that is missing.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

from tandem.cluster.gateway.configuration import ConfigurationChanged, GatewayConfig, GatewayInput
from tandem.cluster.gateway.machine import GatewayMachine
from tandem.cluster.router.prefix_cache.index import TokenIds
from tandem.facts.adapter import Adapter
from tandem.facts.blocks import HASH_BYTES, CacheRoot, Chain
from tandem.facts.errors import TandemError
from tandem.facts.request import FinishReason, Request, session_key
from tandem.facts.sampling import SamplingParameters
from tandem.messages.codec import TO_GATEWAY
from tandem.messages.gateway import GatewayEffect, MessageFromWorker
from tandem.messages.router import (
    Explain,
    LeaveOut,
    Reject,
    RequestSubmitted,
    RequestWithdrawn,
    TokensReported,
)
from tandem.messages.worker import EmitTokens
from tandem.observe.journal.records import (
    EventRecord,
    Hashed,
    Lost,
    PeerMessage,
    Reconfigured,
    Record,
    Submitted,
    TokensDrawn,
    Turn,
    Withdrawn,
    decisions_of,
)

# Whatever it was: no decision depends on which token was drawn.
ANY_TOKEN = 0
# Nobody loads an adapter in a replay.
_SOMEWHERE = "-"
# So many prompts are kept for further choices of their calls, which come within moments.
MOST_PROMPTS = 8192
# Of so many requests it is known why they went where they went.
MOST_EXPLAINED = 4096


# Makes the configuration that a gateway machine was given then.
Configure = Callable[[Reconfigured], GatewayConfig]


class HashesMissing(TandemError):
    """The machine asks for block hashes at another point than the one that was recorded."""


class ReplayedHashes:
    """Block hashes as a journal has them, in the order in which they were asked for."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._recorded: dict[str, deque[Hashed]] = {}

    def add(self, hashed: Iterable[Hashed]) -> None:
        """Of the turn that is played next."""
        self._recorded = {}
        before: bytes | None = b""
        for each in hashed:
            before = before if each.digests is None else each.digests
            whole = Hashed(each.name, each.known, before)
            self._recorded.setdefault(str(each.name), deque()).append(whole)

    def chain_of(
        self,
        request: Request,
        tokens: TokenIds,
        known: Chain,
        root: CacheRoot,
    ) -> Chain:
        """See `PromptHashes`. Raises `HashesMissing`."""
        del root
        if len(known) >= len(tokens) // self._block_size:
            return known
        recorded = self._recorded.get(request.request_id)
        if not recorded or recorded[0].known != len(known):
            raise HashesMissing(f"no block hashes of request {request.request_id} were recorded")
        digests = recorded.popleft().digests or b""
        added = (digests[at : at + HASH_BYTES] for at in range(0, len(digests), HASH_BYTES))
        return (*known, *added)


class ReplayedEvents:
    """Events of a gateway machine from the records of a journal. Prompts have their length, and
    nothing else. Configurations are made by `configure`."""

    def __init__(self, configure: Configure) -> None:
        self._configure = configure
        # Requests that shared a prompt share it here as well.
        self._prompts: dict[int, array[int]] = {}

    def event(self, record: EventRecord) -> GatewayInput:
        """Raises `BadMessage` where a message is of another version."""
        match record:
            case PeerMessage(peer, message):
                return MessageFromWorker(peer, TO_GATEWAY.decode(message))
            case TokensDrawn():
                return MessageFromWorker(record.peer, _tokens(record))
            case Submitted():
                return self._submitted(record)
            case Withdrawn(name, rejected, call_id, satisfied):
                return RequestWithdrawn(str(name), rejected, call_id, satisfied)
            case Reconfigured():
                return ConfigurationChanged(self._configure(record))
            case _:
                return record

    def _submitted(self, record: Submitted) -> RequestSubmitted:
        prompt = self._prompts.get(record.prompt)
        if prompt is None:
            prompt = self._prompts[record.prompt] = array("I", bytes(4 * record.prompt_tokens))
            if len(self._prompts) > MOST_PROMPTS:
                del self._prompts[next(iter(self._prompts))]
        adapter = None
        if record.adapter:
            adapter = Adapter(record.adapter, _SOMEWHERE, record.adapter_bytes)
        request = Request(
            request_id=str(record.name),
            prompt_tokens=prompt,
            sampling=SamplingParameters(
                max_tokens=record.max_tokens,
                prompt_logprobs=0 if record.scores_prompt else None,
            ),
            priority=record.priority,
            choice=record.choice,
            session=session_key(record.tenant, record.session),
            adapter=adapter,
        )
        return RequestSubmitted(
            request,
            record.expected_output_tokens,
            tenant=record.tenant,
            service_class=record.service_class,
            session=record.session,
            slo=record.slo,
            deadline_ns=record.deadline_ns,
            pin_ns=record.pin_ns,
            call=record.call,
            answer_due_ns=record.answer_due_ns,
            pause=record.pause,
            arrived_ns=record.arrived_ns,
        )


def _tokens(record: TokensDrawn) -> TokensReported:
    count = len(record.names)
    reasons = record.reasons or (None,) * count
    emission = EmitTokens(
        request_ids=tuple(str(name) for name in record.names),
        tokens=(ANY_TOKEN,) * count,
        finish_reasons=tuple(None if each is None else FinishReason(each) for each in reasons),
        stopped_by_token=(False,) * count,
        cached_tokens=record.cached_tokens or (0,) * count,
    )
    return TokensReported(record.worker, emission, record.repeats)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that is another one: number `place` of the turn at `at_ns`, the `turn`-th
    from 0. `explained` is what the replayed machine had said last of the requests in it."""

    turn: int
    at_ns: int
    place: int
    recorded: str | int | None
    replayed: str | int | None
    explained: tuple[Explain, ...]


@dataclass(slots=True)
class Comparison:
    """How far the decisions are equal. `missing_ns` is when turns began to be missing: nothing
    after that was compared."""

    turns: int = 0
    events: int = 0
    decisions: int = 0
    requests: int = 0
    rejected: int = 0
    first_ns: int | None = None
    last_ns: int = 0
    missing_ns: int | None = None
    missing_turns: int = 0
    difference: Difference | None = None

    @property
    def seconds(self) -> float:
        return 0.0 if self.first_ns is None else (self.last_ns - self.first_ns) / 1e9


def compare(
    records: Iterable[Record],
    machine: GatewayMachine,
    hashes: ReplayedHashes,
    configure: Configure,
) -> Comparison:
    """Play the records on a machine that was made as the recorded one, with these `hashes` and
    explanations on; its later configurations are made by `configure`. Ends at the first difference,
    or where turns are missing."""
    done, playing = Comparison(), _Playing(machine, hashes, configure)
    for record in records:
        if isinstance(record, Lost):
            if done.missing_ns is None:
                done.missing_ns = done.last_ns
            done.missing_turns += record.turns
            continue
        if done.missing_ns is not None:
            continue
        playing.play(record, done)
        if done.difference is not None:
            break
    return done


class _Playing:
    """A machine, the source of its events, and its explanations."""

    def __init__(
        self, machine: GatewayMachine, hashes: ReplayedHashes, configure: Configure
    ) -> None:
        self._machine = machine
        self._hashes = hashes
        self._events = ReplayedEvents(configure)
        self._explained: dict[str, dict[str, Explain]] = {}

    def play(self, turn: Turn, done: Comparison) -> None:
        """One turn, which counts to what is `done`."""
        self._hashes.add(turn.hashed)
        events = [self._events.event(record) for record in turn.events]
        effects: list[GatewayEffect] = []
        try:
            effects = self._machine.handle_together(events, turn.at_ns)
            replayed = decisions_of(effects, str)
        except HashesMissing as error:
            replayed = (str(error),)
        self._remember(effects)
        for place, (one, other) in enumerate(zip_longest(turn.decisions, replayed)):
            if one != other:
                explained = self._explanations(one, other)
                done.difference = Difference(done.turns, turn.at_ns, place, one, other, explained)
                break
        if done.first_ns is None:
            done.first_ns = turn.at_ns
        done.last_ns = turn.at_ns
        done.turns += 1
        done.events += len(events)
        done.decisions += len(replayed)
        done.requests += sum(isinstance(each, RequestSubmitted) for each in events)
        done.rejected += sum(isinstance(each, Reject | LeaveOut) for each in effects)

    def _remember(self, effects: list[GatewayEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Explain):
                self._explained.setdefault(effect.request_id, {})[effect.kind] = effect
        while len(self._explained) > MOST_EXPLAINED:
            del self._explained[next(iter(self._explained))]

    def _explanations(self, *decisions: str | int | None) -> tuple[Explain, ...]:
        """Of all requests that these decisions name."""
        words = " ".join(str(each) for each in decisions).split()
        names = [word.partition("+")[0].partition("~")[0] for word in words]
        found = [self._explained.get(name, {}) for name in dict.fromkeys(names)]
        return tuple(explain for of_request in found for explain in of_request.values())


def turns_of(records: Iterable[Record]) -> Iterator[Turn]:
    """The turns alone, whatever is missing between them."""
    return (record for record in records if isinstance(record, Turn))
