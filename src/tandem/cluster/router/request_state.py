"""The router's state of one request: its stage, its prefill and decode worker, the tokens so far,
and KV transfers under way."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from msgspec import structs

from tandem.cluster.router.deaths import Deaths
from tandem.cluster.router.predictions import Forecast
from tandem.facts.blocks import Chain
from tandem.facts.fleet import Tier
from tandem.facts.request import FinishReason, Request
from tandem.messages.router import RequestSubmitted
from tandem.policy.dispatch.contract import FirstToken, Transfer
from tandem.policy.qos.classes import ServiceClass
from tandem.policy.views import RequestView, TierHits

# Of a deadline that has passed on the way; 0 would be none.
LEAST_LEFT_S = 1e-3


class Stage(Enum):
    """The stage of a request. It begins in QUEUED, and begins there again when a worker dies. While
    one is COPYING it decodes at its `prefill` worker, and its `decode` worker reads its KV."""

    QUEUED = "queued"
    PREFILLING = "prefilling"
    MOVING = "moving"
    DECODING = "decoding"
    COPYING = "copying"


@dataclass(slots=True)
class Import:
    """KV of tokens `first_token .. end_token` on its way into blocks that a worker has reserved.

    Up to `sent_tokens` it has been sent for; `moving` holds the transfers under way by id, as
    (first, end). What was lost begins at `lost_token`.
    """

    first_token: int
    end_token: int
    sent_tokens: int
    lost_token: int | None = None
    moving: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def arrived_tokens(self) -> int:
        """The KV of so many first tokens is whole, once nothing moves any more."""
        return self.sent_tokens if self.lost_token is None else self.lost_token

    def lose(self, first_token: int) -> None:
        lost = self.lost_token
        self.lost_token = first_token if lost is None else min(lost, first_token)


@dataclass(slots=True)
class Names:
    """The wire ids of a request at workers, so that nothing late from an earlier attempt is ever
    taken for this one: `wire` at whoever works on it, `copy` (often empty) at whoever reads its KV
    to take it over. `attempt` counts the former, `copies` the latter since."""

    request_id: str
    wire: str
    copy: str = ""
    attempt: int = 0
    copies: int = 0

    @property
    def all(self) -> tuple[str, ...]:
        return (self.wire, self.copy) if self.copy else (self.wire,)

    def begin_again(self) -> None:
        self.attempt += 1
        self.wire, self.copy, self.copies = f"{self.request_id}~{self.attempt}", "", 0

    def begin_copy(self) -> None:
        self.copies += 1
        self.copy = f"{self.request_id}~{self.attempt}.{self.copies}"

    def take_over(self) -> None:
        """Whoever has the copy is the one that works on it."""
        self.wire, self.copy = self.copy, ""


def failed_over(wire_id: str) -> bool:
    """Whether this is the name of a request whose first worker died."""
    return "~" in wire_id


@dataclass(slots=True)
class RequestState:
    """A submitted request, sent to workers under its `names`. `output` are the tokens drawn so far,
    on any worker; `sent_output` of them were sent to the worker that goes on. `import_sent`: the
    decode worker has received `ImportsArrived`. `expected_tokens` count to that worker's load until
    their KV is there. KV of the first `pulled_tokens` came from slower tiers. `copy_failed`: a
    migration was begun and has failed. `has_place`: it has one of the bounded places at everybody's
    workers; one that `runs_in_background` is there without. `deaths` are those of its workers.
    `measured`: its SLO was predicted to hold, and what comes is held against that; its first token
    came at `first_token_ns` (-1 until then). `degraded` is what was cut of it, in words. `forecast`
    is of when it first went to workers, or until then of when it was let in."""

    submission: RequestSubmitted
    view: RequestView
    chain: Chain
    names: Names
    stage: Stage = Stage.QUEUED
    has_place: bool = False
    runs_in_background: bool = False
    copy_failed: bool = False
    pulled_tokens: int = 0
    prefill: str = ""
    decode: str = ""
    transfer: Transfer = Transfer.PULL
    tier_ends: tuple[tuple[Tier, int], ...] = ()
    computed_tokens: int = 0
    import_sent: bool = False
    prefill_pinned: bool = False
    sent_output: int = 0
    expected_tokens: int = 0
    charged_output: int = 0
    measured: bool = False
    first_token_ns: int = -1
    degraded: str = ""
    output: "array[int]" = field(default_factory=lambda: array("I"))
    imports: dict[str, Import] = field(default_factory=dict)
    deaths: Deaths = field(default_factory=Deaths)
    forecast: Forecast | None = None

    @classmethod
    def of(cls, event: RequestSubmitted, serial: int, now_ns: int) -> "RequestState":
        request, arrived_ns = event.request, event.arrived_ns
        view = RequestView(
            request_id=request.request_id,
            serial=serial,
            arrival_ns=now_ns if arrived_ns is None else min(arrived_ns, now_ns),
            prompt_tokens=len(request.prompt_tokens) + len(request.output_tokens),
            expected_output_tokens=event.expected_output_tokens,
            tenant=event.tenant,
            service_class=event.service_class,
            priority=request.priority,
            session=event.session,
            slo=event.slo,
            deadline_ns=event.deadline_ns,
            adapter=request.adapter.digest if request.adapter is not None else "",
            adapter_bytes=request.adapter.weight_bytes if request.adapter is not None else 0,
        )
        return cls(event, view, [], Names(request.request_id, request.request_id))

    @property
    def request_id(self) -> str:
        return self.submission.request.request_id

    @property
    def wire_id(self) -> str:
        return self.names.wire

    def name_at(self, worker: str) -> str:
        """Its wire id at this worker."""
        names = self.names
        return names.copy if names.copy and worker == self.decode else names.wire

    @property
    def due_ns(self) -> int | None:
        """When the next thing that its client waits for is due: the first token, then the rest."""
        submission = self.submission
        return submission.deadline_ns if self.first_token_ns < 0 else submission.answer_due_ns

    @property
    def local(self) -> bool:
        return self.prefill == self.decode

    @property
    def known_tokens(self) -> int:
        request = self.submission.request
        return len(request.prompt_tokens) + len(request.output_tokens) + len(self.output)

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt is still to be scored: then no KV of it can be had from a cache."""
        request = self.submission.request
        known_output = bool(request.output_tokens or self.output)
        return request.sampling.prompt_logprobs is not None and not known_output

    @property
    def reusable_chain(self) -> Chain:
        """Of what workers may find in their caches."""
        return [] if self.scores_prompt else self.chain

    def tokens(self) -> "tuple[int, ...] | array[int]":
        """Everything known, prompt first."""
        request = self.submission.request
        if not request.output_tokens and not self.output:
            return request.prompt_tokens
        known = array("I", request.prompt_tokens)
        known.extend(request.output_tokens)
        known.extend(self.output)
        return known

    def needs(self, worker: str) -> bool:
        """Whether the request cannot go on as planned without this worker."""
        if self.stage is Stage.QUEUED:
            return False
        if self.stage is Stage.DECODING:
            return worker == self.decode
        return worker in (self.prefill, self.decode)

    def is_at(self, worker: str) -> bool:
        """Whether this worker has a part of it, so that it may be what the worker dies of."""
        match self.stage:
            case Stage.QUEUED:
                return False
            case Stage.DECODING:
                return worker == self.decode
            case Stage.COPYING:
                return worker == self.prefill
        return worker == self.prefill or (self.import_sent and worker == self.decode)

    def takes_token(self, reason: FinishReason | None, first_token: FirstToken) -> bool:
        """Whether a token that was just drawn for it counts: one that the decode worker draws
        again does not, unless the answer ends with it. With the scores of a prompt it always does:
        only who computed the prompt has them."""
        if first_token is FirstToken.SENT or self.stage is not Stage.PREFILLING:
            return True
        if self.scores_prompt:
            return True
        return self.local or reason is not None

    def look(self, hits: Mapping[str, TierHits], remote_tokens: int) -> None:
        """What policies should see from now on."""
        known_tokens = self.known_tokens
        output_tokens = len(self.output)
        expected = max(1.0, self.submission.expected_output_tokens - output_tokens)
        self.view = structs.replace(
            self.view,
            prompt_tokens=known_tokens,
            expected_output_tokens=expected,
            hits=hits,
            remote_tokens=remote_tokens,
        )

    def shorten(self, limit_tokens: int) -> None:
        """Its answer is to be no longer than that; others are expected as long as before."""
        submission, expected = self.submission, self.view.expected_output_tokens
        request, sampling = submission.request, submission.request.sampling
        min_tokens = min(sampling.min_tokens, limit_tokens)
        sampling = replace(sampling, max_tokens=limit_tokens, min_tokens=min_tokens)
        self.submission = structs.replace(
            submission,
            request=replace(request, sampling=sampling),
            expected_output_tokens=min(submission.expected_output_tokens, float(limit_tokens)),
        )
        self.view = structs.replace(
            self.view,
            expected_output_tokens=min(expected, float(limit_tokens)),
            typical_output_tokens=expected,
        )

    def bind_to(self, service: ServiceClass) -> None:
        """Workers of that class's model are to answer it, and no others from then on."""
        if self.view.model != service.model:
            self.view, self.chain = structs.replace(self.view, model=service.model), []

    def move_to(self, service: ServiceClass) -> None:
        """It goes where requests of that class go; what it was promised stays."""
        self.view = structs.replace(self.view, service_class=service.name)
        self.bind_to(service)

    def go(self, prefill: str, decode: str, transfer: Transfer) -> None:
        """From now on these two work on it."""
        self.prefill, self.decode, self.transfer = prefill, decode, transfer
        self.stage = Stage.PREFILLING
        self.computed_tokens = 0
        self.import_sent = self.prefill_pinned = False

    def copy_to(self, worker: str) -> None:
        """It goes on where it decodes, and this one is to take it over."""
        self.go(self.decode, worker, Transfer.PULL)
        self.stage = Stage.COPYING
        self.names.begin_copy()

    def request(self, worker: str, now_ns: int) -> Request:
        """The request as this worker should continue it now. Its deadline travels as the time that
        is left: clocks differ."""
        self.sent_output = len(self.output)
        request, name = self.submission.request, self.name_at(worker)
        due_ns = self.due_ns
        if due_ns is not None:
            request = replace(request, deadline_s=max(LEAST_LEFT_S, (due_ns - now_ns) / 1e9))
        if not self.output and name == request.request_id:
            return request
        output_tokens = (*request.output_tokens, *self.output)
        return replace(request, request_id=name, output_tokens=output_tokens)

    def restart(self) -> None:
        """Somebody who held a part of it died: begin again with the tokens so far."""
        self.names.begin_again()
        self.copy_failed = False
        self.pulled_tokens = 0
        self.go("", "", Transfer.PULL)
        self.stage = Stage.QUEUED
        self.tier_ends = ()
        self.imports = {}
