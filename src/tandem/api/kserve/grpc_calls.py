"""A call of gRPC in the words of HTTP, and a refusal of HTTP in those of gRPC."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import grpc
import msgspec

from tandem.api.kserve.answers import InferenceError
from tandem.api.kserve.app_call import AppAnswer, AppCaller

INTERNAL = "internal error"
_CODES: Mapping[int, grpc.StatusCode] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    421: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
# Of HTTP's own, and of what says how a message is sent: none of it is the client's to say here.
_OWN_HEADERS = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "expect",
        "host",
        "inference-header-content-length",
        "origin",
        "te",
        "transfer-encoding",
    }
)
# What a refusal says beside its words.
_TRAILING = ("retry-after", "x-request-id")


class CallFailed(Exception):
    """A call that was refused, as gRPC says it."""

    def __init__(self, status: int, message: str, trailing: tuple[tuple[str, str], ...] = ()):
        super().__init__(message)
        self.code = _CODES.get(status, grpc.StatusCode.INTERNAL)
        self.message = message
        self.trailing = trailing


def caller_of(context: Any) -> AppCaller:
    """Who calls, with the metadata that are headers of HTTP."""
    headers = []
    for name, value in context.invocation_metadata() or ():
        if isinstance(value, str) and name not in _OWN_HEADERS and not name.startswith("grpc-"):
            headers.append((name.encode(), value.encode()))
    return AppCaller(_address(context.peer()), headers)


def _address(peer: str) -> tuple[str, int] | None:
    """gRPC writes `ipv4:127.0.0.1:4711` and `ipv6:[::1]:4711`, and some of it in per cent."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if port.isdecimal() else None


async def failure_of(answer: AppAnswer) -> CallFailed:
    """What a refusal of the application says."""
    body = await answer.body()
    try:
        message = msgspec.json.decode(body, type=InferenceError).error
    except msgspec.DecodeError:
        message = INTERNAL
    told = {name: answer.headers[name] for name in _TRAILING if name in answer.headers}
    return CallFailed(answer.status, message, tuple(told.items()))
