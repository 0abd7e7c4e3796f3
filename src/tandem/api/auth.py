"""Auth: the ASGI middleware around every call, for API keys, for the web pages and host names that
may call, and for request ids."""

import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandem.api.call_ids import CALL_IDS, CallIds
from tandem.api.clock_and_entropy import fresh_id
from tandem.api.config import ApiConfig
from tandem.api.connections.table import client_network
from tandem.api.errors import REQUEST_ID, Refusal, calls_anthropic, error_response
from tandem.api.key_ring import KeyRing, digest_of
from tandem.api.page.files import PAGE_PATHS
from tandem.facts.rate_limits import background_account
from tandem.facts.tracing import TraceContext

# Whatever is not named here needs a key, under any prefix the application is mounted at.
OPEN_PATHS = frozenset(
    {
        "/health",
        "/ping",
        "/ready",
        "/load",
        "/metrics",
        "/version",
        "/docs",
        "/openapi.json",
        "/v2/health/live",
        "/v2/health/ready",
    }
    | PAGE_PATHS
)
# What is asked again and again, by probes and by pages that are open: neither logged, traced nor
# counted.
LOOKED_AT_PATHS = OPEN_PATHS | {"/tandem/overview", "/tandem/requests"}
# Where the scope of a call says whose key it came with.
TENANT = "tandem.tenant"
# And which key that was: a digest, which no tenant is called.
KEY = "tandem.key"
_KEY_MISSING = "no API key; send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'"
REQUEST_ID_HEADER = "X-Request-Id"
# As clients of Anthropic's API read it.
_ANTHROPIC_REQUEST_ID_HEADER = "Request-Id"
# Set where that is an operator's.
OPERATOR = "tandem.operator"
# Set where nobody waits for the answer: it gives way to all others.
BACKGROUND = "tandem.background"
# The span of the call, where calls are traced.
TRACE = "tandem.trace"
# And the status of its answer, and what makes further headers of that.
STATUS = "tandem.status"
ANSWER_HEADERS = "tandem.answer_headers"
_REQUEST_ID_CHARS = 128
# These change nothing here, whoever asks.
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SHOWN_CHARS = 64
_HOST_CHARS = 262
_REMEMBERED_HOSTS = 64


class RequestIds:
    """Gives every answer an `X-Request-Id`: the client's if it sent a valid one, else a new one;
    and the headers that the scope's `ANSWER_HEADERS` makes when the answer begins, if it is there.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent_id = Headers(scope=scope).get(REQUEST_ID_HEADER, "")
        is_valid = sent_id and is_printable(sent_id, _REQUEST_ID_CHARS)
        request_id = sent_id if is_valid else fresh_id("req-")
        scope[REQUEST_ID] = request_id
        trace: TraceContext | None = scope.get(TRACE)
        CALL_IDS.set(CallIds(request_id, "" if trace is None else trace.trace_id))

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers[REQUEST_ID_HEADER] = request_id
                if calls_anthropic(scope):
                    headers[_ANTHROPIC_REQUEST_ID_HEADER] = request_id
                scope[STATUS] = message["status"]
                if more := scope.get(ANSWER_HEADERS):
                    headers.update(more())
            await send(message)

        await self._app(scope, receive, send_with_id)


class OriginCheck:
    """Refuses foreign web pages that use a browser on this machine as their client.

    A call that changes something (POST) and names an `Origin` comes from a page: it must be one of
    `allowed_origins`, or a page of this server. Where `allowed_hosts` are given, the Host header
    must be one of them, an address in numbers or `localhost`: a page whose name was made to mean
    this machine's address (DNS rebinding) would else count as a page of this server.
    """

    def __init__(
        self, app: ASGIApp, allowed_origins: Sequence[str], allowed_hosts: Sequence[str]
    ) -> None:
        self._app = app
        self._origins = frozenset(allowed_origins)
        self._hosts = frozenset(name.lower() for name in allowed_hosts)
        # A client sends the same name with every call.
        self._is_own = lru_cache(_REMEMBERED_HOSTS)(self._is_own_name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await error_response(scope, refusal)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        hosts = headers.getlist("host")
        foreign = [host for host in hosts if not self._is_own(host)] if self._hosts else None
        if foreign:
            message = (
                f"this server is not called {foreign[0][:_SHOWN_CHARS]!r}; "
                "who runs it can allow that name with --allowed-hosts"
            )
            return Refusal(421, message, "host_not_allowed")
        if scope["method"] in _SAFE_METHODS or "*" in self._origins:
            return None
        for origin in headers.getlist("origin"):
            # Without the scheme, which a proxy in front may have changed.
            page_host = origin.partition("://")[2].lower()
            if origin not in self._origins and [page_host] != [host.lower() for host in hosts]:
                message = (
                    f"pages of {origin[:_SHOWN_CHARS]!r} may not call this server; "
                    "who runs it can allow them with --allowed-origins"
                )
                return Refusal(403, message, "origin_not_allowed")
        return None

    def _is_own_name(self, host: str) -> bool:
        if len(host) > _HOST_CHARS:
            return False
        name = _without_port(host).lower().removesuffix(".")
        if name == "localhost" or name in self._hosts or "*" in self._hosts:
            return True
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.endswith(".localhost")
        return True


class ApiKeys:
    """Lets calls through only with a key on the ring, if there is any; probes and docs stay
    open. A key on the ring of `operators` may come in as well, and is marked as such."""

    def __init__(self, app: ASGIApp, ring: KeyRing, operators: KeyRing) -> None:
        self._app = app
        self._ring = ring
        self._operators = operators

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        sent = _sent_key(Headers(scope=scope))
        if sent and self._operators.owner_of(sent) is not None:
            scope[OPERATOR] = True
            scope[KEY] = f"key {digest_of(sent).hex()}"
            await self._app(scope, receive, send)
            return
        if self._ring.is_open:
            await self._app(scope, receive, send)
            return
        owner = self._ring.owner_of(sent) if sent else None
        if owner is not None:
            scope[TENANT] = owner
            scope[KEY] = f"key {digest_of(sent).hex()}"
            await self._app(scope, receive, send)
            return
        message = "the API key is not valid" if sent else _KEY_MISSING
        headers = {"WWW-Authenticate": "Bearer"}
        refusal = Refusal(401, message, "invalid_api_key", headers=headers)
        await error_response(scope, refusal)(scope, receive, send)


def comes_in(headers: Headers, ring: KeyRing, operators: KeyRing) -> bool:
    """Whether `ApiKeys` with these rings would let a call with these headers through."""
    sent = _sent_key(headers)
    rings = (ring, operators)
    return ring.is_open or bool(sent and any(each.owner_of(sent) is not None for each in rings))


def operator_ring(config: ApiConfig) -> KeyRing:
    """The keys of operators. Raises `InvalidConfiguration` for a file that has none."""
    return KeyRing(ApiConfig(key_files=config.operator_key_files))


def _sent_key(headers: Headers) -> bytes:
    """As clients of OpenAI's API send it, else as those of Anthropic's do."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = headers.get("x-api-key", "")
    return key.strip().encode("latin-1")


def account_of(scope: Scope) -> str:
    """Whose share of intake and places a call takes: its tenant's, its key's, or its client's."""
    client = scope.get("client")
    own = scope.get(TENANT) or scope.get(KEY) or ""
    if scope.get(BACKGROUND):
        return background_account(own)
    return own or f"address {client_network(client[0]) if client else ''}"


def _without_port(host: str) -> str:
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]


def is_printable(text: str, most_chars: int) -> bool:
    """Whether a header is plain ASCII of at most so many characters; an empty one is."""
    return len(text) <= most_chars and text.isascii() and text.isprintable()
