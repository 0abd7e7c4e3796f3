"""A request as workers see it: small, and resumable anywhere from what it holds."""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from tandem.facts.adapter import Adapter
from tandem.facts.blocks import Salt, salt_of
from tandem.facts.client_fields import client_field
from tandem.facts.sampling import SamplingParameters

# A day.
LONGEST_DEADLINE_S = 86_400.0
# Of a session: which account's, and its name. Empty: of none.
SessionKey = Annotated[bytes, Meta(max_length=16)]


def session_key(account: str, session: str) -> bytes:
    """By which everybody but the client's gateway knows this session; empty for no session."""
    if not session:
        return b""
    named = f"{len(account)} {account}{session}".encode("utf-8", "surrogatepass")
    return blake2b(named, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to be continued.

    `prompt_tokens` are the client's: a tuple or, where they are very many, an array of "I".
    `output_tokens` are those already generated elsewhere (empty unless the request is resumed).
    Smaller `priority` runs sooner. `tenant` is whose KV this is: nobody else finds it, and it
    counts to that quota; `cache_salt` is the client's own way to part its prefixes. `account` is
    whose share of waiting places and turns it takes: the tenant, or the API key that belongs to
    none. `session` is the key of the session that it belongs to. Several answers to one prompt are
    several requests whose seeds differ: this is number `choice` of them. `deadline_s` is within
    what time the whole answer is wanted (0: no deadline); for a worker, within what time from now
    the next thing is due that its client waits for. With an `adapter` it is answered by the model
    that this makes of the base (None: by the base itself).
    """

    request_id: str
    prompt_tokens: "tuple[int, ...] | array[int]"
    sampling: SamplingParameters = field(default_factory=SamplingParameters)
    output_tokens: tuple[int, ...] = ()
    priority: int = client_field(
        0,
        "Larger runs later; below 0 only where the operator allows it. Default: 0.",
        body=Meta(ge=-(2**31), le=2**31 - 1),
    )
    cache_salt: str = client_field(
        "",
        "Requests share cached prefixes only under the same salt.",
        body=Meta(max_length=256),
    )
    deadline_s: float = client_field(
        0.0,
        "Seconds in which the whole answer is wanted. It is refused where the first token cannot "
        "come in time, and ends with what there is. Default: no deadline.",
        body=Meta(gt=0, le=LONGEST_DEADLINE_S),
    )
    tenant: str = ""
    account: str = ""
    choice: int = 0
    session: SessionKey = b""
    adapter: Adapter | None = None

    @property
    def salt(self) -> Salt:
        """Of the root of its blocks."""
        adapter = self.adapter.digest if self.adapter is not None else ""
        return salt_of(self.tenant, self.cache_salt, adapter)


def sooner(one_s: float, other_s: float) -> float:
    """Of two deadlines, either of which may be none (0)."""
    return min(one_s, other_s) if one_s and other_s else one_s or other_s


class FinishReason(StrEnum):
    """Why a sequence ended. STOP covers end-of-sequence, stop tokens and stop strings; DEADLINE is
    an answer cut off because no more time was given."""

    STOP = "stop"
    LENGTH = "length"
    DEADLINE = "deadline"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of a token that was chosen or given under the raw logits, its rank (1 = most
    likely), and the most likely alternatives, best first."""

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CascadeAnswer:
    """Which model of a cascade answered. `repeatable`: the request alone decided that, not the
    server's load or a failure, so that the same model would answer it again."""

    model: Literal["small", "large"]
    repeatable: bool = True


class TokenSource(NamedTuple):
    """Which worker drew a token, and whether a draft had guessed it."""

    worker: str
    drafted: bool


@dataclass(frozen=True, slots=True)
class TokenOutput:
    """What one sequence got since the last output.

    `logprobs` is parallel to `tokens`, or empty when none were asked for. `prompt_logprobs` are of
    the prompt's tokens but the first, and come once, with the first token; None: not now. A token
    that stops the sequence (end-of-sequence or stop token) is the last of `tokens`, with
    `stopped_by_token` set: it counts as generated but is not part of the text. `cached_tokens`
    counts the prompt tokens whose KV was found in the prefix cache. `degraded` says what of the
    request was cut so that it could be admitted, as "max_tokens=256". `cascade` is None where one
    model answers everything. `sources` are parallel to `tokens`, or empty where nobody wants them.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stopped_by_token: bool = False
    cached_tokens: int = 0
    degraded: str = ""
    cascade: CascadeAnswer | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    sources: tuple[TokenSource, ...] = ()
