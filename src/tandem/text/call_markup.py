"""Markup of tool calls: what each format writes before, between and behind the name and the
arguments of a call, and how the beginning of a call is recognised while its text still arrives."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tandem.text.tool_calls import ToolFormat, is_name

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
PYTHON_TAG = "<|python_tag|>"
# DeepSeek's tags have full-width bars and a block for a space.
DEEPSEEK_CALLS = "<\uff5ctool\u2581calls\u2581begin\uff5c>"
DEEPSEEK_CALLS_END = "<\uff5ctool\u2581calls\u2581end\uff5c>"
DEEPSEEK_CALL = "<\uff5ctool\u2581call\u2581begin\uff5c>"
DEEPSEEK_CALL_END = "<\uff5ctool\u2581call\u2581end\uff5c>"
DEEPSEEK_SEPARATOR = "<\uff5ctool\u2581sep\uff5c>"
MISTRAL_CALLS = "[TOOL_CALLS]"
MISTRAL_ARGUMENTS = "[ARGS]"
MISTRAL_CALL_ID = "[CALL_ID]"


class Slot(Enum):
    """What in the head of a call is no fixed text."""

    BLANK = auto()
    NAME = auto()
    # The name as a JSON string.
    QUOTED_NAME = auto()
    CALL_ID = auto()


# Each is bounded, so that a head is, too: what is held of one is looked at anew with each piece.
_NAME = r'[^\s\[\]{}<>"]{1,1024}'
_PATTERNS = {
    Slot.BLANK: re.compile(r"[ \t\r\n]{0,64}"),
    Slot.NAME: re.compile(_NAME),
    Slot.QUOTED_NAME: re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){1,1024}"'),
    Slot.CALL_ID: re.compile(_NAME),
}
_QUOTED_BEGINNING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}){0,1024}')
_HALF_ESCAPE = re.compile(r"(\\(u[0-9a-fA-F]{0,3})?)?")
Head = tuple[str | Slot, ...]


@dataclass(frozen=True, slots=True)
class CallMarkup:
    """One way to write calls: `opening` and `start`, then for each call its `head`, its arguments
    and its `tail`, with `between` before each further one, and at last `closing`.

    With `in_object` the name and the arguments are members of a JSON object, which ends before the
    tail. Tail, between and closing may have blank space before them.
    """

    opening: str
    head: Head
    start: Head = ()
    in_object: bool = False
    tail: tuple[str, ...] = ()
    between: str = ""
    closing: str = ""


@dataclass(frozen=True, slots=True)
class FoundHead:
    """The head of a call of this name, up to its arguments or the name alone, ends at `end`."""

    markup: CallMarkup
    name: str
    end: int


def _object_head(arguments_key: str) -> Head:
    blank = Slot.BLANK
    key = (blank, '"name"', blank, ":", blank, Slot.QUOTED_NAME)
    return (blank, "{", *key, blank, ",", blank, f'"{arguments_key}"', blank, ":", blank)


def _mistral(head: Head) -> CallMarkup:
    return CallMarkup(MISTRAL_CALLS, (Slot.BLANK, *head, Slot.BLANK), between=MISTRAL_CALLS)


def _llama3(opening: str) -> CallMarkup:
    return CallMarkup(opening, _object_head("parameters"), in_object=True, between=";")


def _deepseek(before: Head, after: str, tail: tuple[str, ...]) -> CallMarkup:
    return CallMarkup(
        DEEPSEEK_CALLS + DEEPSEEK_CALL,
        (*before, Slot.NAME, after),
        tail=(*tail, DEEPSEEK_CALL_END),
        between=DEEPSEEK_CALL,
        closing=DEEPSEEK_CALLS_END,
    )


# All of a format are understood. What has no JSON in it has none.
MARKUPS: Mapping[ToolFormat, tuple[CallMarkup, ...]] = {
    ToolFormat.HERMES: (
        CallMarkup(
            OPEN_TAG,
            _object_head("arguments"),
            in_object=True,
            tail=(CLOSE_TAG,),
            between=OPEN_TAG,
        ),
    ),
    ToolFormat.LLAMA3_JSON: (_llama3(""), _llama3(PYTHON_TAG)),
    ToolFormat.MISTRAL: (
        CallMarkup(
            MISTRAL_CALLS,
            _object_head("arguments"),
            start=(Slot.BLANK, "["),
            in_object=True,
            between=",",
            closing="]",
        ),
        _mistral((Slot.NAME, MISTRAL_ARGUMENTS)),
        _mistral((Slot.NAME,)),
        _mistral((Slot.NAME, MISTRAL_CALL_ID, Slot.CALL_ID, MISTRAL_ARGUMENTS)),
    ),
    ToolFormat.DEEPSEEK_V3: (_deepseek(("function", DEEPSEEK_SEPARATOR), "\n```json\n", ("```",)),),
    ToolFormat.DEEPSEEK_V31: (_deepseek((), DEEPSEEK_SEPARATOR, ()),),
}
# Of calls, which are kept in the text where other special tokens are left out.
TAGS: Mapping[ToolFormat, tuple[str, ...]] = {
    ToolFormat.HERMES: (OPEN_TAG, CLOSE_TAG),
    ToolFormat.QWEN3_XML: (OPEN_TAG, CLOSE_TAG),
    ToolFormat.LLAMA3_JSON: (),
    ToolFormat.MISTRAL: (MISTRAL_CALLS, MISTRAL_ARGUMENTS, MISTRAL_CALL_ID),
    **dict.fromkeys(
        (ToolFormat.DEEPSEEK_V3, ToolFormat.DEEPSEEK_V31),
        (
            DEEPSEEK_CALLS,
            DEEPSEEK_CALLS_END,
            DEEPSEEK_CALL,
            DEEPSEEK_CALL_END,
            DEEPSEEK_SEPARATOR,
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class WrittenCalls:
    """How calls are written where a grammar demands them: `opening`, a `call`, and for each more
    `between` and a call, then `closing`. In a call `$name` or `$quoted_name`, `$arguments` and
    `$id` stand for those."""

    opening: str
    call: str
    between: str = ""
    closing: str = ""


def _mistral_written(call: str) -> WrittenCalls:
    return WrittenCalls(MISTRAL_CALLS, call, between=MISTRAL_CALLS)


_MISTRAL_LIST = WrittenCalls(
    f"{MISTRAL_CALLS} [",
    '{"name": $quoted_name, "arguments": $arguments}',
    between=", ",
    closing="]",
)
_MISTRAL_WRITTEN = (
    (MISTRAL_CALL_ID, f"$name{MISTRAL_CALL_ID}$id{MISTRAL_ARGUMENTS}$arguments"),
    (MISTRAL_ARGUMENTS, f"$name{MISTRAL_ARGUMENTS}$arguments"),
)
_WRITTEN: Mapping[ToolFormat, WrittenCalls] = {
    ToolFormat.HERMES: WrittenCalls(
        OPEN_TAG,
        f'\n{{"name": $quoted_name, "arguments": $arguments}}\n{CLOSE_TAG}',
        between=f"\n{OPEN_TAG}",
    ),
    ToolFormat.LLAMA3_JSON: WrittenCalls(
        "", '{"name": $quoted_name, "parameters": $arguments}', between="; "
    ),
    ToolFormat.MISTRAL: _MISTRAL_LIST,
    ToolFormat.DEEPSEEK_V3: WrittenCalls(
        DEEPSEEK_CALLS + DEEPSEEK_CALL,
        f"function{DEEPSEEK_SEPARATOR}$name\n```json\n$arguments\n```{DEEPSEEK_CALL_END}",
        between=f"\n{DEEPSEEK_CALL}",
        closing=DEEPSEEK_CALLS_END,
    ),
    ToolFormat.DEEPSEEK_V31: WrittenCalls(
        DEEPSEEK_CALLS + DEEPSEEK_CALL,
        f"$name{DEEPSEEK_SEPARATOR}$arguments{DEEPSEEK_CALL_END}",
        between=DEEPSEEK_CALL,
        closing=DEEPSEEK_CALLS_END,
    ),
}


def written_calls(tool_format: ToolFormat, templates: str) -> WrittenCalls | None:
    """How a model with these chat templates is used to write calls; None where no grammar is made
    of that."""
    if tool_format is ToolFormat.MISTRAL:
        for tag, call in _MISTRAL_WRITTEN:
            if tag in templates:
                return _mistral_written(call)
    return _WRITTEN.get(tool_format)


def is_plain_name(name: str) -> bool:
    """Whether a function of that name can be called without quotes."""
    return bool(_PATTERNS[Slot.NAME].fullmatch(name))


def shown_format(templates: str) -> ToolFormat | None:
    """The format of the calls that these chat templates write of earlier answers, or describe."""
    if DEEPSEEK_CALL in templates:
        # Only the older one has a code block around the arguments.
        has_block = "```json" in templates
        return ToolFormat.DEEPSEEK_V3 if has_block else ToolFormat.DEEPSEEK_V31
    if MISTRAL_CALLS in templates:
        return ToolFormat.MISTRAL
    if OPEN_TAG in templates and "<function=" in templates:
        return ToolFormat.QWEN3_XML
    if OPEN_TAG in templates:
        return ToolFormat.HERMES
    if '"parameters"' in templates and '"name"' in templates:
        return ToolFormat.LLAMA3_JSON
    return None


class NoHead(Enum):
    """There is none; more text could make it one, or never."""

    YET = auto()
    EVER = auto()


def find_head(
    markups: Sequence[tuple[CallMarkup, Head]], text: str, at: int, *, by_name: bool
) -> FoundHead | NoHead:
    """The head that text[at:] begins with, read as one of these; with `by_name` as soon as the
    name is certain, else once the arguments begin."""
    is_open = False
    for markup, head in markups:
        name, end = _read(head, text, at, by_name)
        if end >= 0:
            if is_name(name):
                return FoundHead(markup, name, end)
        elif end == _OPEN:
            is_open = True
    return NoHead.YET if is_open else NoHead.EVER


_OPEN, _OTHER = -1, -2


def _read(head: Head, text: str, at: int, by_name: bool) -> tuple[str, int]:
    """The name, and where the head ends: behind it, or in front of the brace that opens the
    arguments."""
    name = ""
    for part in (*head, "{"):
        if isinstance(part, str):
            end = _literal_end(part, text, at)
        else:
            end = _slot_end(part, text, at)
        if end < 0:
            return "", end
        if part is Slot.NAME:
            name = text[at:end]
        elif part is Slot.QUOTED_NAME:
            name = json.loads(text[at:end])
        at = end
        if name and by_name:
            return name, at
    return name, at - 1


def _literal_end(literal: str, text: str, at: int) -> int:
    if text.startswith(literal, at):
        return at + len(literal)
    return _OPEN if is_beginning(literal, text, at) else _OTHER


def is_beginning(literal: str, text: str, at: int) -> bool:
    """Whether text[at:] is shorter than `literal` and may become it."""
    return len(text) - at < len(literal) and literal.startswith(text[at:])


def _slot_end(slot: Slot, text: str, at: int) -> int:
    found = _PATTERNS[slot].match(text, at)
    if slot is Slot.QUOTED_NAME:
        if found:
            return found.end()
        begun = _QUOTED_BEGINNING.match(text, at)
        end = begun.end() if begun else at
        is_open = bool(begun) and bool(_HALF_ESCAPE.fullmatch(text, end))
        return _OPEN if is_open or at == len(text) else _OTHER
    end = found.end() if found else at
    if end == len(text):
        return _OPEN
    return end if found else _OTHER
