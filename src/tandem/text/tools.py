"""Tool-call parsers: separate calls from content while the text of an answer still arrives.

Nothing is lost: what is not a well-formed call comes out as content, in order. Only blank space
between calls and the tags themselves disappear.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, Protocol

from tandem.text.json_prefix import JsonPrefix
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
_CALL_KEYS = frozenset({"name", "parameters", "arguments", "type", "function"})
_BLANK = re.compile(r"\s*")
_BETWEEN_CALLS = re.compile(r"[ \t\r\n;]*")
_KEY_END = re.compile(r'["\\]')


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.

    The work is linear in the text, however it is cut and whatever stands between the tags.
    """

    def __init__(self) -> None:
        # Held back outside a call: blank space behind an earlier one, then the beginning of a tag.
        self._blank: list[str] = []
        self._partial = ""
        self._call: _OpenCall | None = None
        self._called = False

    def feed(self, text: str) -> Pieces:
        return self._pieces(text, last=False)

    def finish(self) -> Pieces:
        return self._pieces("", last=True)

    def _pieces(self, text: str, *, last: bool) -> Pieces:
        pieces: Pieces = []
        at, closes = 0, True
        if self._call is None:
            text, self._partial = self._partial + text, ""
            at = self._read_content(pieces, text, at)
        while self._call is not None:
            call, start = self._call, at
            end = call.look(text, at, last=last, closes=closes)
            if end is None:
                call.keep(text[at:])
                return pieces
            closes = closes and call.first_close >= 0
            if call.kept:
                # All since the opening tag is read anew from where the call ends.
                text, start = "".join((*call.kept, text)), 0
            self._call = None
            piece, at = self._end_call(text, start, call, end)
            pieces.append(piece)
            at = self._read_content(pieces, text, at)
        if last:
            self._append_content(pieces, self._partial)
        return pieces

    def _end_call(
        self, text: str, start: int, open_call: "_OpenCall", end: int
    ) -> tuple[str | ToolCall, int]:
        """One call, or its text if it is none, and where the text goes on."""
        call = _parse_call(text[start : start + end]) if end >= 0 else None
        if call is not None:
            self._called = True
            return call, min(start + end + len(CLOSE_TAG), len(text))
        # What is no call is content up to its first closing tag: a good call may follow.
        at, first_close = start, open_call.first_close
        if first_close >= 0:
            at = start + first_close + len(CLOSE_TAG)
        return OPEN_TAG + text[start:at], at

    def _read_content(self, pieces: Pieces, text: str, at: int) -> int:
        """Moves content out, up to the call that begins behind it, if one does."""
        place = text.find(OPEN_TAG, at)
        if place >= 0:
            self._append_content(pieces, text[at:place])
            self._call = _OpenCall()
            return place + len(OPEN_TAG)
        certain = len(text) - partial_match_chars(text[at:], OPEN_TAG)
        content, self._partial = text[at:certain], text[certain:]
        # Blank space after a call waits: it is content only if words follow.
        if self._called and not content.strip():
            self._blank.append(content)
        else:
            self._append_content(pieces, content)
        return len(text)

    def _append_content(self, pieces: Pieces, text: str) -> None:
        text = "".join((*self._blank, text))
        self._blank = []
        if text and not (self._called and not text.strip()):
            pieces.append(text)


class _OpenCall:
    """What follows an opening tag, until it is known where the call ends. Places are counted from
    behind that tag.

    A closing tag inside of a JSON string is part of an argument: the call ends at a later one.
    """

    def __init__(self) -> None:
        self.first_close = -1
        # What earlier looks saw, and of that what the JSON reader has not read.
        self.kept: list[str] = []
        self._unread: list[str] = []
        self._kept_chars = 0
        self._edge = ""
        self._offset = 0
        self._json = JsonPrefix()

    def keep(self, text: str) -> None:
        """No more comes for now: this is what the last look looked at."""
        self.kept.append(text)
        self._kept_chars += len(text)
        self._edge = (self._edge + text)[-len(CLOSE_TAG) + 1 :]

    def look(self, text: str, begin: int, *, last: bool, closes: bool) -> int | None:
        """Where the call ends, looking at text[begin:]: None while that is open, -1 if nowhere.
        `closes` is false where it is known that no closing tag is left in `text`."""
        self._offset = begin
        for place in self._closing_places(text, begin) if closes else ():
            end = self._kept_chars + place - begin
            self.first_close = end if self.first_close < 0 else self.first_close
            if not self._in_string(text, place):
                return end
        if last:
            self._in_string(text, len(text))
            # Some models leave out the last closing tag.
            return self._kept_chars + len(text) - begin if self._json.complete else -1
        self._unread.append(text[self._offset :])
        return None

    def _closing_places(self, text: str, begin: int) -> Iterator[int]:
        """Where closing tags stand; before `begin` where one began in an earlier piece."""
        across = self._edge + text[begin : begin + len(CLOSE_TAG) - 1]
        place = across.find(CLOSE_TAG)
        if place >= 0:
            yield begin + place - len(self._edge)
        place = text.find(CLOSE_TAG, begin)
        while place >= 0:
            yield place
            place = text.find(CLOSE_TAG, place + len(CLOSE_TAG))

    def _in_string(self, text: str, end: int) -> bool:
        """Whether the JSON up to `end` of `text` breaks off inside of a string."""
        if not self._unread:
            in_string, self._offset = self._json.advance(text, self._offset, end)
            return in_string
        unread, missing_chars = "".join(self._unread), max(0, self._offset - end)
        known = len(unread) - missing_chars
        piece = unread[:known] + text[self._offset : max(self._offset, end)]
        in_string, read = self._json.advance(piece, 0, len(piece))
        left = piece[read:] + unread[known:]
        self._unread = [left] if left else []
        self._offset = max(self._offset, end)
        return in_string


class Llama3Parser:
    """The whole answer is `{"name": ..., "parameters": {...}}`, or several joined by semicolons."""

    def __init__(self) -> None:
        self._held: list[str] = []
        # What must come before the answer may be a call: a brace, a quote, and a key's end.
        self._missing = ["{", '"']
        self._key: list[str] = []
        self._is_content = False
        self._is_call = False

    def feed(self, text: str) -> Pieces:
        if self._is_content:
            return [text] if text else []
        self._held.append(text)
        if not self._is_call:
            self._look(text)
        return self._take() if self._is_content else []

    def finish(self) -> Pieces:
        if self._is_content:
            return []
        calls = _parse_calls("".join(self._held))
        return list(calls) if calls else self._take()

    def _look(self, text: str) -> None:
        """Is this the beginning of an answer whose first key is one of a call?"""
        at = 0
        while self._missing:
            blank = _BLANK.match(text, at)
            at = blank.end() if blank else at
            if at == len(text):
                return
            self._is_content = text[at] != self._missing[0]
            if self._is_content:
                return
            self._missing.pop(0)
            at += 1
        end = _KEY_END.search(text, at)
        self._key.append(text[at : end.start() if end else len(text)])
        if end:
            self._is_call = end[0] == '"' and "".join(self._key) in _CALL_KEYS
            self._is_content = not self._is_call

    def _take(self) -> Pieces:
        text = "".join(self._held)
        self._held = []
        return [text] if text else []


def tool_parser(tool_format: ToolFormat) -> ToolParser:
    """A fresh parser for one answer."""
    return HermesParser() if tool_format is ToolFormat.HERMES else Llama3Parser()


def _parse_call(text: str) -> ToolCall | None:
    try:
        return _call_of(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError):
        return None


def _parse_calls(text: str) -> Sequence[ToolCall]:
    """All calls of a Llama 3 answer, or none at all if any part is something else."""
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    calls: list[ToolCall] = []
    text = text.strip()
    at = 0
    while at < len(text):
        try:
            document, at = decoder.raw_decode(text, at)
            call = _call_of(document)
        except (ValueError, RecursionError):
            return ()
        if call is None:
            return ()
        calls.append(call)
        blank = _BETWEEN_CALLS.match(text, at)
        at = blank.end() if blank else at
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
