"""A JSON answer that does not stream: gathered from the deltas of its choices (`Transcript`), kept
as JSON, and sent in pieces as fast as its client reads (`WholeResponse`). Neither the server nor
the connection holds a second copy of it, and no piece holds the event loop for long."""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.api.choice import ChoiceDelta
from tandem.api.errors import Refused
from tandem.api.response_budget import HeldResponse, ResponseBudget
from tandem.api.responses import Finish
from tandem.api.streaming import ClientGone, while_connected
from tandem.text.tools import ToolCall

# Enough for almost every answer, which then is one piece.
CHUNK_BYTES = 64 << 10
# The loop goes round after so much was sent or encoded in one go.
TURN_BYTES = 1 << 20
# A token id or a character, as JSON, at most.
ID_BYTES = 8
CHAR_BYTES = 6
# Texts of one token each are mostly objects; so many are joined.
_PARTS = 128
# Of a tool call: its objects; of a character: itself, and as JSON.
_CALL_BYTES = 256
_KEPT_CHAR_BYTES = 10
# Of one that is held back, in texts of a few of them.
_HELD_CHAR_BYTES = 16
# Four as a number, up to eight as JSON.
_TOKEN_BYTES = 12
# Of an entry in a list of JSON: an object until it is joined with others.
_ENTRY_BYTES = 40

_encoder = msgspec.json.Encoder()


class JsonList:
    """A list whose items are kept as JSON, joined now and then."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._items: list[bytes] = []
        self._items_bytes = 0

    def append(self, items: bytes) -> None:
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

    def append(self, part: str) -> int:
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


class Transcript:
    """Grows by deltas; complete once `finish_reason` is set. Text and log-probabilities are kept as
    JSON, the latter in `logprobs_lists` parallel lists; token ids where the client wants them."""

    def __init__(self, choice: int, *, logprobs_lists: int, keeps_tokens: bool) -> None:
        self.choice = choice
        self.text = JsonText()
        self.tool_calls: list[ToolCall] = []
        self.tokens = array("I")
        self.logprobs = [JsonList() for _ in range(logprobs_lists)]
        self.has_logprobs = False
        self.finish_reason: Finish | None = None
        self.stop_reason: str | int | None = None
        self._keeps_tokens = keeps_tokens
        self._held_chars = 0

    def add_delta(self, delta: ChoiceDelta, logprobs: Sequence[bytes] = ()) -> int:
        """`logprobs` has items for each of the lists, or is empty. Gives how many bytes more are
        kept, about."""
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        more_bytes = self.text.append(delta.text)
        more_bytes += _HELD_CHAR_BYTES * (delta.held_chars - self._held_chars)
        self._held_chars = delta.held_chars
        if delta.tool_calls:
            self.tool_calls += delta.tool_calls
            more_bytes += sum(
                _CALL_BYTES + _KEPT_CHAR_BYTES * (len(call.name) + len(call.arguments))
                for call in delta.tool_calls
            )
        if self._keeps_tokens:
            self.tokens.extend(delta.tokens)
            more_bytes += _TOKEN_BYTES * len(delta.tokens)
        if logprobs:
            self.has_logprobs = True
            for entries, items in zip(self.logprobs, logprobs, strict=True):
                entries.append(items)
                more_bytes += _ENTRY_BYTES + len(items)
        return more_bytes


class WholeResponse(Response):
    """What `make` gives, which counts what it keeps in the `HeldResponse` given to it. It ends when
    the client leaves; what it raises becomes the answer."""

    media_type = "application/json"

    def __init__(
        self,
        budget: ResponseBudget,
        make: Callable[[HeldResponse], Awaitable[Sequence[bytes]]],
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
        with self._budget.holding_response() as held:
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
