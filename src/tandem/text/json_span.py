"""Where a JSON object or array that still arrives ends: brackets and strings are followed, and
nothing else of it is checked.

Reads every character once, wherever the text is cut.
"""

import re

_CLOSING = {"}": "{", "]": "["}
# Outside of strings JSON has these characters alone, which tells prose early.
_PLAIN = re.compile(r"[\s0-9A-Za-z.,:+-]*")
# A string up to what ends it, begins an escape, or may not stand in it.
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]*')


class JsonSpan:
    """How deep in its objects and arrays the text is, from `inside` of some on (their opening
    brackets). Once `broken` it cannot be JSON."""

    def __init__(self, inside: str = "") -> None:
        self.broken = False
        self._levels = list(inside)
        self._in_string = False
        self._in_escape = False

    def end(self, text: str, at: int) -> int:
        """Reads text[at:], which follows what was read before, and gives the place behind its end,
        or behind what broke it; -1 where neither is in the text."""
        while at < len(text):
            if self._in_string:
                at = self._read_string(text, at)
            else:
                at = _end(_PLAIN, text, at)
                if at == len(text):
                    break
                self._read(text[at])
                at += 1
            if self.broken or not (self._levels or self._in_string):
                return at
        return -1

    def _read_string(self, text: str, at: int) -> int:
        if self._in_escape:
            self._in_escape = False
            return at + 1
        at = _end(_IN_STRING, text, at)
        if at == len(text):
            return at
        self._in_string = text[at] != '"'
        self._in_escape = text[at] == "\\"
        self.broken = self._in_string and not self._in_escape
        return at + 1

    def _read(self, char: str) -> None:
        """A quote or a bracket, or what is no JSON."""
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._levels.append(char)
        else:
            fits = bool(self._levels) and self._levels[-1] == _CLOSING.get(char)
            self.broken = not fits
            if fits:
                self._levels.pop()


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
