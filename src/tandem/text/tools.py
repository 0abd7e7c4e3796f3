"""Does the answer call a tool? Separates calls from content while the text still arrives.

Nothing is lost: what is not a well-formed call comes out as content, in order. Only blank space
between calls and the tags themselves disappear.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, Protocol

from tandem.text.stop import partial_match_chars


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call: the function's name and its arguments as JSON text."""

    name: str
    arguments: str


Pieces = list[str | ToolCall]


class ToolFormat(StrEnum):
    """How a model writes calls: between tags (Hermes, Qwen) or as the whole answer (Llama 3)."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"


class ToolParser(Protocol):
    """Splits one answer into content and calls."""

    def feed(self, text: str) -> Pieces: ...

    def finish(self) -> Pieces: ...


OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
_FIRST_KEY = re.compile(r'\s*\{\s*"([^"\\]*)"')
_CALL_KEYS = frozenset({"name", "parameters", "arguments", "type", "function"})


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them."""

    def __init__(self) -> None:
        self._text = ""
        self._inside = False
        self._called = False

    def feed(self, text: str) -> Pieces:
        self._text += text
        return self._pieces(last=False)

    def finish(self) -> Pieces:
        return self._pieces(last=True)

    def _pieces(self, *, last: bool) -> Pieces:
        pieces: Pieces = []
        progress = True
        while progress:
            progress = self._read_call(pieces, last) if self._inside else self._read_content(pieces)
        if last:
            _append_content(pieces, self._take(len(self._text)), self._called)
        return pieces

    def _read_content(self, pieces: Pieces) -> bool:
        """Moves content out; True when a call begins behind it."""
        place = self._text.find(OPEN_TAG)
        self._inside = place >= 0
        certain = place if self._inside else self._certain_chars()
        _append_content(pieces, self._take(certain), self._called)
        return self._inside

    def _certain_chars(self) -> int:
        certain = len(self._text) - partial_match_chars(self._text, (OPEN_TAG,))
        # Blank space after a call waits: it is content only if words follow.
        if self._called and not self._text[:certain].strip():
            return 0
        return certain

    def _read_call(self, pieces: Pieces, last: bool) -> bool:
        """Moves one call out, or its text if it is none; False when its end has not come."""
        start = len(OPEN_TAG)
        first_close = close = self._text.find(CLOSE_TAG)
        # What is no call is content up to its first closing tag: a good call may follow.
        broken_chars = first_close + len(CLOSE_TAG) if first_close >= 0 else start
        while close >= 0:
            call, in_string = _parse_call(self._text[start:close])
            if not in_string:
                self._end_call(pieces, call, close + len(CLOSE_TAG) if call else broken_chars)
                return True
            # The tag is part of an argument: the call ends at a later one.
            close = self._text.find(CLOSE_TAG, close + 1)
        if not last:
            return False
        # Some models leave out the last closing tag.
        call, _ = _parse_call(self._text[start:])
        self._end_call(pieces, call, len(self._text) if call else broken_chars)
        return True

    def _end_call(self, pieces: Pieces, call: ToolCall | None, chars: int) -> None:
        text = self._take(chars)
        self._inside = False
        if call is None:
            _append_content(pieces, text, after_call=False)
        else:
            pieces.append(call)
            self._called = True

    def _take(self, chars: int) -> str:
        text, self._text = self._text[:chars], self._text[chars:]
        return text


class Llama3Parser:
    """The whole answer is `{"name": ..., "parameters": {...}}`, or several joined by semicolons."""

    def __init__(self) -> None:
        self._text = ""
        self._is_content = False

    def feed(self, text: str) -> Pieces:
        if self._is_content:
            return [text] if text else []
        self._text += text
        self._is_content = not _may_be_call(self._text)
        return self._take() if self._is_content else []

    def finish(self) -> Pieces:
        if self._is_content:
            return []
        calls = _parse_calls(self._text)
        return list(calls) if calls else self._take()

    def _take(self) -> Pieces:
        text, self._text = self._text, ""
        return [text] if text else []


def tool_parser(tool_format: ToolFormat) -> ToolParser:
    """A fresh parser for one answer."""
    return HermesParser() if tool_format is ToolFormat.HERMES else Llama3Parser()


def _append_content(pieces: Pieces, text: str, after_call: bool) -> None:
    if text and not (after_call and not text.strip()):
        pieces.append(text)


def _may_be_call(text: str) -> bool:
    if not text.lstrip():
        return True
    first_key = _FIRST_KEY.match(text)
    if first_key:
        return first_key[1] in _CALL_KEYS
    return re.fullmatch(r'\s*\{\s*("[^"\\]*)?', text) is not None


def _parse_call(text: str) -> tuple[ToolCall | None, bool]:
    """The call in `text`, and whether `text` breaks off inside a JSON string."""
    try:
        return _call_of(json.loads(text, parse_constant=_refuse_constant)), False
    except json.JSONDecodeError as error:
        return None, error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return None, False


def _parse_calls(text: str) -> Sequence[ToolCall]:
    """All calls of a Llama 3 answer, or none at all if any part is something else."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    calls: list[ToolCall] = []
    text = text.strip()
    while text:
        try:
            document, end = decoder.raw_decode(text)
        except (ValueError, RecursionError):
            return ()
        call = _call_of(document)
        if call is None:
            return ()
        calls.append(call)
        text = text[end:].lstrip(" \t\r\n;")
    return calls


def _call_of(document: object) -> ToolCall | None:
    fields: object = document
    if isinstance(document, dict) and isinstance(document.get("function"), dict):
        fields = document["function"]
    if not isinstance(fields, dict):
        return None
    name = fields.get("name")
    arguments = fields.get("arguments", fields.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _object_in(arguments)
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False))


def _object_in(text: str) -> object:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
