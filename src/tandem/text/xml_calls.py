"""Parser of tool calls in XML, as Qwen3-Coder writes them: each argument stands between tags of its
own, a text as it is and anything else as JSON.

A call comes once it is complete; what is none is content. The work is linear in the text.
"""

import json
import re
from collections.abc import Set

from tandem.text.call_markup import CLOSE_TAG, OPEN_TAG
from tandem.text.stop import partial_match_chars
from tandem.text.tool_calls import Pieces, ToolCall, refuse_constant

# A parameter by the names of its function and its own.
Parameter = tuple[str, str]
_FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>\s*")
_PARAMETER = re.compile(r"<parameter=([^<>\s]+)>\n?")
_PARAMETER_END = "</parameter>"
_END = re.compile(r"\s*(</function>\s*)?")
_BLANK = re.compile(r"\s*")


class XmlCallParser:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>`. The
    values of `text_parameters` are texts, even if they are JSON as well."""

    def __init__(self, text_parameters: Set[Parameter] = frozenset()) -> None:
        self._text_parameters = text_parameters
        # What has come since an opening tag, in parts; None outside of a call.
        self._call: list[str] | None = None
        # The beginning of a tag, in a call one that is among its parts.
        self._partial = ""
        self._after_call = False
        self._blank: list[str] = []

    def feed(self, text: str) -> Pieces:
        pieces: Pieces = []
        while text:
            if self._call is None:
                text = self._read_content(pieces, text)
            else:
                text = self._read_call(pieces, text, self._call)
        return pieces

    def finish(self) -> Pieces:
        pieces: Pieces = []
        if self._call is None:
            self._append_content(pieces, self._partial)
        else:
            # Some models leave out the last closing tag.
            self._end_call(pieces, "".join(self._call), closing="")
        return pieces

    def _read_content(self, pieces: Pieces, text: str) -> str:
        """Gives what was not read."""
        text, self._partial = self._partial + text, ""
        content, tag, rest = text.partition(OPEN_TAG)
        if tag:
            self._call = []
        else:
            certain = len(text) - partial_match_chars(text, OPEN_TAG)
            content, self._partial = text[:certain], text[certain:]
        self._append_content(pieces, content)
        return rest

    def _read_call(self, pieces: Pieces, text: str, parts: list[str]) -> str:
        """Gives what was not read."""
        place = (self._partial + text).find(CLOSE_TAG) - len(self._partial)
        if place < -len(self._partial):
            parts.append(text)
            self._partial = (self._partial + text)[-len(CLOSE_TAG) + 1 :]
            return ""
        end = place + len(CLOSE_TAG)
        body = "".join((*parts, text[:end])).removesuffix(CLOSE_TAG)
        self._end_call(pieces, body, closing=CLOSE_TAG)
        return text[end:]

    def _end_call(self, pieces: Pieces, body: str, *, closing: str) -> None:
        self._call, self._partial = None, ""
        call = _call_in(body, self._text_parameters)
        if call is None:
            self._append_content(pieces, OPEN_TAG + body + closing)
            return
        pieces.append(call)
        self._after_call, self._blank = True, []

    def _append_content(self, pieces: Pieces, text: str) -> None:
        # Blank space after a call is content only if words follow.
        if self._after_call and not text.strip():
            self._blank.append(text)
        elif text:
            pieces.append("".join((*self._blank, text)))
            self._after_call, self._blank = False, []


def _call_in(text: str, text_parameters: Set[Parameter]) -> ToolCall | None:
    function = _FUNCTION.match(text)
    if function is None:
        return None
    name, at = function[1], function.end()
    arguments: dict[str, object] = {}
    while found := _PARAMETER.match(text, at):
        end = text.find(_PARAMETER_END, found.end())
        if end < 0:
            return None
        value = text[found.end() : end].removesuffix("\n")
        key = found[1]
        arguments[key] = value if (name, key) in text_parameters else _value(value)
        blank = _BLANK.match(text, end + len(_PARAMETER_END))
        at = blank.end() if blank else len(text)
    is_whole = _END.fullmatch(text, at) is not None
    return ToolCall(name, json.dumps(arguments, ensure_ascii=False)) if is_whole else None


def _value(text: str) -> object:
    """JSON, or a text if it is none."""
    try:
        value = json.loads(text, parse_constant=refuse_constant)
        # Half a character, which JSON may spell, cannot be sent.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return text
    return value
