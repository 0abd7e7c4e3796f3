"""Tool-call parsers: separate calls from content while the text of an answer still arrives.

Nothing is lost: what is not a well-formed call comes out as content, in order. Only blank space
between calls and the tags themselves disappear.
"""

import json
import re
from collections.abc import Iterator, Sequence, Set
from enum import Enum, auto

from tandem.text.call_markup import CLOSE_TAG, MARKUPS, OPEN_TAG, PYTHON_TAG, is_beginning
from tandem.text.json_prefix import JsonPrefix
from tandem.text.marked_calls import MarkedCallParser
from tandem.text.stop import partial_match_chars
from tandem.text.tool_calls import Pieces, ToolCall, ToolFormat, ToolParser, call_in
from tandem.text.xml_calls import Parameter, XmlCallParser

# What the first key of an answer in Llama 3's form is, if it is a call.
CALL_KEYS = ("name", "parameters", "arguments", "type", "function")
_BLANK = re.compile(r"\s*")
_BETWEEN_CALLS = re.compile(r"[ \t\r\n;]*")
_KEY_END = re.compile(r'["\\]')
_decoder = json.JSONDecoder()


class CallsInAnswer(Enum):
    """Where an answer has calls, as far as its grammar says: such are well-formed, and can be told
    while they are written."""

    # Anywhere, and none is certain to be one.
    UNCERTAIN = auto()
    # What begins like a call is one, if it is the first thing said.
    FIRST = auto()
    # What begins like a call is one, wherever it stands.
    ANYWHERE = auto()
    # The first thing said may be one, as the grammar writes them; other answers begin alike.
    FIRST_IF_WHOLE = auto()


class HermesParser:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them.

    The work is linear in the text, however it is cut and whatever stands between the tags.
    """

    def __init__(self) -> None:
        # Held back outside a call: blank space behind an earlier one, then the beginning of a tag.
        self._blank: list[str] = []
        self._partial = ""
        self._call: _OpenCall | None = None
        self._after_call = False

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
        call = call_in(text[start : start + end]) if end >= 0 else None
        if call is not None:
            self._after_call = True
            return call, min(start + end + len(CLOSE_TAG), len(text))
        # What is no call is content up to its first closing tag: a good call may follow.
        at, first_close = start, open_call.first_close
        if first_close >= 0:
            at = start + first_close + len(CLOSE_TAG)
        self._after_call = False
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
        if self._after_call and not content.strip():
            self._blank.append(content)
        else:
            self._append_content(pieces, content)
        return len(text)

    def _append_content(self, pieces: Pieces, text: str) -> None:
        text = "".join((*self._blank, text))
        self._blank = []
        if text and not (self._after_call and not text.strip()):
            pieces.append(text)
            self._after_call = False


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
        # What must come before the answer may be a call: perhaps a tag, a brace, a quote, and a
        # key's end.
        self._missing = [PYTHON_TAG, "{", '"']
        self._unread = ""
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
        calls = _calls_in("".join(self._held))
        return list(calls) if calls else self._take()

    def _look(self, text: str) -> None:
        """Is this the beginning of an answer whose first key is one of a call?"""
        text, self._unread = self._unread + text, ""
        at = 0
        while self._missing:
            blank = _BLANK.match(text, at)
            at = blank.end() if blank else at
            if is_beginning(self._missing[0], text, at):
                self._unread = text[at:]
                return
            if text.startswith(self._missing[0], at):
                at += len(self._missing[0])
            elif self._missing[0] != PYTHON_TAG:
                self._is_content = True
                return
            self._missing.pop(0)
        end = _KEY_END.search(text, at)
        self._key.append(text[at : end.start() if end else len(text)])
        if end:
            self._is_call = end[0] == '"' and "".join(self._key) in CALL_KEYS
            self._is_content = not self._is_call

    def _take(self) -> Pieces:
        text = "".join(self._held)
        self._held = []
        return [text] if text else []


def tool_parser(
    tool_format: ToolFormat,
    calls: CallsInAnswer = CallsInAnswer.UNCERTAIN,
    text_parameters: Set[Parameter] = frozenset(),
) -> ToolParser:
    """A fresh parser for one answer. Values of `text_parameters` are texts, where the format does
    not tell."""
    if tool_format is ToolFormat.QWEN3_XML:
        return XmlCallParser(text_parameters)
    markups = MARKUPS[tool_format]
    if calls is not CallsInAnswer.UNCERTAIN:
        anywhere = calls is CallsInAnswer.ANYWHERE and bool(markups[0].opening)
        streams = calls is not CallsInAnswer.FIRST_IF_WHOLE
        return MarkedCallParser(markups, anywhere=anywhere, streams=streams)
    match tool_format:
        case ToolFormat.HERMES:
            return HermesParser()
        case ToolFormat.LLAMA3_JSON:
            return Llama3Parser()
        case _:
            return MarkedCallParser(markups, anywhere=True, streams=False)


def _calls_in(text: str) -> Sequence[ToolCall]:
    """All calls of a Llama 3 answer, or none at all if any part is something else."""
    calls: list[ToolCall] = []
    text = text.strip().removeprefix(PYTHON_TAG).strip()
    at = 0
    while at < len(text):
        try:
            _, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return ()
        call = call_in(text[at:end])
        if call is None:
            return ()
        calls.append(call)
        blank = _BETWEEN_CALLS.match(text, end)
        at = blank.end() if blank else end
    return calls
