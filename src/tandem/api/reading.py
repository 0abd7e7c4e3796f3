"""Is this body safe to read, and what does it say? From untrusted bytes to a typed body.

Size, nesting, encoding and duplicate keys are checked before any of it means something.
"""

import asyncio
import json
import math
import re
from typing import Any, NoReturn, TypeVar

import msgspec
import numpy as np
from starlette.requests import ClientDisconnect, Request

from tandem.api.config import ApiConfig
from tandem.api.fields import own_fields
from tandem.api.refusal import Refusal, Refused

Body = TypeVar("Body", bound=msgspec.Struct)

# Work on more bytes than this leaves the event loop for a thread.
LARGE_BODY_BYTES = 64 << 10

# Beyond it a float no longer tells neighbouring integers apart.
_EXACT_INTEGERS = 2.0**53
# Possessive, and satisfied by a missing end quote: linear time on any input.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


async def read_body(request: Request, body_type: type[Body], config: ApiConfig) -> Body:
    """Raises `Refused`: 408 too slow, 413 too large, 415 not JSON, 400 anything wrong inside."""
    _check_media_type(request)
    try:
        async with asyncio.timeout(config.body_timeout_s):
            data = await _collect(request, config.max_body_bytes)
    except TimeoutError as error:
        raise Refused(Refusal(408, "the body did not arrive in time", "body_timeout")) from error
    except ClientDisconnect as error:
        raise Refused(Refusal(400, "the body broke off", "incomplete_body")) from error
    if len(data) > LARGE_BODY_BYTES:
        return await asyncio.to_thread(parse_body, data, body_type, config.max_nesting)
    return parse_body(data, body_type, config.max_nesting)


def _check_media_type(request: Request) -> None:
    """Exactly JSON, and said so: a web page may send anything else, or nothing, to any server
    without asking it first. Raises `Refused` with 415."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        problem = "the body must be declared as JSON: send Content-Type: application/json"
        raise Refused(Refusal(415, problem, "unsupported_media_type"))
    encodings = ",".join(request.headers.getlist("content-encoding")).lower().split(",")
    if any(encoding.strip() not in ("", "identity") for encoding in encodings):
        problem = "the body must not be compressed: send it without Content-Encoding"
        raise Refused(Refusal(415, problem, "unsupported_content_encoding"))


async def _collect(request: Request, max_bytes: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts, received_bytes = [], 0
    async for part in request.stream():
        received_bytes += len(part)
        if received_bytes > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def parse_body(data: bytes, body_type: type[Body], max_nesting: int) -> Body:
    """The body in `data`. Raises `Refused` with status 400 naming what is wrong."""
    if nesting(data) > max_nesting:
        raise Refused(Refusal(400, f"nested deeper than {max_nesting} levels", "invalid_json"))
    document = _load(data)
    if not isinstance(document, dict):
        raise Refused(Refusal(400, "the body must be a JSON object", "invalid_json"))
    try:
        return msgspec.convert(own_fields(document, body_type), body_type)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$")
        param = path.rstrip("`").lstrip(".") or None
        message = f"{param}: {problem}" if param else problem
        raise Refused(Refusal(400, message, "invalid_value", param)) from error


def nesting(data: bytes) -> int:
    """How deep arrays and objects of a JSON text are nested, without recursion."""
    brackets = _STRING.sub(b"", data).translate(None, _NOT_BRACKETS)
    if not brackets:
        return 0
    steps = _STEPS[np.frombuffer(brackets, np.uint8)]
    return int(np.cumsum(steps, dtype=np.int64).max())


def _load(data: bytes) -> object:
    try:
        text = data.decode("utf-8")
        document: object = json.loads(
            text,
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_number,
        )
        if "\\ud" in text or "\\uD" in text:
            # An escaped surrogate without its other half is no text in any encoding.
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise Refused(Refusal(400, "the body is not valid UTF-8 text", "invalid_json")) from error
    except ValueError as error:
        problem = f"the body is not valid JSON: {str(error)[:200]}"
        raise Refused(Refusal(400, problem, "invalid_json")) from error
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise ValueError(f"the key {name[:64]!r} appears twice")
        document[name] = value
    return document


def _number(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    # In JSON 16.0 is a whole number too, and some clients write every number so.
    return int(value) if value.is_integer() and abs(value) < _EXACT_INTEGERS else value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _too_large(max_bytes: int) -> Refused:
    return Refused(Refusal(413, f"the body exceeds {max_bytes} bytes", "body_too_large"))
