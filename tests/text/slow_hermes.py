"""The obvious Hermes parser: with every piece it searches and parses all held text anew. Quadratic,
and what the fast one is measured by. Arguments come out written anew, as `json.dumps` has them."""

import json
from typing import NoReturn

from tandem.text.call_markup import CLOSE_TAG, OPEN_TAG
from tandem.text.tool_calls import Pieces, ToolCall


class SlowHermesParser:
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
            self._append(pieces, self._take(len(self._text)), self._called)
        return pieces

    def _read_content(self, pieces: Pieces) -> bool:
        place = self._text.find(OPEN_TAG)
        self._inside = place >= 0
        certain = place if self._inside else self._certain_chars()
        self._append(pieces, self._take(certain), self._called)
        return self._inside

    def _certain_chars(self) -> int:
        held = [n for n in range(len(OPEN_TAG)) if self._text.endswith(OPEN_TAG[:n])]
        certain = len(self._text) - max(held)
        return 0 if self._called and not self._text[:certain].strip() else certain

    def _read_call(self, pieces: Pieces, last: bool) -> bool:
        start = len(OPEN_TAG)
        first_close = close = self._text.find(CLOSE_TAG)
        broken_chars = first_close + len(CLOSE_TAG) if first_close >= 0 else start
        while close >= 0:
            call, in_string = _parse(self._text[start:close])
            if not in_string:
                self._end_call(pieces, call, close + len(CLOSE_TAG) if call else broken_chars)
                return True
            close = self._text.find(CLOSE_TAG, close + 1)
        if not last:
            return False
        call, _ = _parse(self._text[start:])
        self._end_call(pieces, call, len(self._text) if call else broken_chars)
        return True

    def _end_call(self, pieces: Pieces, call: ToolCall | None, chars: int) -> None:
        text = self._take(chars)
        self._inside = False
        if call is None:
            self._append(pieces, text, after_call=False)
        else:
            pieces.append(call)
            self._called = True

    def _append(self, pieces: Pieces, text: str, after_call: bool) -> None:
        if text and not (after_call and not text.strip()):
            pieces.append(text)
            self._called = False

    def _take(self, chars: int) -> str:
        text, self._text = self._text[:chars], self._text[chars:]
        return text


def _parse(text: str) -> tuple[ToolCall | None, bool]:
    try:
        return _call_of(json.loads(text, parse_constant=_refuse_constant)), False
    except json.JSONDecodeError as error:
        return None, error.msg.startswith("Unterminated string")
    except (ValueError, RecursionError):
        return None, False


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _call_of(document: object) -> ToolCall | None:
    fields: object = document
    if isinstance(document, dict) and isinstance(document.get("function"), dict):
        fields = document["function"]
    if not isinstance(fields, dict):
        return None
    name = fields.get("name")
    arguments = fields.get("arguments", fields.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            return None
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    return ToolCall(name, json.dumps(arguments))
