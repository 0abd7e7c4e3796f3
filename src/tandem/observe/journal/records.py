"""What stands in a journal: one record for each call of a gateway machine, and the head of a file.

No token, no text of a prompt or an answer, no log-probability and no key is in any of them. A
request goes by its number in the journal: 12 at its first worker, "12~1" once another one has taken
it up. Records are msgpack arrays, tagged with their kind.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache
from typing import Any

import msgspec

from tandem.facts.blocks import CacheRoot
from tandem.facts.kv import BlockFormat
from tandem.facts.rate_limits import CallSize
from tandem.facts.slo import Slo
from tandem.messages.cluster import PROTOCOL, LeasesRenewed, Registered, ToWorker
from tandem.messages.gateway import (
    AuditAsked,
    AuditEnded,
    Deliver,
    DrainAsked,
    GatewayEffect,
    PeerGone,
    PrefixCacheResetAsked,
    SendToWorker,
    ShapesSimulated,
    StartFailed,
    TimePassed,
    ToolsCalled,
    UndrainAsked,
)
from tandem.messages.router import Explain, FollowedPause
from tandem.messages.worker import (
    ImportsArrived,
    PrefillsArrived,
    RequestsArrived,
    SessionReturning,
)

# Goes up whenever a record changes its meaning or its fields.
FORMAT = 1
# The request of a report that came after the request had ended.
UNKNOWN = "?"
_SCALARS = (str, int, float, Enum, type(None))

Name = int | str
# Gives the name that stands in the journal for that by which workers know a request.
Naming = Callable[[str], Name]


class PeerMessage(msgspec.Struct, array_like=True, tag="s", frozen=True):
    """`MessageFromWorker`: the message as it travels, but for the names of requests."""

    peer: str
    message: bytes


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Of each file of a run (one start of one gateway), the `number`-th from 0, before which
    `turns_before` turns were recorded. Messages of workers in it are of that `protocol`. At
    `started_ns` of the instants in it the wall clock was `wall_clock_s`. `cluster` is the cluster
    file without keys and addresses, and `files` are those that it names, by the name that stands
    there. The rest is what else a gateway machine is made with (among it whether it `plans`), and
    the last registration of each worker that was there when the file began (`members`)."""

    format: int = FORMAT
    protocol: int = PROTOCOL
    version: str
    gateway: str
    incarnation: str
    number: int
    turns_before: int
    started_ns: int
    wall_clock_s: int
    cluster: str
    files: dict[str, str]
    root: CacheRoot
    block_size: int
    terms: Registered
    model: str
    revision: str
    block_format: BlockFormat | None
    plans: bool = False
    members: tuple[PeerMessage, ...] = ()


class TokensDrawn(msgspec.Struct, array_like=True, tag="t", frozen=True):
    """`MessageFromWorker` with `TokensReported`: who got how many, never which. `reasons` is empty
    where nobody's answer ended, `cached_tokens` where all are 0."""

    peer: str
    worker: str
    names: tuple[Name, ...]
    repeats: int
    reasons: tuple[str | None, ...]
    cached_tokens: tuple[int, ...]


class Submitted(msgspec.Struct, array_like=True, tag="r", frozen=True):
    """`RequestSubmitted`. Requests of one call that share their prompt have one `prompt` number.
    `call` is the size of a call of several requests, under a pseudonym; `adapter` is the digest of
    the adapter that answers, and of `adapter_bytes`. `scores_prompt`: its prompt is scored, so no
    cache serves it."""

    name: int
    prompt: int
    prompt_tokens: int
    max_tokens: int
    priority: int
    expected_output_tokens: float
    tenant: str
    service_class: str
    session: str
    slo: Slo
    deadline_ns: int | None
    pin_ns: int
    call: CallSize | None = None
    choice: int = 0
    answer_due_ns: int | None = None
    pause: FollowedPause | None = None
    arrived_ns: int | None = None
    adapter: str = ""
    adapter_bytes: int = 0
    scores_prompt: bool = False


class Withdrawn(msgspec.Struct, array_like=True, tag="w", frozen=True):
    """`RequestWithdrawn`."""

    name: Name
    rejected: bool = False
    call_id: str = ""
    satisfied: bool = False


class Reconfigured(msgspec.Struct, array_like=True, tag="c", frozen=True):
    """`ConfigurationChanged` to the configuration of this number: `cluster` and `files` as of a
    `Head`, and whether the machine `plans` from then on."""

    number: int
    cluster: str
    files: dict[str, str]
    plans: bool


# Of all other events something is left out, or has another name (`recorder`, `replay`).
AsItIs = (
    PeerGone
    | DrainAsked
    | UndrainAsked
    | AuditAsked
    | PrefixCacheResetAsked
    | StartFailed
    | ShapesSimulated
    | ToolsCalled
    | TimePassed
)
EventRecord = PeerMessage | TokensDrawn | Submitted | Withdrawn | Reconfigured | AsItIs


class Hashed(msgspec.Struct, array_like=True, frozen=True):
    """The router asked for the block hashes of a request, and got these after the first `known`
    that it had: one after the other, 16 bytes each. None: the same as the request before."""

    name: Name
    known: int
    digests: bytes | None


class Turn(msgspec.Struct, array_like=True, tag="T", frozen=True):
    """One call of the gateway machine at `at_ns`: what it was told, which hashes it asked for while
    it decided, and what it decided, in words (a number: so many tokens went to clients)."""

    at_ns: int
    events: tuple[EventRecord, ...]
    hashed: tuple[Hashed, ...]
    decisions: tuple[str | int, ...]


class Lost(msgspec.Struct, array_like=True, tag="L", frozen=True):
    """Here so many turns are missing (0: an unknown number), because the disk was full or slow, or
    a file is damaged."""

    turns: int


Record = Turn | Lost

encode = msgspec.msgpack.Encoder().encode
decode_record = msgspec.msgpack.Decoder(Record).decode
decode_head = msgspec.msgpack.Decoder(Head).decode


def decisions_of(effects: Iterable[GatewayEffect], naming: Naming) -> tuple[str | int, ...]:
    """What a gateway machine decided, in words that are the same live and in a replay: one entry an
    effect, in order; explanations are none. How many tokens went to clients is a number."""
    decisions: list[str | int] = []
    for effect in effects:
        match effect:
            case Deliver(emission):
                decisions.append(len(emission.request_ids))
            case SendToWorker(peer, message):
                decisions.append(f"{peer}: {_message(message, naming)}")
            case Explain():
                pass
            case AuditEnded(operation_id, _, problem):
                decisions.append(f"AuditEnded operation_id={operation_id} problem={problem!r}")
            case _:
                decisions.append(_scalars(effect, naming))
    return tuple(decisions)


def _message(message: ToWorker, naming: Naming) -> str:
    match message:
        case RequestsArrived(requests, ()):
            return "RequestsArrived " + " ".join(str(naming(each.request_id)) for each in requests)
        case (
            RequestsArrived(requests, tokens)
            | PrefillsArrived(requests, tokens)
            | ImportsArrived(requests, tokens)
        ):
            named = (
                f"{naming(each.request_id)}+{pulled}"
                for each, pulled in zip(requests, tokens, strict=True)
            )
            return f"{type(message).__name__} " + " ".join(named)
        case LeasesRenewed(request_ids):
            return f"LeasesRenewed {len(request_ids)}"
        case SessionReturning(_, _, _, digests, return_in_ns):
            # Without the tenant, which has another name in a journal.
            return f"SessionReturning {len(digests)} digests return_in_ns={return_in_ns}"
        case _:
            return _scalars(message, naming)


def _scalars(message: object, naming: Naming) -> str:
    """The kind of a message and its fields, but for what workers themselves had told before:
    numbers of blocks, digests, addresses."""
    kind: type = type(message)
    parts = [kind.__name__]
    for name in _field_names(kind):
        value = getattr(message, name)
        if name == "request_id":
            parts.append(str(naming(value)))
        elif name == "request_ids":
            parts += [str(naming(each)) for each in value]
        elif isinstance(value, Enum):
            parts.append(f"{name}={value.value}")
        elif isinstance(value, _SCALARS):
            parts.append(f"{name}={value!r}")
        elif isinstance(value, tuple):
            parts.append(f"{len(value)} {name}")
    return " ".join(parts)


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = kind.__match_args__
    return names
