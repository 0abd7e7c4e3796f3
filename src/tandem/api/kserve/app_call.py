"""A call of the HTTP application from within its process, by another door: what it sends comes back
as the application sends it, and leaving ends it as a client's leaving does.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message

logger = logging.getLogger(__name__)
# So many parts of an answer may wait for a client that reads slowly.
_WAITING_PARTS = 4
Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class AppCaller:
    """Who calls: its address, and the headers that it sends with every call."""

    client: tuple[str, int] | None
    headers: Headers


@dataclass(slots=True)
class AppRequest:
    """What is called, with the body, which is let go once the application has it."""

    method: str
    path: str
    headers: Headers = ()
    body: bytes = b""

    def take_body(self) -> bytes:
        body, self.body = self.body, b""
        return body


class BrokenAnswer(Exception):
    """The application failed before all of its answer was sent. The log says why."""


@dataclass(slots=True)
class AppAnswer:
    """An answer whose head has come. Reading it raises `BrokenAnswer`."""

    status: int
    headers: Mapping[str, str]
    _exchange: "_Exchange" = field(repr=False)

    async def parts(self) -> AsyncIterator[bytes]:
        """Its body, as it comes."""
        while (part := await self._exchange.parts.get()) is not None:
            if part:
                yield part
        if not self._exchange.is_whole:
            raise BrokenAnswer

    async def body(self) -> bytes:
        return b"".join([part async for part in self.parts()])


class _Exchange:
    """The two sides of one call. `is_whole` once all of the answer was sent."""

    def __init__(self, request: AppRequest) -> None:
        self.head: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue(_WAITING_PARTS)
        self.is_whole = False
        self._request: AppRequest | None = request
        self._left = asyncio.Event()

    async def receive(self) -> Message:
        request, self._request = self._request, None
        if request is not None:
            return {"type": "http.request", "body": request.take_body(), "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.head.set_result(message)
            return
        await self.parts.put(message.get("body", b""))
        self.is_whole = not message.get("more_body", False)

    async def run(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        """The whole call; whoever reads the answer learns of its end."""
        try:
            await app(scope, self.receive, self.send)
        finally:
            if not self._left.is_set():
                await self.parts.put(None)

    def leave(self) -> None:
        self._left.set()
        # Whoever waits to put more goes on.
        while not self.parts.empty():
            self.parts.get_nowait()


@asynccontextmanager
async def app_call(
    app: ASGIApp, request: AppRequest, caller: AppCaller
) -> AsyncIterator[AppAnswer]:
    """The answer, while the block runs; the call has ended when the block has. Raises
    `BrokenAnswer`."""
    exchange = _Exchange(request)
    running = asyncio.create_task(exchange.run(app, _scope(request, caller)))
    try:
        await asyncio.wait((running, exchange.head), return_when=asyncio.FIRST_COMPLETED)
        if not exchange.head.done():
            raise BrokenAnswer
        head = exchange.head.result()
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in head["headers"]}
        yield AppAnswer(head["status"], sent, exchange)
    finally:
        exchange.leave()
        # After the answer the application only tidies up, and is left to it.
        if not exchange.is_whole:
            running.cancel()
        await asyncio.wait((running,))
        if not running.cancelled() and (error := running.exception()):
            logger.error("%s %s failed", request.method, request.path, exc_info=error)


def _scope(request: AppRequest, caller: AppCaller) -> dict[str, Any]:
    length = (b"content-length", b"%d" % len(request.body))
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "2",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": request.path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [*caller.headers, *request.headers, length],
        "client": caller.client,
        "server": None,
    }
