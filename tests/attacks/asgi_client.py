"""Clients of an ASGI application, without sockets: they send what body they like, and leave when
they are told to."""

import asyncio

from starlette.types import ASGIApp, Message


class Connection:
    """A client's side of a call after its body: silent, and gone once told so."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}


class Upload(Connection):
    """One call at the application. Its body may be `declared` to have so many bytes; unless it is
    `whole`, it does not end: after `body` nothing comes until the client is told to leave."""

    def __init__(
        self,
        body: bytes,
        *,
        declared: int | None = None,
        whole: bool = False,
        key: str = "",
        address: str = "",
    ) -> None:
        super().__init__()
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.reads = 0
        self._body = body
        self._whole = whole
        self._client = (address, 1)
        self._sent_headers = [(b"content-type", b"application/json")]
        if declared is not None:
            self._sent_headers.append((b"content-length", str(declared).encode()))
        if key:
            self._sent_headers.append((b"authorization", b"Bearer " + key.encode()))

    async def call(self, app: ASGIApp) -> None:
        path = "/v1/completions"
        scope = {"type": "http", "method": "POST", "path": path, "headers": self._sent_headers}
        scope |= {"query_string": b"", "root_path": "", "client": self._client}
        await app(scope, self.receive, self._send)

    async def receive(self) -> Message:
        self.reads += 1
        if self.reads > 1:
            return await super().receive()
        return {"type": "http.request", "body": self._body, "more_body": not self._whole}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)
        self.headers |= dict(message.get("headers", ()))
