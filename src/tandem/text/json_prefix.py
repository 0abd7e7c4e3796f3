"""Incremental JSON check: whether a text that still arrives is the beginning of a JSON value, and
whether it ends inside a string.

Reads every character once, where parsing anew with each piece would cost the square of the length.
It accepts what `json.loads` accepts without its constants that are not JSON.
"""

import re
from enum import Enum, auto

# Deeper values are refused: whoever parses them afterwards does so by recursion.
MOST_LEVELS = 500
# So many digits Python takes for an integer.
_MOST_DIGITS = 4300
_BLANK = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_STRING_BODY = re.compile(r'(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_LITERALS = ("true", "false", "null")
_UNICODE_ESCAPE = re.compile(r"\\u[0-9a-fA-F]{4}")
_ESCAPE_CHARS = 6


class _Expected(Enum):
    """What may come next, beside blank space."""

    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    NOTHING = auto()


class JsonPrefix:
    """The value so far. Once `broken` it stays so, whatever follows."""

    def __init__(self) -> None:
        self.broken = False
        self._levels = bytearray()
        self._expected = _Expected.VALUE
        self._in_string = False

    @property
    def complete(self) -> bool:
        """Whether it is a whole value, and nothing more."""
        return not self.broken and self._expected is _Expected.NOTHING

    def advance(self, text: str, at: int, end: int) -> tuple[bool, int]:
        """Reads text[at:end], which follows what was read before, up to where it is whole. Gives
        whether it ends inside of a string that is well-formed so far, and from where to go on."""
        while not self.broken:
            if self._in_string:
                at = self._read_string(text, at, end)
                if self._in_string:
                    return not self.broken and not _ends_in_escape(text, at, end), at
            found = _BLANK.match(text, at, end)
            at = found.end() if found else at
            if at >= end:
                break
            at = self._read(text, at, end)
        return False, at

    def _read_string(self, text: str, at: int, end: int) -> int:
        body = _STRING_BODY.match(text, at, end)
        at = body.end() if body else at
        if at < end and text[at] == '"':
            self._in_string = False
            self._end_string()
            return at + 1
        # Half an escape waits for its other character; anything else here is no JSON.
        self.broken = at < end and (text[at] != "\\" or at + 1 < end)
        return at

    def _end_string(self) -> None:
        if self._expected in (_Expected.KEY, _Expected.KEY_OR_END):
            self._expected = _Expected.COLON
        else:
            self._end_value()

    def _end_value(self) -> None:
        self._expected = _Expected.COMMA_OR_END if self._levels else _Expected.NOTHING

    def _read(self, text: str, at: int, end: int) -> int:
        """One bracket, separator, number, literal or beginning of a string."""
        char, expected = text[at], self._expected
        takes_value = expected in (_Expected.VALUE, _Expected.VALUE_OR_END)
        if char == '"' and (takes_value or expected in (_Expected.KEY, _Expected.KEY_OR_END)):
            self._in_string = True
        elif char in "[{" and takes_value and len(self._levels) < MOST_LEVELS:
            self._levels.append(ord(char))
            self._expected = _Expected.VALUE_OR_END if char == "[" else _Expected.KEY_OR_END
        elif char in "]}" and self._closes(char):
            self._levels.pop()
            self._end_value()
        elif char == "," and expected is _Expected.COMMA_OR_END:
            in_object = self._levels[-1] == ord("{")
            self._expected = _Expected.KEY if in_object else _Expected.VALUE
        elif char == ":" and expected is _Expected.COLON:
            self._expected = _Expected.VALUE
        elif takes_value:
            return self._read_plain(text, at, end)
        else:
            self.broken = True
        return at + 1

    def _closes(self, char: str) -> bool:
        opening, empty = (
            ("[", _Expected.VALUE_OR_END) if char == "]" else ("{", _Expected.KEY_OR_END)
        )
        fits = bool(self._levels) and self._levels[-1] == ord(opening)
        return fits and self._expected in (_Expected.COMMA_OR_END, empty)

    def _read_plain(self, text: str, at: int, end: int) -> int:
        number = _NUMBER.match(text, at, end)
        if number:
            whole = number[2] is None and number[3] is None
            self.broken = whole and len(number[1]) > _MOST_DIGITS
            self._end_value()
            return number.end()
        for literal in _LITERALS:
            if text.startswith(literal, at, end):
                self._end_value()
                return at + len(literal)
        self.broken = True
        return at


def _ends_in_escape(text: str, at: int, end: int) -> bool:
    r"""Whether the last thing before `end` is a \uXXXX: `json` wants one more character behind."""
    begin = end - _ESCAPE_CHARS
    if at < end or begin < 0 or not _UNICODE_ESCAPE.fullmatch(text, begin, end):
        return False
    backslashes = 1
    while begin >= backslashes and text[begin - backslashes] == "\\":
        backslashes += 1
    return backslashes % 2 == 1
