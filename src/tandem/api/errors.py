"""Error answers: one shape, OpenAI's, for every status."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from starlette.responses import Response
from starlette.types import Scope

from tandem.api.clock_and_entropy import fresh_chance
from tandem.api.responses import ErrorAnswer, ErrorDetail
from tandem.facts.backoff import retry_after
from tandem.facts.errors import (
    EngineFailed,
    InvalidRequest,
    NotReady,
    Overloaded,
    PromptTooLong,
    RequestFailed,
    TandemError,
)

_TYPES = {
    401: "authentication_error",
    429: "rate_limit_error",
    500: "internal_server_error",
    503: "service_unavailable_error",
}


# Messages show what was sent, and what was sent may be megabytes long.
_MESSAGE_CHARS = 512
_PARAM_CHARS = 128
_CUT = " ... "


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused call: status, one clear line, the field at fault and a code for programs."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        detail = ErrorDetail(
            message=_shown(self.message, _MESSAGE_CHARS),
            type=_TYPES.get(self.status, "invalid_request_error"),
            param=None if self.param is None else _shown(self.param, _PARAM_CHARS),
            code=self.code,
        )
        return msgspec.json.encode(ErrorAnswer(error=detail))

    def response(self) -> Response:
        return Response(self.body(), self.status, dict(self.headers), media_type="application/json")


# Where the scope of a call has what it was refused with.
REFUSAL = "tandem.refusal"


def note_refusal(scope: Scope, refusal: Refusal) -> None:
    """For whoever writes down how calls end."""
    scope[REFUSAL] = refusal


def retry_header(after_s: float = 1.0) -> dict[str, str]:
    """When to come back: a little later for some than for others, so that not all come at once."""
    return {"Retry-After": retry_after(after_s, fresh_chance())}


class Refused(Exception):
    """Ends a call with `refusal`. For what only HTTP knows; deeper rooms raise `TandemError`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refusal_of(error: TandemError) -> Refusal:
    """What an error of the deeper rooms means in HTTP. What is not the client's to know stays
    here: `EngineFailed` names no cause, and any other error is an internal one."""
    if isinstance(error, PromptTooLong):
        return Refusal(400, str(error), "context_length_exceeded", error.field)
    if isinstance(error, InvalidRequest):
        return Refusal(400, str(error), "invalid_value", error.field)
    if isinstance(error, Overloaded):
        headers = retry_header(error.retry_after_s)
        code = "rate_limit_exceeded" if error.by.is_rate_limit else "overloaded"
        return Refusal(429, str(error), code, headers=headers)
    if isinstance(error, NotReady):
        return Refusal(503, str(error), "not_ready", headers=retry_header())
    if isinstance(error, RequestFailed):
        # Clients' libraries try a 500 again by themselves, unless they are told not to.
        headers = {"X-Should-Retry": "false"}
        return Refusal(500, str(error), "request_failed", headers=headers)
    if isinstance(error, EngineFailed):
        return Refusal(503, str(error) or "the engine failed", "engine_failed")
    return Refusal(500, "internal error", "internal_error")


def _shown(text: str, most_chars: int) -> str:
    """`text`, or its two ends: the remedy often stands last."""
    if len(text) <= most_chars:
        return text
    half = (most_chars - len(_CUT)) // 2
    return text[:half] + _CUT + text[-half:]
