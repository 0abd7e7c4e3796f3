"""Turns what a gateway machine was told and decided into records of a journal.

Everything here runs on the gateway's event loop, so it only encodes; a thread compresses and
writes.
"""

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from tandem.cluster.gateway.configuration import ConfigurationChanged, GatewayInput
from tandem.cluster.router.prefix_cache.index import ComputedHashes, TokenIds
from tandem.facts.blocks import CacheRoot, Chain
from tandem.facts.kv import TierFigures
from tandem.facts.request import Request
from tandem.messages.cluster import (
    Deregister,
    Register,
    RegisterPoolNode,
    TiersReported,
    ToGateway,
)
from tandem.messages.codec import TO_GATEWAY
from tandem.messages.gateway import (
    Deliver,
    GatewayEffect,
    MessageFromWorker,
    PeerGone,
    ToolsCalled,
)
from tandem.messages.router import (
    CutOff,
    ImportReported,
    KvReported,
    LeaveOut,
    Reject,
    RequestBroken,
    RequestRefused,
    RequestsLost,
    RequestSubmitted,
    RequestWithdrawn,
    TokensReported,
)
from tandem.messages.sharing import UseShared
from tandem.messages.worker import FailRequest
from tandem.observe.journal.pseudonyms import RequestNumbers, SessionNames, TenantNames
from tandem.observe.journal.records import (
    EventRecord,
    Hashed,
    PeerMessage,
    Reconfigured,
    Submitted,
    TokensDrawn,
    Turn,
    Withdrawn,
    decisions_of,
    encode,
)


class RecordedHashes:
    """Computes the hashes that a router asks for, and remembers them until `take`. For one
    router."""

    def __init__(self, block_size: int) -> None:
        self._computed = ComputedHashes(block_size)
        self._asked: list[tuple[str, int, Chain]] = []

    def chain_of(
        self,
        request: Request,
        tokens: TokenIds,
        known: Chain,
        root: CacheRoot,
    ) -> Chain:
        """See `PromptHashes`."""
        known_blocks = len(known)
        chain = self._computed.chain_of(request, tokens, known, root)
        if len(chain) > known_blocks:
            # A list may grow again before it is written down.
            kept = chain if isinstance(chain, tuple) else tuple(chain)
            self._asked.append((request.request_id, known_blocks, kept))
        return chain

    def take(self) -> list[tuple[str, int, Chain]]:
        """What was asked for since the last time: of which request, how many of its blocks were
        known before, and the whole chain."""
        asked, self._asked = self._asked, []
        return asked


class Recorder:
    """Of one gateway machine, whose router gets its hashes from `hashes`. `members` are the last
    greetings of the workers that are there; `configured` is how the machine was configured last,
    if it was since its start."""

    def __init__(self, block_size: int, tenants: TenantNames, sessions: SessionNames) -> None:
        self.hashes = RecordedHashes(block_size)
        self.members: tuple[PeerMessage, ...] = ()
        self.configured: Reconfigured | None = None
        self._tenants = tenants
        self._sessions = sessions
        self._numbers = RequestNumbers()
        self._greetings: dict[str, PeerMessage] = {}

    def turn(
        self, at_ns: int, events: Sequence[GatewayInput], effects: Sequence[GatewayEffect]
    ) -> bytes:
        """The record of one call of the machine."""
        written = tuple([self._event(event) for event in events])
        naming = self._numbers.name
        turn = Turn(at_ns, written, self._hashed(), decisions_of(effects, naming))
        self._note_ends(events, effects)
        return encode(turn)

    def _event(self, event: GatewayInput) -> EventRecord:
        match event:
            case MessageFromWorker(peer, message):
                if isinstance(message, TokensReported):
                    return self._drew(peer, message)
                return self._peer_message(peer, message)
            case RequestSubmitted():
                return self._submitted(event)
            case RequestWithdrawn(request_id, rejected, call_id, satisfied):
                name = self._numbers.name(request_id)
                return Withdrawn(name, rejected, self._sessions.label(call_id), satisfied)
            case ToolsCalled(account, session, tools):
                label = self._sessions.label
                return ToolsCalled(
                    self._tenants.label(account), label(session), tuple(map(label, tools))
                )
            case PeerGone(peer):
                self._greet(peer, None)
                return event
            case ConfigurationChanged(config, cluster, files):
                plans = config.planning is not None
                self.configured = Reconfigured(config.configuration, cluster, dict(files), plans)
                return self.configured
            case _:
                return event

    def _drew(self, peer: str, message: TokensReported) -> TokensDrawn:
        emission, name = message.emission, self._numbers.name
        reasons, cached = emission.finish_reasons, emission.cached_tokens
        return TokensDrawn(
            peer,
            message.worker,
            tuple([name(wire_id) for wire_id in emission.request_ids]),
            message.repeats,
            reasons if any(reasons) else (),
            cached if any(cached) else (),
        )

    def _peer_message(self, peer: str, message: ToGateway) -> PeerMessage:
        match message:
            case KvReported(_, computed):
                names = self._renamed(computed.request_ids)
                message = structs.replace(
                    message, computed=structs.replace(computed, request_ids=names)
                )
            case ImportReported(_, wanted):
                (name,) = self._renamed((wanted.request_id,))
                message = structs.replace(message, wanted=structs.replace(wanted, request_id=name))
            case RequestRefused(_, request_id) | RequestBroken(_, request_id):
                (name,) = self._renamed((request_id,))
                message = structs.replace(message, request_id=name)
            case UseShared(_, use):
                label = self._tenants.label
                accounts = tuple(
                    structs.replace(each, account=label(each.account)) for each in use.accounts
                )
                message = structs.replace(message, use=structs.replace(use, accounts=accounts))
            case TiersReported(_, tiers):
                message = structs.replace(message, tiers=tuple(map(self._labelled, tiers)))
            case RequestsLost(_, request_ids):
                message = structs.replace(message, request_ids=self._renamed(request_ids))
            case _:
                pass
        record = PeerMessage(peer, TO_GATEWAY.encode(message))
        if isinstance(message, Register | RegisterPoolNode):
            self._greet(peer, record)
        elif isinstance(message, Deregister):
            self._greet(peer, None)
        return record

    def _labelled(self, figures: TierFigures) -> TierFigures:
        blocks = tuple((self._tenants.label(name), count) for name, count in figures.tenant_blocks)
        return structs.replace(figures, tenant_blocks=blocks)

    def _submitted(self, event: RequestSubmitted) -> Submitted:
        request = event.request
        number, prompt = self._numbers.submitted(request)
        call = event.call
        if call is not None:
            call = replace(call, call_id=self._sessions.label(call.call_id))
        return Submitted(
            number,
            prompt,
            len(request.prompt_tokens) + len(request.output_tokens),
            request.sampling.max_tokens,
            request.priority,
            event.expected_output_tokens,
            self._tenants.label(event.tenant),
            event.service_class,
            self._sessions.label(event.session),
            event.slo,
            event.deadline_ns,
            event.pin_ns,
            call,
            request.choice,
            event.answer_due_ns,
            event.pause,
            event.arrived_ns,
            "" if request.adapter is None else request.adapter.digest,
            0 if request.adapter is None else request.adapter.weight_bytes,
            request.sampling.prompt_logprobs is not None and not request.output_tokens,
        )

    def _hashed(self) -> tuple[Hashed, ...]:
        hashed: list[Hashed] = []
        before: Chain | None = None
        for request_id, known, chain in self.hashes.take():
            again = chain is before and not known
            digests = None if again else b"".join(chain[known:])
            hashed.append(Hashed(self._numbers.name(request_id), known, digests))
            before = None if known else chain
        return tuple(hashed)

    def _note_ends(self, events: Sequence[GatewayInput], effects: Sequence[GatewayEffect]) -> None:
        """What comes of these requests from now on is nobody's."""
        for event in events:
            if isinstance(event, RequestWithdrawn):
                self._numbers.ended(event.request_id)
        for effect in effects:
            if isinstance(effect, Reject | LeaveOut | CutOff | FailRequest):
                self._numbers.ended(effect.request_id)
            elif isinstance(effect, Deliver) and any(effect.emission.finish_reasons):
                emission = effect.emission
                for request_id, reason in zip(
                    emission.request_ids, emission.finish_reasons, strict=True
                ):
                    if reason is not None:
                        self._numbers.ended(request_id)

    def _renamed(self, wire_ids: Sequence[str]) -> tuple[str, ...]:
        return tuple(str(self._numbers.name(wire_id)) for wire_id in wire_ids)

    def _greet(self, peer: str, greeting: PeerMessage | None) -> None:
        if greeting is not None:
            self._greetings[peer] = greeting
        elif self._greetings.pop(peer, None) is None:
            return
        self.members = tuple(self._greetings.values())
