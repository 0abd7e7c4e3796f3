"""Clients that attack a server: raw bytes on a socket, plain calls over HTTP, and calls of an ASGI
application without any socket."""

import asyncio
import http.client
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import httpx2
from starlette.types import ASGIApp, Message

from tests.api.server import serving

PATIENCE_S = 20.0
JSON = "Content-Type: application/json"


@dataclass(frozen=True)
class Answer:
    """`sent_bytes` were taken before the server closed. Status 0: it gave no answer."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent_bytes: int = 0

    @property
    def error(self) -> dict:
        """The error, which must have OpenAI's shape."""
        assert self.headers["content-type"] == "application/json"
        assert self.headers["x-request-id"]
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(self.body) < 2048
        return error

    @property
    def refusal(self) -> tuple[int, str]:
        """The status, and the code of the error."""
        return self.status, self.error["code"]


# Over HTTP as it should be.


def call(
    port: int, path: str, body: bytes | None = None, *, key: str = "", patience_s: float = 60.0
) -> Answer:
    """A GET, or a POST of a body. Status 0 where the connection broke or nothing came in time."""
    headers = {"Content-Type": "application/json"}
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience_s)
    try:
        connection.request("GET" if body is None else "POST", path, body, headers)
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())
    except OSError:
        return Answer(0, {}, b"")
    finally:
        connection.close()


@contextmanager
def browsing(app: ASGIApp) -> Iterator[httpx2.Client]:
    """A well-behaved client of the application on a real socket."""
    with (
        serving(app) as port,
        httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        yield client


# Over a socket, with whatever bytes.


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=(source, 0))


@contextmanager
def crowd(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections at once."""
    with ExitStack() as there:
        yield [there.enter_context(connected(port)) for _ in range(count)]


def head(path: str, *headers: str, method: str = "GET", host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def posted(path: str, body: bytes, *headers: str, host: str = "localhost") -> bytes:
    """A whole request, with a body of the declared length; its type is among the `headers`."""
    length = f"Content-Length: {len(body)}"
    return head(path, length, *headers, method="POST", host=host) + body


def ask(port: int, data: bytes, source: str = "127.0.0.1") -> Answer:
    """The answer to `data` on a connection of its own."""
    with connected(port, source) as connection:
        return ask_on(connection, data)


def ask_on(connection: socket.socket, data: bytes) -> Answer:
    connection.sendall(data)
    return read_answer(connection)


def pour(port: int, start: bytes, piece: bytes, most_bytes: int) -> Answer:
    """Sends `start`, then `piece` for as long as the server takes it, at most `most_bytes`."""
    with connected(port) as connection:
        connection.sendall(start)
        sent_bytes = 0
        with suppress(ConnectionError):
            while sent_bytes < most_bytes and not select.select([connection], [], [], 0)[0]:
                sent_bytes += connection.send(piece)
        answer = read_answer(connection)
        return Answer(answer.status, answer.headers, answer.body, sent_bytes)


def read_answer(connection: socket.socket) -> Answer:
    data = b""
    with suppress(ConnectionError):
        while _parsed(data) is None and (part := connection.recv(1 << 16)):
            data += part
    return _parsed(data) or Answer(0, {}, data)


def received(connection: socket.socket) -> bytes:
    """All that comes before the server closes it."""
    data = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def is_closed(connection: socket.socket) -> bool:
    """Waits for the end of it."""
    received(connection)
    return True


def _parsed(data: bytes) -> Answer | None:
    start, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    first, *rest = start.decode("latin-1").split("\r\n")
    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in rest}
    if len(body) < int(headers.get("content-length", "0")):
        return None
    return Answer(int(first.split()[1]), headers, body)


# Without a socket.


class Connection:
    """A client's side of a call after its body: silent until it leaves."""

    def __init__(self) -> None:
        self._gone = asyncio.Event()

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}


class Upload(Connection):
    """One call of the application. Its body may be `declared` to have so many bytes; unless it is
    `whole`, it does not end: after `body` nothing comes until the client leaves."""

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
