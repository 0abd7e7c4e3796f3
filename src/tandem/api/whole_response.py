"""A JSON answer that does not stream: gathered from the deltas of its choices (`Transcript`), kept
as JSON, and sent in pieces as fast as its client reads (`WholeResponse`). Neither the server nor
the connection holds a second copy of it, and no piece holds the event loop for long.

`ResponseBudget` bounds what all calls may hold until their clients have it. A call counts what it
keeps as it grows. Where all together would keep too much, the call that keeps most ends; one that
alone keeps half of the budget ends, too.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import TypeAlias

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tandem.api.auth import BACKGROUND
from tandem.api.choice import ChoiceDelta
from tandem.api.errors import Refusal, Refused, retry_header
from tandem.api.responses import Finish
from tandem.api.streaming import ClientGone, EvictableCall, while_connected
from tandem.facts.errors import InvalidRequest
from tandem.facts.fair_shares import FairBudget
from tandem.facts.sampling import SamplingParameters
from tandem.text.tool_calls import CallsSoFar, ToolCall

# Less than this is not worth looking at the others.
_STEP_BYTES = 16 << 10
# What an alternative takes at least, nearly always.
_ALTERNATIVE_BYTES = 32


class HeldResponse:
    """What one call keeps; `taken_bytes` are what the budget has counted of it."""

    def __init__(self, budget: "ResponseBudget", account: str) -> None:
        self.account = account
        self.call = EvictableCall()
        self.taken_bytes = 0
        self._budget = budget
        self._held_bytes = 0

    def grow(self, more_bytes: int) -> None:
        """Raises `InvalidRequest` for what is too much for one call, `Refused` with 503 where all
        calls together keep too much, and this one most of all."""
        self._held_bytes += more_bytes
        if self._held_bytes - self.taken_bytes > _STEP_BYTES:
            self._budget.charge(self, self._held_bytes - self.taken_bytes)


class ResponseBudget:
    """One for all calls of a server. Use it from one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.most_bytes_of_one = most_bytes // 2
        # Each call has an account of its own: who keeps most gives way.
        self._shares: FairBudget[HeldResponse] = FairBudget(most_bytes)
        self._serials = count()

    @property
    def held_bytes(self) -> int:
        return self._shares.held

    @contextmanager
    def holding_response(self, *, background: bool = False) -> Iterator[HeldResponse]:
        """For the current task, whose answer is let go at the end of the block. Raises `Refused`
        with 503, wherever the task is within the block, if others need the room."""
        # All that nobody waits for is one account, so that it is the first to give way.
        account = "background" if background else f"call {next(self._serials)}"
        held = HeldResponse(self, account)
        try:
            with held.call.refused_if_evicted(_overloaded):
                yield held
        finally:
            self._shares.give_back(held)

    def charge(self, held: HeldResponse, more_bytes: int) -> None:
        """See `HeldResponse.grow`."""
        held.taken_bytes += more_bytes
        if held.taken_bytes > self.most_bytes_of_one:
            self._shares.give_back(held)
            raise _too_large(self.most_bytes_of_one)
        try:
            victims = self._shares.reserve(held, held.account, more_bytes)
        except OverflowError as error:
            # At once: the next call would be refused, too, while this one only ends.
            self._shares.give_back(held)
            raise _overloaded() from error
        for victim in victims:
            victim.call.evict()

    def check_request(
        self, asked_tokens: int | None, sampling: SamplingParameters, choices: int
    ) -> None:
        """Raises `InvalidRequest` for a call that asks for more at once than can be kept: so many
        tokens, as its client says, of each choice, and the alternatives to each."""
        if asked_tokens is None or sampling.top_logprobs is None:
            return
        tokens = choices * min(asked_tokens, sampling.max_tokens)
        if tokens * (1 + sampling.top_logprobs) * _ALTERNATIVE_BYTES > self.most_bytes_of_one:
            raise _too_large(self.most_bytes_of_one)


def _too_large(most_bytes: int) -> InvalidRequest:
    problem = f"times n and top_logprobs makes an answer of more than {most_bytes} bytes"
    remedy = "stream it, or ask for fewer tokens, choices or alternatives (top_logprobs)"
    return InvalidRequest("max_tokens", f"{problem}; {remedy}")


def _overloaded() -> Refused:
    problem = "the answers of all calls fill the server, this one most of all; stream it, or retry"
    return Refused(Refusal(503, problem, "overloaded", headers=retry_header()))


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
# What stands before the choices of an answer, and what after, both in pieces.
AnswerFrame: TypeAlias = tuple[Sequence[bytes], Sequence[bytes]]


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


def filled_choice(
    choice: msgspec.Struct,
    texts: Mapping[bytes, Sequence[bytes]],
    logprobs: Mapping[str, JsonList] | None,
) -> list[bytes]:
    """A choice as JSON in pieces. Its `texts` by field, in the order of the fields, are empty or
    missing in `choice`, and its log-probabilities, which come from these lists, are none there."""
    pieces: list[bytes] = []
    rest = _encoder.encode(choice)
    for field, text in texts.items():
        if text:
            before, rest = split_at_field(rest, field, b'"')
            pieces += [before, b'"', *text]
    if logprobs is not None:
        before, rest = split_at_field(rest, b"logprobs", b"null")
        opening = before + b"{"
        for name, entries in logprobs.items():
            pieces += [b'%b"%b":' % (opening, name.encode()), *entries.pieces()]
            opening = b","
        pieces.append(b"}")
    return [*pieces, rest]


def split_at_field(encoded: bytes, field: bytes, value: bytes) -> tuple[bytes, bytes]:
    """What stands up to the first `field` and includes its name, and what follows its `value`.
    Within JSON texts every quote has a backslash, so no text is taken for the field."""
    name = b'"' + field + b'":'
    before, _, after = encoded.partition(name + value)
    return before + name, after


def split_at_choices(answer: msgspec.Struct) -> AnswerFrame:
    """An answer without choices as JSON."""
    before, after = split_at_field(_encoder.encode(answer), b"choices", b"[]")
    return [before + b"["], [b"]" + after]


class Transcript:
    """Grows by deltas; complete once `finish_reason` is set. Its `index` is that of the choice in
    the answer: `choice`, unless only some are given. Text and log-probabilities are kept as
    JSON, the latter in parallel lists with the names `logprobs_lists`; token ids where the client
    wants them. So many `calls_before_text` began before there was any."""

    def __init__(self, choice: int, *, logprobs_lists: Sequence[str], keeps_tokens: bool) -> None:
        self.choice = self.index = choice
        self.text = JsonText()
        self.reasoning = JsonText()
        self.tool_calls = CallsSoFar()
        self.calls_before_text = 0
        self.tokens = array("I")
        self.token_count = 0
        self.logprobs = {name: JsonList() for name in logprobs_lists}
        self.has_logprobs = False
        self.finish_reason: Finish | None = None
        self.stop_reason: str | int | None = None
        self._keeps_tokens = keeps_tokens
        self._has_text = False
        self._held_chars = 0

    def add_delta(self, delta: ChoiceDelta, logprobs: Sequence[bytes] = ()) -> int:
        """`logprobs` has items for each of the lists, or is empty. Gives how many bytes more are
        kept, about."""
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason
        self.token_count += len(delta.tokens)
        more_bytes = self.text.append(delta.text) + self.reasoning.append(delta.reasoning)
        if not self._has_text:
            self._has_text = bool(delta.text)
            calls = sum(isinstance(part, ToolCall) for part in delta.tool_calls)
            self.calls_before_text += delta.calls_before_text if delta.text else calls
        more_bytes += _HELD_CHAR_BYTES * (delta.held_chars - self._held_chars)
        self._held_chars = delta.held_chars
        for part in delta.tool_calls:
            self.tool_calls.add(part)
            if isinstance(part, ToolCall):
                more_bytes += _CALL_BYTES
                more_bytes += _KEPT_CHAR_BYTES * (len(part.name) + len(part.arguments))
            else:
                more_bytes += _KEPT_CHAR_BYTES * len(part.text)
        if self._keeps_tokens:
            self.tokens.extend(delta.tokens)
            more_bytes += _TOKEN_BYTES * len(delta.tokens)
        if logprobs:
            self.has_logprobs = True
            for entries, items in zip(self.logprobs.values(), logprobs, strict=True):
                entries.append(items)
                more_bytes += _ENTRY_BYTES + len(items)
        return more_bytes


class WholeResponse(Response):
    """What `make` gives, which counts what it keeps in the `HeldResponse` given to it. It ends when
    the client leaves; what it raises becomes the answer."""

    def __init__(
        self,
        budget: ResponseBudget,
        make: Callable[[HeldResponse], Awaitable[Sequence[bytes]]],
        late_headers: Callable[[], Mapping[str, str]] = dict,
        media_type: str = "application/json",
    ) -> None:
        """`late_headers` gives what is known once the answer is made."""
        self._late_headers = late_headers
        self._budget = budget
        self._make = make
        self.media_type = media_type
        self._started = False
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await while_connected(receive, self._answer(scope, send))
        except (ClientGone, Refused):
            # In the middle of an answer the connection can only be closed, which the server does.
            if not self._started:
                raise

    async def _answer(self, scope: Scope, send: Send) -> None:
        with self._budget.holding_response(background=scope.get(BACKGROUND, False)) as held:
            pieces = await self._make(held)
            length = {"content-length": str(sum(map(len, pieces)))}
            self.init_headers({**self._late_headers(), **length})
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
