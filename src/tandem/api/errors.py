"""Error answers: one shape for every status, OpenAI's, or that of Anthropic's API or of the Open
Inference Protocol where these were called."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET
from starlette.responses import Response
from starlette.types import Scope

from tandem.api.clock_and_entropy import fresh_chance
from tandem.api.kserve.answers import InferenceError
from tandem.api.messages_responses import MessageError, MessageErrorCode, MessageErrorDetail
from tandem.api.responses import ErrorAnswer, ErrorDetail
from tandem.facts.backoff import retry_after
from tandem.facts.errors import (
    EngineFailed,
    InvalidRequest,
    NotFound,
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
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "api_error",
}
# By the code, whichever status it has: it is worth another try.
_ANTHROPIC_OVERLOADED = ("overloaded", "not_ready", "too_many_connections")
_ANTHROPIC_PATH = "/v1/messages"
_INFERENCE_PATH = "/v2"
# Where the scope of a call has its request id.
REQUEST_ID = "tandem.request_id"

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

    def detail(self) -> ErrorDetail:
        """As clients see it."""
        return ErrorDetail(
            message=_shown(self.message, _MESSAGE_CHARS),
            type=_TYPES.get(self.status, "invalid_request_error"),
            param=None if self.param is None else _shown(self.param, _PARAM_CHARS),
            code=self.code,
        )

    def openai_body(self) -> bytes:
        return msgspec.json.encode(ErrorAnswer(error=self.detail()))

    def inference_body(self) -> bytes:
        """As the Open Inference Protocol has it: a line alone, which names the field."""
        return msgspec.json.encode(InferenceError(error=_shown(self.message, _MESSAGE_CHARS)))

    def anthropic_body(self, request_id: str) -> bytes:
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error")
        detail = MessageErrorDetail(
            type="overloaded_error" if self.code in _ANTHROPIC_OVERLOADED else kind,
            message=_shown(self.message, _MESSAGE_CHARS),
            details=UNSET if self.code is None else MessageErrorCode(error_code=self.code),
        )
        return msgspec.json.encode(MessageError(error=detail, request_id=request_id))


# Where the scope of a call has what it was refused with.
REFUSAL = "tandem.refusal"


def calls_anthropic(scope: Scope) -> bool:
    """Whether the path is one of Anthropic's API, also under a prefix that the application is
    mounted at."""
    return _is_under(scope, _ANTHROPIC_PATH)


def _is_under(scope: Scope, prefix: str) -> bool:
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path == prefix or path.startswith(f"{prefix}/")


def error_response(scope: Scope, refusal: Refusal) -> Response:
    """The answer to a refused call, in the shape of the API that it called."""
    note_refusal(scope, refusal)
    if calls_anthropic(scope):
        body = refusal.anthropic_body(scope.get(REQUEST_ID, ""))
    elif _is_under(scope, _INFERENCE_PATH):
        body = refusal.inference_body()
    else:
        body = refusal.openai_body()
    return Response(body, refusal.status, dict(refusal.headers), media_type="application/json")


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
    if isinstance(error, NotFound):
        return Refusal(404, str(error), "not_found", error.field)
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
