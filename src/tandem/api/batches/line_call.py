"""One request of a batch, as a call of the very endpoint that it names, within this process: with
the identity of whoever made the batch, in the background, and without a connection."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Raw
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope

from tandem.api.auth import BACKGROUND, KEY, TENANT
from tandem.api.batches.lines import InputLine, LineResponse, ReadLine
from tandem.api.batches.records import BatchRecord
from tandem.api.errors import Refusal
from tandem.api.errors import error_response as answer_of

logger = logging.getLogger(__name__)

# Worth another try: the server has no room now, is not ready, or is about to end.
_LATER = frozenset({429, 503})
_SHORTEST_WAIT_S, _LONGEST_WAIT_S = 0.1, 60.0


@dataclass(slots=True)
class _Collected:
    """What an endpoint sends."""

    status: int = 0
    headers: Headers = field(default_factory=Headers)
    body: bytearray = field(default_factory=bytearray)

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = Headers(raw=message.get("headers", []))
        else:
            self.body += message.get("body", b"")


@dataclass(frozen=True, slots=True)
class TryAgain:
    """There is no answer now; at the earliest after so many seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class LineCaller:
    """Calls `app`, which serves endpoints and asks for no key: whether its owner may still come in,
    `admits` says of a tenant and the digest of a key."""

    app: ASGIApp
    admits: Callable[[str, str], bool]

    async def call(self, line: ReadLine, batch: BatchRecord) -> LineResponse | TryAgain:
        """What the endpoint answers, errors as well."""
        scope = _scope_of(line.sent, batch)
        collected = _Collected()
        refusal = self._refusal_of(line, batch)
        app = self.app if refusal is None else answer_of(scope, refusal)
        body: list[bytes] = [bytes(line.sent.body)]
        never = asyncio.Event()

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            await never.wait()
            return {"type": "http.disconnect"}

        async def run() -> None:
            await app(scope, receive, collected.take)

        calling = asyncio.ensure_future(run())
        try:
            await asyncio.wait({calling})
        finally:
            if not calling.done():
                calling.cancel()
                await asyncio.wait({calling})
        if calling.cancelled():
            return TryAgain(_SHORTEST_WAIT_S)
        if (failure := calling.exception()) is not None:
            logger.error("a request of %s failed", batch.batch_id, exc_info=failure)
            collected = _Collected()
            await answer_of(scope, _FAULT)(scope, receive, collected.take)
        if collected.status in _LATER:
            return TryAgain(_wait_s(collected.headers))
        return LineResponse(
            status_code=collected.status,
            request_id=collected.headers.get("x-request-id", ""),
            body=Raw(bytes(collected.body) or b"null"),
        )

    def _refusal_of(self, line: ReadLine, batch: BatchRecord) -> Refusal | None:
        if not self.admits(batch.tenant, batch.key.removeprefix("key ")):
            problem = "the API key that the batch was made with is not valid any more"
            return Refusal(401, problem, "invalid_api_key")
        if line.head.stream:
            return Refusal(400, "stream: a batch streams no answers", "invalid_value", "stream")
        return None


_FAULT = Refusal(500, "internal error", "internal_error")


def _scope_of(line: InputLine, batch: BatchRecord) -> Scope:
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": line.url,
        "raw_path": line.url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(bytes(line.body))).encode()),
        ],
        "client": None,
        "server": None,
        BACKGROUND: True,
    }
    if batch.tenant:
        scope[TENANT] = batch.tenant
    if batch.key:
        scope[KEY] = batch.key
    return scope


def _wait_s(headers: Headers) -> float:
    try:
        wanted_s = float(headers.get("retry-after", "1"))
    except ValueError:
        wanted_s = 1.0
    return min(max(wanted_s, _SHORTEST_WAIT_S), _LONGEST_WAIT_S)
