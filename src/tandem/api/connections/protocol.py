"""One HTTP connection, bounded before anybody looks at a key: bytes, fields and time of a request
head; and what is no HTTP is refused in OpenAI's shape. What all connections share is in `gate`.

The server is uvicorn's, which has none of these limits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, Final, cast

import httptools
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from tandem.api.auth import REQUEST_ID_HEADER, RequestIds
from tandem.api.clock_and_entropy import fresh_id
from tandem.api.connections.gate import ConnectionGate
from tandem.api.connections.table import ConnectionPlace
from tandem.api.errors import Refusal, error_response, retry_header

# What is answered where there is no place for anything else.
PROBE_PATHS: Final = frozenset({"/health", "/ping", "/ready", "/metrics"})
# Requests that may wait behind the one that is being answered, on one connection. A packet holds
# thousands, and each takes a hundred times its bytes.
PIPELINED: Final = 32
# What one of these takes besides its bytes, and each of its fields.
REQUEST_BYTES: Final = 4 << 10
FIELD_BYTES: Final = 192
# Where those of one connection hold more, nothing is read of it before an answer is sent.
AHEAD_BYTES: Final = 64 << 10
# Who is refused gets so long to read why, and may send so much in the meantime.
LINGER_S: Final = 2.0
LINGER_BYTES: Final = 1 << 20
# A client that takes nothing of its answer for so long is gone.
STALLED_S: Final = 60.0

_TOO_SLOW = Refusal(408, "the request head did not arrive in time", "head_timeout")
_NOT_HTTP = Refusal(400, "this is not a valid HTTP request", "invalid_http")


def bounded_connections(gate: ConnectionGate) -> Callable[..., "BoundedConnection"]:
    """Makes the connections of a server, for `uvicorn.Config(http=...)`."""
    return partial(BoundedConnection, gate)


class BoundedConnection(HttpToolsProtocol):
    """See the module. `gate` is shared; the rest is uvicorn's."""

    def __init__(self, gate: ConnectionGate, **server: Any) -> None:
        super().__init__(**server)
        self._gate = gate
        self._limits = gate.limits
        # Bytes that the parser has seen since it last made something of them: a head, a piece of
        # a body, an end. It keeps them (a header, a trailer) or not (blanks around a chunk).
        self._unparsed_bytes = 0
        self._reads_head = True
        self._fields = 0
        # The request asked for another protocol: it is answered as it is, and is the last.
        self._is_last = False
        self._refusal: Refusal | None = None
        self._refused = False
        self._discarded_bytes = 0
        self._only_probes = False
        # What each request holds that is not answered yet, the newest first: nothing, but where
        # earlier answers keep it waiting.
        self._held_bytes: deque[int] = deque()
        # The request that is being answered; uvicorn's `cycle` is the one that was read last.
        self._answering: RequestResponseCycle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        place = self._gate.connection_arrived(self, self.client[0] if self.client else "")
        if place is ConnectionPlace.RESERVE:
            self._only_probes = True
            self.app = _only_probes(self.app)
        elif place is ConnectionPlace.NONE:
            self._refused = True
            self.transport.write(_raw(_busy()))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gate.connection_left(self)
        if self._stalled is not None:
            self._stalled.cancel()
        _mark_unread([self._answering, *(each for each, _ in self.pipeline)])
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        limit = self._limits.head_bytes
        while data and not (self._refused or (self._is_last and self._reads_head)):
            part, data = data[: limit - self._unparsed_bytes], data[limit - self._unparsed_bytes :]
            self._unparsed_bytes += len(part)
            self._unset_keepalive_if_required()
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserUpgrade as upgrade:
                # The parser gave up before the body, which is of the old protocol still.
                data = _framing(self.headers) + part[upgrade.args[0] :] + data
                self.parser = _body_parser(self)
            except httptools.HttpParserError:
                self._refuse(self._refusal or _NOT_HTTP)
            if self._unparsed_bytes >= limit and not self._refused:
                self._refuse(_too_large(f"{limit} bytes"))
        held_bytes = sum(self._held_bytes)
        self._gate.holds_unparsed(self, self._unparsed_bytes + held_bytes)
        if self.pipeline and held_bytes <= AHEAD_BYTES and not self.transport.is_closing():
            # Uvicorn would read no more before the answer, and so not hear that the client leaves.
            self.flow.resume_reading()
        if data:
            self._discarded_bytes += len(data)
            if self._discarded_bytes > LINGER_BYTES:
                self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._fields >= self._limits.head_fields:
            self._refusal = _too_large(f"{self._limits.head_fields} fields")
            raise ValueError(self._refusal.message)
        self._fields += 1
        # Trailers of a body come here, too. No proxy has looked at them, and nobody needs them.
        if self._reads_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._unparsed_bytes = 0
        self._reads_head = False
        self._gate.head_completed(self)
        if not self.pipeline:
            self._answering = self.cycle
        self._is_last = self.parser.should_upgrade()
        if self._only_probes or self._is_last:
            self.cycle.keep_alive = False
        if len(self.pipeline) > PIPELINED:
            raise ValueError("too many requests before an answer")
        waits = self.pipeline or self.flow.write_paused
        self._held_bytes.appendleft(_held_by_head(self.headers) if waits else 0)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        if self._held_bytes and self._held_bytes[0]:
            self._held_bytes[0] += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed_bytes = 0
        if self.parser.should_upgrade():
            return  # Only its head is; see `_body_parser`.
        self._reads_head = True
        self._fields = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        if self._answering is not None:
            # Whoever was refused unread may stay for its next request; its body may not.
            self._answering.body = bytearray()
        if self._held_bytes and self._held_bytes.pop():
            self._gate.holds_unparsed(self, self._unparsed_bytes + sum(self._held_bytes))
        self._answering = None if was_last else self.pipeline[-1][0]
        super().on_response_complete()
        if was_last:
            # Bytes of a body that nobody wants any more do not buy time.
            self._gate.awaits_head(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def head_overdue(self) -> None:
        """No complete head in its time."""
        if self._refused:
            return
        if self._unparsed_bytes and self._may_answer():
            self._refuse(_TOO_SLOW)
        else:
            self.cut()

    def cut(self) -> None:
        """Close it at once; who does not read gets no time for that."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _may_answer(self) -> bool:
        """Whether what is written now would be read as the answer to what was sent last."""
        if self.cycle is None or self.cycle.response_complete:
            return self._reads_head
        return not (self._reads_head or self.cycle.response_started or self.pipeline)

    def _refuse(self, refusal: Refusal) -> None:
        """Say why, if the client can tell what that is about, and close. What it still sends is
        read for a moment and thrown away: a connection that is closed over unread bytes is reset,
        and the client would never see the answer."""
        answers = self._may_answer()
        self._refused = True
        _mark_unread([self._answering, *(each for each, _ in self.pipeline)])
        if not answers:
            self.cut()
            return
        self.transport.write(_raw(refusal))
        self.transport.write_eof()
        self.loop.call_later(LINGER_S, self.transport.abort)


def _body_parser(connection: BoundedConnection) -> httptools.HttpRequestParser:
    """For the body of a request that asks for another protocol, after `_framing`. Parsers stop at
    the head of such a one; what came next would be a new request to them, whoever wrote it."""
    return httptools.HttpRequestParser(
        SimpleNamespace(
            on_body=connection.on_body, on_message_complete=connection.on_message_complete
        )
    )


def _framing(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A head that says no more than how long a body is."""
    kept_headers = (b"content-length", b"transfer-encoding")
    lines = [name + b": " + value for name, value in headers if name in kept_headers]
    return b"\r\n".join([b"POST / HTTP/1.1", *lines, b"", b""])


def _held_by_head(headers: Sequence[tuple[bytes, bytes]]) -> int:
    return REQUEST_BYTES + sum(FIELD_BYTES + len(name) + len(value) for name, value in headers)


def _mark_unread(cycles: Sequence[RequestResponseCycle | None]) -> None:
    """To the request that is being answered, and to those that wait behind it."""
    for cycle in cycles:
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()


def _raw(refusal: Refusal) -> bytes:
    """The whole answer, which ends the connection."""
    body = refusal.openai_body()
    headers = {
        **refusal.headers,
        REQUEST_ID_HEADER.lower(): fresh_id("req-"),
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    }
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _busy() -> Refusal:
    message = "the server has as many connections as it may, in all or from this address"
    return Refusal(503, message, "too_many_connections", headers=retry_header())


def _too_large(most: str) -> Refusal:
    return Refusal(431, f"the request head has more than {most}", "head_too_large")


def _only_probes(app: ASGIApp) -> ASGIApp:
    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await error_response(scope, _busy())(scope, receive, send)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        answering = app if scope["path"] in PROBE_PATHS else RequestIds(refuse)
        await answering(scope, receive, send)

    return answer
