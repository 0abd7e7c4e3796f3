"""Reading a request body: from untrusted bytes to a typed body.

Size, nesting, encoding and duplicate keys are checked before any of it means something.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import ClientDisconnect, Request

from tandem.api.config import ApiConfig
from tandem.api.errors import Refusal, Refused
from tandem.api.intake import LARGE_BYTES, HeldBytes
from tandem.api.unsupported_fields import own_fields

Body = TypeVar("Body", bound=msgspec.Struct)

# Decoding holds the interpreter until it is done: more than this takes too long for the event
# loop. A prompt of token ids has as many marks as tokens.
MOST_MARKS = 192 << 10
_BIG = "body_too_large"
# Beyond it a float no longer tells neighbouring integers apart.
_EXACT_INTEGERS = 2.0**53
# Possessive, and satisfied by a missing end quote: linear time on any input.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_QUOTE, _BACKSLASH, _COLON = ord('"'), ord("\\"), ord(":")
_STRUCTURE = np.zeros(256, np.bool_)
_STRUCTURE[list(b",:[{")] = True


@dataclass(frozen=True, slots=True)
class JsonMarks:
    """How much structure a JSON text has outside of strings: a colon for each key of an object,
    and `others`, of which one stands before each value that has no key, or opens an object or
    array."""

    colons: int
    others: int

    @property
    def all(self) -> int:
        return self.colons + self.others


async def read_body(
    request: Request, body_type: type[Body], config: ApiConfig, held: HeldBytes
) -> Body:
    """The body, whose bytes are taken from `held`. Raises `Refused`: 408 too slow, 413 too large,
    415 not JSON, 400 anything wrong inside, 429 and 503 where too much else is being read."""
    _check_media_type(request)
    data = await body_bytes(request, config, held)
    return await held.run_off_loop(request, lambda: parse_body(data, body_type, config.max_nesting))


async def body_bytes(request: Request, config: ApiConfig, held: HeldBytes) -> bytes:
    """What the client sent, of whatever media type. Raises `Refused` as `read_body` does."""
    check_not_compressed(request)
    try:
        async with asyncio.timeout(config.body_timeout_s):
            return await _collect(request, held)
    except TimeoutError as error:
        raise Refused(Refusal(408, "the body did not arrive in time", "body_timeout")) from error
    except ClientDisconnect as error:
        raise Refused(Refusal(400, "the body broke off", "incomplete_body")) from error


def _check_media_type(request: Request) -> None:
    """Exactly JSON, and said so: a web page may send anything else, or nothing, to any server
    without asking it first. Raises `Refused` with 415."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        problem = "the body must be declared as JSON: send Content-Type: application/json"
        raise Refused(Refusal(415, problem, "unsupported_media_type"))


def check_not_compressed(request: Request) -> None:
    """Raises `Refused` with 415."""
    encodings = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    if any(encoding.strip() not in ("", "identity") for encoding in encodings):
        problem = "the body must not be compressed: send it without Content-Encoding"
        raise Refused(Refusal(415, problem, "unsupported_content_encoding"))


async def _collect(request: Request, held: HeldBytes) -> bytes:
    max_bytes = held.intake.body_bytes
    declared = request.headers.get("content-length", "")
    if declared.isdecimal():
        declared_bytes = int(declared.lstrip("0")[:20] or "0")
        if declared_bytes > max_bytes:
            raise _too_large(max_bytes)
        # Nothing of it is read where it has no room. What arrives is counted, not what is declared:
        # a slow sender keeps no place for what has not come.
        held.intake.check_room(declared_bytes, held.account)
    parts, received_bytes = [], 0
    async for part in request.stream():
        received_bytes += len(part)
        if received_bytes > max_bytes:
            raise _too_large(max_bytes)
        held.hold_bytes(len(part))
        parts.append(part)
    return b"".join(parts)


def parse_body(data: bytes, body_type: type[Body], max_nesting: int) -> Body:
    """The body in `data`. Raises `Refused` with status 400 naming what is wrong, or 413."""
    return body_of(parse_document(data, max_nesting), body_type)


def parse_document(data: bytes, max_nesting: int) -> dict[str, Any]:
    """The JSON object in `data`. Raises `Refused` as `parse_body` does."""
    document = _load(data, max_nesting)
    if not isinstance(document, dict):
        raise Refused(Refusal(400, "the body must be a JSON object", "invalid_json"))
    return document


def body_of(document: Mapping[str, object], body_type: type[Body]) -> Body:
    """The body that an object in JSON is. Raises `Refused` with status 400 naming what is wrong."""
    try:
        return msgspec.convert(own_fields(document, body_type), body_type)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        param = path.rstrip("`").lstrip(".") or None
        message = f"{param}: {problem}" if param else problem
        raise Refused(Refusal(400, message, "invalid_value", param)) from error


def decode_json(data: bytes) -> object:
    """What a JSON text says, as `msgspec` reads it; of keys that appear twice the last counts.
    Raises `ValueError`, also for what would take too long."""
    if len(data) > LARGE_BYTES and count_marks(data).all > MOST_MARKS:
        raise ValueError(f"it has more than {MOST_MARKS} values and keys")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def nested_deeper(document: object, max_nesting: int) -> bool:
    """Whether lists and objects stand in each other more than `max_nesting` levels deep."""
    level: list[Any] = [document] if isinstance(document, dict | list) else []
    for _ in range(max_nesting):
        values = (v for each in level for v in (each.values() if isinstance(each, dict) else each))
        level = [value for value in values if isinstance(value, dict | list)]
    return bool(level)


def _load(data: bytes, max_nesting: int) -> object:
    marks = _marks_of(data)
    if marks.all > MOST_MARKS:
        problem = f"the body has {marks.all} JSON values and keys, more than {MOST_MARKS}"
        raise Refused(Refusal(400, problem, "invalid_value"))
    try:
        document: object = msgspec.json.decode(data)
        keys = _settle(document, max_nesting)
    except RecursionError as error:
        raise _too_deep(max_nesting) from error
    except UnicodeError as error:
        raise Refused(Refusal(400, "the body is not valid UTF-8 text", "invalid_json")) from error
    except msgspec.DecodeError as error:
        problem = f"the body is not valid JSON: {str(error)[:200]}"
        raise Refused(Refusal(400, problem, "invalid_json")) from error
    if keys != marks.colons:
        problem = "the body is not valid JSON: a key appears twice in one object"
        raise Refused(Refusal(400, problem, "invalid_json"))
    return document


def _marks_of(data: bytes) -> JsonMarks:
    if len(data) > LARGE_BYTES:
        return count_marks(data)
    plain = _STRING.sub(b"", data)
    return JsonMarks(plain.count(b":"), plain.count(b",") + plain.count(b"[") + plain.count(b"{"))


def _settle(document: object, max_nesting: int) -> int:
    """Makes whole numbers of floats that are some, and counts the keys of all objects."""
    keys = depth = 0
    level: list[Any] = [document] if isinstance(document, dict | list) else []
    while level:
        depth += 1
        if depth > max_nesting:
            raise _too_deep(max_nesting)
        below: list[Any] = []
        for each in level:
            items = each.items() if isinstance(each, dict) else enumerate(each)
            keys += len(each) if isinstance(each, dict) else 0
            for place, value in items:
                kind = type(value)
                if kind is dict or kind is list:
                    below.append(value)
                # In JSON 16.0 is a whole number too, and some clients write every number so.
                elif kind is float and value.is_integer() and abs(value) < _EXACT_INTEGERS:
                    each[place] = int(value)
        level = below
    return keys


def _too_deep(max_nesting: int) -> Refused:
    return Refused(Refusal(400, f"nested deeper than {max_nesting} levels", "invalid_json"))


def _too_large(max_bytes: int) -> Refused:
    return Refused(Refusal(413, f"the body exceeds {max_bytes} bytes", _BIG))


def count_marks(data: bytes) -> JsonMarks:
    """Of a JSON text; of what is none, numbers that mean nothing. Counted over the raw bytes,
    before anything is decoded, and without holding the interpreter: numpy lets other threads
    run."""
    text = np.frombuffer(data, np.uint8)
    # Odd from an opening quote on, even from the closing one on.
    parity = np.zeros(len(text), np.bool_)
    parity[_string_quotes(text)] = True
    inside = np.logical_xor.accumulate(parity)
    marks = text[_STRUCTURE[text] & ~inside]
    colons = int(np.count_nonzero(marks == _COLON))
    return JsonMarks(colons, len(marks) - colons)


def _string_quotes(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Where quotes stand that begin or end a string: an odd run of backslashes before one makes it
    a character."""
    quotes: npt.NDArray[np.intp] = np.flatnonzero(text == _QUOTE)
    slashes = np.flatnonzero(text == _BACKSLASH)
    if not len(slashes):
        return quotes
    begins = np.ones(len(slashes), np.bool_)
    begins[1:] = np.diff(slashes) != 1
    run_starts = np.maximum.accumulate(np.where(begins, slashes, 0))
    # The last backslash before each quote: directly before it, or of no concern.
    last = np.searchsorted(slashes, quotes) - 1
    known = np.maximum(last, 0)
    adjacent = (last >= 0) & (slashes[known] == quotes - 1)
    odd = (quotes - run_starts[known]) % 2 == 1
    begins_or_ends: npt.NDArray[np.intp] = quotes[~(adjacent & odd)]
    return begins_or_ends
