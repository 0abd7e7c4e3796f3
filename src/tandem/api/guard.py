"""Who may come in, and under which request id? The two ASGI layers around every call."""

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.api.ambient import fresh_id
from tandem.api.refusal import Refusal

REQUEST_ID_HEADER = "X-Request-Id"
_REQUEST_ID_CHARS = 128
# Whatever is not named here needs a key, under any prefix the application is mounted at.
OPEN_PATHS = frozenset({"/health", "/ready", "/metrics", "/version", "/docs", "/openapi.json"})
# Where the scope of a call says whose key it came with.
TENANT = "tandem.tenant"
_KEY_MISSING = "no API key; send it as 'Authorization: Bearer KEY'"


class RequestIds:
    """Gives every answer an `X-Request-Id`: the client's if it sent a valid one, else a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent_id = Headers(scope=scope).get(REQUEST_ID_HEADER)
        valid = sent_id is None or _is_valid_id(sent_id)
        request_id = sent_id if valid and sent_id else fresh_id("req-")
        scope["tandem.request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        if valid:
            await self._app(scope, receive, send_with_id)
            return
        problem = f"{REQUEST_ID_HEADER} must be 1 to {_REQUEST_ID_CHARS} printable ASCII characters"
        refusal = Refusal(400, problem, "invalid_value", REQUEST_ID_HEADER)
        await refusal.response()(scope, receive, send_with_id)


class ApiKeys:
    """Lets calls through only with one of the keys; probes and docs stay open. `tenants` says whose
    a key is, and needs not be among `keys`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], tenants: Mapping[str, str]) -> None:
        self._app = app
        owners = dict.fromkeys(keys, "") | dict(tenants)
        self._owners = [(_digest(key.encode()), owner) for key, owner in owners.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        owner = self._owner_of(key.strip()) if scheme.lower() == "bearer" else None
        if owner is not None:
            scope[TENANT] = owner
            await self._app(scope, receive, send)
            return
        message = "the API key is not valid" if key else _KEY_MISSING
        headers = {"WWW-Authenticate": "Bearer"}
        refusal = Refusal(401, message, "invalid_api_key", headers=headers)
        await refusal.response()(scope, receive, send)

    def _owner_of(self, key: str) -> str | None:
        # Digests of equal length, and every key compared: the time tells nothing about them.
        digest = _digest(key.encode("latin-1"))
        found = [owner for known, owner in self._owners if hmac.compare_digest(digest, known)]
        return found[0] if found else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _is_valid_id(request_id: str) -> bool:
    return (
        0 < len(request_id) <= _REQUEST_ID_CHARS
        and request_id.isascii()
        and request_id.isprintable()
    )
