"""Parser of tool calls by their markup (`call_markup`), for every format.

What a grammar has shaped comes out while it is written: the call once its name is known, then its
arguments. Without a grammar a call comes once it is complete and
well-formed; until then it may turn out to be content. The work is linear in the text, however it
is cut.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto

from tandem.text.call_markup import (
    CallMarkup,
    FoundHead,
    Head,
    NoHead,
    Slot,
    find_head,
    is_beginning,
)
from tandem.text.json_span import JsonSpan
from tandem.text.stop import partial_match_chars
from tandem.text.tool_calls import MoreArguments, Pieces, ToolCall, is_arguments

_BLANK = re.compile(r"[ \t\r\n]*")


class _Stage(Enum):
    """What is being read."""

    CONTENT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    REST_OF_OBJECT = auto()
    TAIL = auto()
    AFTER_CALL = auto()
    # No call may begin any more.
    ONLY_CONTENT = auto()


class _Call:
    """One whose head was read."""

    def __init__(self, head: FoundHead) -> None:
        self.name = head.name
        self.markup = head.markup
        self.span = JsonSpan()
        self.arguments_begun = False
        # All of them, unless they were told as they came.
        self.arguments: list[str] = []
        self.rest: list[str] = []
        self.missing_tail = list(head.markup.tail)

    @property
    def ends_its_object(self) -> bool:
        """Whether what follows the arguments is well-formed."""
        return is_arguments("".join(('{"arguments":0', *self.rest)))


class MarkedCallParser:
    """Calls in one of these markups, which open alike if they may stand `anywhere`; else at the
    beginning of the answer alone. With `streams` what begins like a call is one for certain."""

    def __init__(self, markups: Sequence[CallMarkup], *, anywhere: bool, streams: bool) -> None:
        self._markups = markups
        self._streams = streams
        self._stage_of_content = _Stage.CONTENT if anywhere else _Stage.ONLY_CONTENT
        self._stage = _Stage.CONTENT if anywhere else _Stage.HEAD
        # What one of may come. At the beginning of an answer the opening belongs to the head.
        self._heads = [(each, (*_opening(each), *each.start, *each.head)) for each in markups]
        self._call: _Call | None = None
        self._after_call = False
        # What comes out as content if no call comes of it.
        self._opened: list[str] = []
        # Not read yet: the beginning of a tag or of a head, both short.
        self._held = ""
        # Blank space after a call: content only if words follow.
        self._blank: list[str] = []

    def feed(self, text: str) -> Pieces:
        return self._pieces(text, last=False)

    def finish(self) -> Pieces:
        return self._pieces("", last=True)

    def _pieces(self, text: str, *, last: bool) -> Pieces:
        pieces: Pieces = []
        text, self._held = self._held + text, ""
        at = 0
        while 0 <= at < len(text):
            at = self._read(pieces, text, at, last)
        if last:
            self._append_opened(pieces)
        return pieces

    def _read(self, pieces: Pieces, text: str, at: int, last: bool) -> int:
        """Gives from where to go on, or -1 once all that is there was taken."""
        match self._stage:
            case _Stage.CONTENT:
                return self._read_content(pieces, text, at, last)
            case _Stage.HEAD:
                return self._read_head(pieces, text, at, last)
            case _Stage.ARGUMENTS:
                return self._read_arguments(pieces, text, at)
            case _Stage.REST_OF_OBJECT:
                return self._read_rest(pieces, text, at)
            case _Stage.TAIL:
                return self._read_tail(text, at, last)
            case _Stage.AFTER_CALL:
                return self._read_after_call(text, at, last)
            case _Stage.ONLY_CONTENT:
                self._append_content(pieces, text[at:])
                return -1

    def _read_content(self, pieces: Pieces, text: str, at: int, last: bool) -> int:
        opening = self._markups[0].opening
        place = text.find(opening, at)
        if place >= 0:
            self._append_content(pieces, text[at:place])
            self._opened = [opening]
            self._heads = [(each, (*each.start, *each.head)) for each in self._markups]
            self._stage = _Stage.HEAD
            return place + len(opening)
        held_chars = 0 if last else partial_match_chars(text[at:], opening)
        certain = len(text) - held_chars
        self._append_content(pieces, text[at:certain])
        self._held = text[certain:]
        return -1

    def _read_head(self, pieces: Pieces, text: str, at: int, last: bool) -> int:
        found = find_head(self._heads, text, at, by_name=self._streams)
        if isinstance(found, NoHead):
            if last or found is NoHead.EVER:
                return self._give_up(pieces, at)
            self._held = text[at:]
            return -1
        self._call = _Call(found)
        self._stage = _Stage.ARGUMENTS
        if self._streams:
            self._add_call(pieces, ToolCall(found.name, ""))
        else:
            self._opened.append(text[at : found.end])
        return found.end

    def _read_arguments(self, pieces: Pieces, text: str, at: int) -> int:
        call = self._call
        assert call is not None
        if not call.arguments_begun:
            at = text.find("{", at)
            if at < 0:
                return -1
            call.arguments_begun = True
        end = call.span.end(text, at)
        part = text[at:end] if end >= 0 else text[at:]
        if self._streams:
            pieces.append(MoreArguments(part))
        else:
            self._opened.append(part)
            call.arguments.append(part)
        if end < 0:
            return -1
        if call.span.broken or not (self._streams or is_arguments("".join(call.arguments))):
            return self._give_up(pieces, end)
        if call.markup.in_object:
            call.span = JsonSpan(inside="{")
            self._stage = _Stage.REST_OF_OBJECT
        else:
            self._end_call(pieces, call)
        return end

    def _read_rest(self, pieces: Pieces, text: str, at: int) -> int:
        """Behind the arguments in their object, which may have further members."""
        call = self._call
        assert call is not None
        end = call.span.end(text, at)
        if not self._streams:
            part = text[at:end] if end >= 0 else text[at:]
            self._opened.append(part)
            call.rest.append(part)
        if end < 0:
            return -1
        if call.span.broken or not (self._streams or call.ends_its_object):
            return self._give_up(pieces, end)
        self._end_call(pieces, call)
        return end

    def _read_tail(self, text: str, at: int, last: bool) -> int:
        """Tags that close a call. Some models leave one out."""
        call = self._call
        assert call is not None
        at = self._read_blank(text, at)
        tail = call.missing_tail
        if tail and text.startswith(tail[0], at):
            self._blank = []
            return at + len(tail.pop(0))
        if tail and is_beginning(tail[0], text, at):
            # Half a tag where the answer ends is no content either.
            self._held = "" if last else text[at:]
            return -1
        self._stage = _Stage.AFTER_CALL
        return at

    def _read_after_call(self, text: str, at: int, last: bool) -> int:
        call = self._call
        assert call is not None
        at = self._read_blank(text, at)
        markup = call.markup
        if markup.closing and text.startswith(markup.closing, at):
            self._blank = []
            self._stage = self._stage_of_content
            return at + len(markup.closing)
        if markup.between and text.startswith(markup.between, at):
            self._opened = [*self._blank, markup.between]
            self._blank = []
            self._heads = [(markup, markup.head)]
            self._stage = _Stage.HEAD
            return at + len(markup.between)
        options = [each for each in (markup.between, markup.closing) if each]
        if not last and any(is_beginning(each, text, at) for each in options):
            self._held = text[at:]
            return -1
        self._stage = self._stage_of_content
        return at

    def _read_blank(self, text: str, at: int) -> int:
        found = _BLANK.match(text, at)
        end = found.end() if found else at
        self._blank.append(text[at:end])
        return end

    def _add_call(self, pieces: Pieces, call: ToolCall) -> None:
        pieces.append(call)
        self._after_call = True
        self._opened, self._blank = [], []

    def _end_call(self, pieces: Pieces, call: _Call) -> None:
        if not self._streams:
            self._add_call(pieces, ToolCall(call.name, "".join(call.arguments)))
        self._stage = _Stage.TAIL

    def _give_up(self, pieces: Pieces, at: int) -> int:
        """It was no call."""
        self._append_opened(pieces)
        self._stage = self._stage_of_content
        return at

    def _append_opened(self, pieces: Pieces) -> None:
        self._append_content(pieces, "".join(self._opened))
        self._opened = []

    def _append_content(self, pieces: Pieces, text: str) -> None:
        if self._after_call and not text.strip():
            self._blank.append(text)
        elif text:
            pieces.append("".join((*self._blank, text)))
            self._after_call, self._blank = False, []


def _opening(markup: CallMarkup) -> Head:
    return (Slot.BLANK, markup.opening) if markup.opening else ()
