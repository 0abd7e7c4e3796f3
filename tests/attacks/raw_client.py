"""A client that sends what bytes it likes, and says what came back."""

import json
import select
import socket
from contextlib import suppress
from dataclasses import dataclass

PATIENCE_S = 20.0


@dataclass(frozen=True)
class Told:
    """One answer. `sent_bytes` were taken before the server closed."""

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


def connected(port: int, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=(source, 0))


def head(path: str, *headers: str, method: str = "GET", host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def ask(port: int, data: bytes, source: str = "127.0.0.1") -> Told:
    """The answer to `data` on a connection of its own."""
    with connected(port, source) as connection:
        connection.sendall(data)
        return read_answer(connection)


def pour(port: int, start: bytes, piece: bytes, most_bytes: int) -> Told:
    """Sends `start`, then `piece` for as long as the server takes it, at most `most_bytes`."""
    with connected(port) as connection:
        connection.sendall(start)
        sent_bytes = 0
        with suppress(ConnectionError):
            while sent_bytes < most_bytes and not select.select([connection], [], [], 0)[0]:
                sent_bytes += connection.send(piece)
        answer = read_answer(connection)
        return Told(answer.status, answer.headers, answer.body, sent_bytes)


def read_answer(connection: socket.socket) -> Told:
    """Status 0: it was closed without an answer."""
    data = b""
    with suppress(ConnectionError):
        while _parsed(data) is None and (part := connection.recv(1 << 16)):
            data += part
    return _parsed(data) or Told(0, {}, data)


def is_closed(connection: socket.socket) -> bool:
    """Waits for the end of it."""
    with suppress(ConnectionError):
        while connection.recv(1 << 16):
            pass
    return True


def _parsed(data: bytes) -> Told | None:
    start, end, body = data.partition(b"\r\n\r\n")
    if not end:
        return None
    first, *rest = start.decode("latin-1").split("\r\n")
    headers = {line.partition(":")[0].lower(): line.partition(":")[2].strip() for line in rest}
    if len(body) < int(headers.get("content-length", "0")):
        return None
    return Told(int(first.split()[1]), headers, body)
