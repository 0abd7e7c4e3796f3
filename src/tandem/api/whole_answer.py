"""A JSON answer that does not stream, sent in pieces as fast as its client reads: neither the
server nor the connection holds a second copy of it, and no piece holds the event loop for long."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.api.answer_budget import AnswerBudget, HeldAnswer
from tandem.api.refusal import Refused
from tandem.api.sse import ClientGone, while_connected

# Enough for almost every answer, which then is one piece.
CHUNK_BYTES = 64 << 10
# The loop goes round after so much was sent or encoded in one go.
TURN_BYTES = 1 << 20
# A token id or a character, as JSON, at most.
ID_BYTES = 8
CHAR_BYTES = 6
# Texts of one token each are mostly objects; so many are joined.
_PARTS = 128

_encoder = msgspec.json.Encoder()


class JsonList:
    """A list whose items are kept as JSON, joined now and then."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._items: list[bytes] = []
        self._items_bytes = 0

    def add(self, items: bytes) -> None:
        """One item, or several with commas between."""
        self._items.append(items)
        self._items_bytes += len(items)
        if self._items_bytes > CHUNK_BYTES:
            self._chunks += [b",".join(self._items), b","]
            self._items, self._items_bytes = [], 0

    def pieces(self) -> list[bytes]:
        """The whole list, with its brackets."""
        chunks = [*self._chunks, b",".join(self._items)]
        if not self._items and self._chunks:
            del chunks[-2:]
        return [b"[", *chunks, b"]"]


class JsonText:
    """A text that grows, kept as JSON."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._parts: list[str] = []
        self._parts_chars = 0

    def add(self, part: str) -> int:
        """Gives how many bytes more are kept, counted now and then."""
        if part:
            self._parts.append(part)
            self._parts_chars += len(part)
        enough = len(self._parts) >= _PARTS or self._parts_chars > CHUNK_BYTES
        return self._encode() if enough else 0

    def pieces(self) -> list[bytes]:
        """The whole text, without quotes; none for an empty one."""
        if self._parts:
            self._encode()
        return self._chunks

    def _encode(self) -> int:
        self._chunks.append(_encoder.encode("".join(self._parts))[1:-1])
        self._parts, self._parts_chars = [], 0
        return len(self._chunks[-1])


def parted(encoded: bytes, field: bytes, value: bytes) -> tuple[bytes, bytes]:
    """What stands up to the first `field` and includes its name, and what follows its `value`.
    Within JSON texts every quote has a backslash, so no text is taken for the field."""
    name = b'"' + field + b'":'
    before, _, after = encoded.partition(name + value)
    return before + name, after


class WholeAnswer(Response):
    """What `make` gives, which counts what it keeps in the `HeldAnswer` given to it. It ends when
    the client leaves; what it raises becomes the answer."""

    media_type = "application/json"

    def __init__(
        self,
        budget: AnswerBudget,
        make: Callable[[HeldAnswer], Awaitable[Sequence[bytes]]],
    ) -> None:
        self._budget = budget
        self._make = make
        self._started = False
        self.status_code = 200
        self.background = None

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._answer(send))
        except (ClientGone, Refused):
            # In the middle of an answer the connection can only be closed, which the server does.
            if not self._started:
                raise

    async def _answer(self, send: Send) -> None:
        with self._budget.holding() as held:
            pieces = await self._make(held)
            self.init_headers({"content-length": str(sum(map(len, pieces)))})
            head = {"status": self.status_code, "headers": self.raw_headers}
            self._started = True
            await send({"type": "http.response.start", **head})
            await _send(pieces, send)


async def _send(pieces: Sequence[bytes], send: Send) -> None:
    chunk: list[bytes] = []
    chunk_bytes = sent_bytes = 0
    for piece in pieces:
        if chunk_bytes and chunk_bytes + len(piece) > CHUNK_BYTES:
            await send({"type": "http.response.body", "body": b"".join(chunk), "more_body": True})
            sent_bytes += chunk_bytes
            chunk, chunk_bytes = [], 0
            if sent_bytes > TURN_BYTES:
                sent_bytes = 0
                await asyncio.sleep(0)
        chunk.append(piece)
        chunk_bytes += len(piece)
    await send({"type": "http.response.body", "body": b"".join(chunk), "more_body": False})
