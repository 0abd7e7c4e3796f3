"""Tool calls as parsers give them, and one call as the JSON object that most models write it as.

The arguments of a call are the text that the model wrote, never written anew: so what a stream told
of them, joined, is what an answer says that does not stream.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn, Protocol


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call: the function's name and its arguments as JSON text, or the beginning of that where
    `MoreArguments` follow."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class MoreArguments:
    """What goes on the arguments of the call before."""

    text: str


CallPart = ToolCall | MoreArguments
Pieces = list[str | ToolCall | MoreArguments]


class CallsSoFar:
    """The calls of an answer, put together from their parts."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._arguments: list[list[str]] = []
        # Of the last call, joined now and then: texts of one token each are mostly objects.
        self._recent: list[str] = []

    def add(self, part: CallPart) -> None:
        if isinstance(part, ToolCall):
            self._join_recent()
            self._names.append(part.name)
            self._arguments.append([part.arguments])
            return
        self._recent.append(part.text)
        if len(self._recent) >= _JOINED_PARTS:
            self._join_recent()

    def calls(self) -> list[ToolCall]:
        """The last one may be half of one."""
        self._join_recent()
        return [
            ToolCall(name, "".join(arguments))
            for name, arguments in zip(self._names, self._arguments, strict=True)
        ]

    def _join_recent(self) -> None:
        if self._recent:
            self._arguments[-1].append("".join(self._recent))
            self._recent = []


class ToolFormat(StrEnum):
    """How a model writes calls, named as vLLM names its parsers."""

    HERMES = "hermes"
    LLAMA3_JSON = "llama3_json"
    MISTRAL = "mistral"
    DEEPSEEK_V3 = "deepseek_v3"
    DEEPSEEK_V31 = "deepseek_v31"
    QWEN3_XML = "qwen3_xml"


class ToolParser(Protocol):
    """Splits one answer into content and calls."""

    def feed(self, text: str) -> Pieces: ...

    def finish(self) -> Pieces: ...


_JOINED_PARTS = 128
_BLANK = re.compile(r"[ \t\n\r]*")
# Half a character, which cannot be sent: JSON may spell it.
_SURROGATE = re.compile("[\ud800-\udfff]")
# Of the escapes of a JSON text those that are whole by themselves, which the first group has, and
# half characters.
_ESCAPES = re.compile(r"(\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\[^u])|\\u[dD][89a-fA-F]..")


def call_in(text: str) -> ToolCall | None:
    """The call that a JSON object is, or none."""
    try:
        json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    fields = _members(text)
    if fields.get("function", "").startswith("{"):
        fields = _members(fields["function"])
    name = json.loads(fields.get("name", "null"))
    arguments = fields.get("arguments", fields.get("parameters", "{}"))
    if arguments.startswith('"'):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not is_name(name) or not is_arguments(arguments):
        return None
    return ToolCall(name, arguments)


def is_name(name: str) -> bool:
    """Whether a function can be called so."""
    return bool(name) and not _SURROGATE.search(name)


def is_arguments(text: str) -> bool:
    """Whether it is a JSON object, and can be sent as it is."""
    if _SURROGATE.search(text):
        return False
    try:
        return isinstance(json.loads(text, parse_constant=refuse_constant), dict)
    except (ValueError, RecursionError):
        return False


def sent_object(arguments: str) -> str:
    """The arguments as a JSON object that every reader takes: `{}` for half of one, where an answer
    was cut off, and no half characters."""
    if not is_arguments(arguments):
        return "{}"
    return _ESCAPES.sub(lambda found: found[1] or r"\ufffd", arguments)


def _members(text: str) -> Mapping[str, str]:
    """The members of a well-formed JSON object as they are written; none of anything else. Of
    several with one name the last counts, as for `json`."""
    members: dict[str, str] = {}
    at = _after_blank(text, 0)
    if not text.startswith("{", at):
        return members
    at = _after_blank(text, at + 1)
    while text[at] != "}":
        name, at = _decoder.raw_decode(text, at)
        begin = _after_blank(text, _after_blank(text, at) + 1)
        _, end = _decoder.raw_decode(text, begin)
        members[name] = text[begin:end]
        at = _after_blank(text, end)
        if text[at] == ",":
            at = _after_blank(text, at + 1)
    return members


def _after_blank(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def refuse_constant(name: str) -> NoReturn:
    """For NaN and the infinities, which `json` reads otherwise."""
    raise ValueError(f"{name} is not JSON")


_decoder = json.JSONDecoder(parse_constant=refuse_constant)
