"""Grammars of tool calls, as each format writes them: answers that must be calls, answers that may
be anything but whose calls must fit, and answers that are calls or of another form."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.text.call_markup import PYTHON_TAG, TAGS, WrittenCalls, is_plain_name
from tandem.text.grammars import WHITESPACE, GrammarError, lark_grammar, lark_text, within_grammar
from tandem.text.tool_calls import ToolFormat
from tandem.text.tools import CALL_KEYS

# Who must call tools makes at most so many calls in one answer.
MOST_CALLS = 16
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
_CALL_ID = "/[a-zA-Z0-9]{9}/"


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A function that may be called, and the JSON schema of its arguments."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def schema(self) -> dict[str, Any]:
        """Arguments are an object, whatever else is said of them."""
        said = self.parameters or _NO_ARGUMENTS
        return {"x-guidance": {"whitespace_pattern": WHITESPACE}} | said | {"type": "object"}


@dataclass(frozen=True, slots=True)
class ToolCallSyntax:
    """How a model writes calls; `token_ids` are those of its tags that are tokens of their own, not
    text."""

    tool_format: ToolFormat
    written: WrittenCalls
    token_ids: Mapping[str, int]

    @property
    def opens_by_tag(self) -> bool:
        """Whether a call may begin anywhere in an answer, because a tag says so."""
        return bool(self.written.opening)

    def section_rules(
        self, tools: Sequence[CalledTool], *, several: bool, as_json: bool = False
    ) -> list[str]:
        """Of `section`, one or a few calls with what opens and closes them, without the tag that it
        begins with; in Lark's notation, cut into the parts that a JSON schema has if `as_json`.
        Raises `GrammarError` for a name that cannot be written."""
        written, literal = self.written, _json_parts if as_json else _literal
        between = self._parts(written.between, literal)
        more = f"({between} call){{0,{MOST_CALLS - 1}}}" if several else ""
        opening = self._parts(written.opening.removeprefix(self.first_tag), literal)
        closing = self._parts(written.closing, literal)
        names = " | ".join(f"function_{number}" for number in range(len(tools)))
        rules = [f"section: {opening} call {more} {closing}", f"call: {names}"]
        rules += [f"BLANK_IN_JSON: /{WHITESPACE}/"] if as_json else []
        for number, tool in enumerate(tools):
            if "$name" in written.call and not is_plain_name(tool.name):
                raise GrammarError(f"the model cannot write the name {tool.name[:64]!r}")
            function = self._parts(written.call, literal, number, tool.name)
            rules.append(f"function_{number}: {function}")
            rules.append(f"arguments_{number}: %json {json.dumps(tool.schema)}")
        return rules

    @property
    def first_tag(self) -> str:
        """What opens calls; empty where no tag does."""
        opening = self.written.opening
        return next((tag for tag in TAGS[self.tool_format] if opening.startswith(tag)), "")

    def tag(self, tag: str) -> str:
        """One of its tags in Lark's notation."""
        token = self.token_ids.get(tag)
        return lark_text(tag) if token is None else f"<[{token}]>"

    def _parts(
        self, text: str, literal: Callable[[str], str], number: int = 0, name: str = ""
    ) -> str:
        """A written text in Lark's notation; its slots are those of the function, and `literal`
        gives what stands between them."""
        slots = {
            "$arguments": f"arguments_{number}",
            "$name": lark_text(name),
            "$quoted_name": lark_text(json.dumps(name)),
            "$id": _CALL_ID,
        }
        tags = TAGS[self.tool_format]
        cuts = re.compile("|".join(map(re.escape, sorted((*slots, *tags), key=len, reverse=True))))
        parts, at = [], 0
        for found in cuts.finditer(text):
            parts.append(literal(text[at : found.start()]))
            parts.append(slots.get(found[0]) or self.tag(found[0]))
            at = found.end()
        return " ".join(part for part in (*parts, literal(text[at:])) if part)


def demanded_calls(tools: Sequence[CalledTool], syntax: ToolCallSyntax, *, several: bool) -> str:
    """The answer is a call of one of these tools, or with `several` a few of them. Raises
    `GrammarError`."""
    rules = syntax.section_rules(tools, several=several)
    return lark_grammar("\n".join([f"start: {_opened(syntax)} section", *rules]))


def calls_or_form(
    tools: Sequence[CalledTool], syntax: ToolCallSyntax, form: str, *, several: bool
) -> str:
    """As `demanded_calls`, or a text of the grammar `form`. Raises `GrammarError`."""
    # Where no tag tells them apart, both may begin alike: what is read of them must be, too.
    rules = syntax.section_rules(tools, several=several, as_json=not syntax.opens_by_tag)
    start = f"start: {_opened(syntax)} section | @form"
    return within_grammar("\n".join([start, *rules]), "form", form)


def fitting_calls(tools: Sequence[CalledTool], syntax: ToolCallSyntax, *, several: bool) -> str:
    """Any text, but what begins like a call calls one of these tools, with arguments that fit; at
    most once unless `several`. Raises `GrammarError`."""
    rules = syntax.section_rules(tools, several=several)
    if not syntax.opens_by_tag:
        # A call is the whole answer, and known by its first key.
        start = f"start: {_opened(syntax)} section | TEXT"
        keys = "|".join(CALL_KEYS)
        text = rf'TEXT: /(.|\n)*/ & ~/\s*\{{\s*"({keys})"(.|\n)*/'
        return lark_grammar("\n".join([start, text, *rules]))
    tag = syntax.first_tag
    opened = f"opened: TEXT {syntax.tag(tag)}"
    if tag not in syntax.token_ids:
        opened = rf"opened[lazy]: /(.|\n)*{_escaped(tag)}/"
    # Neither as a token nor spelled: what begins like a call is one.
    text = rf"TEXT: /(.|\n)*/ & ~/(.|\n)*{_escaped(tag)}(.|\n)*/"
    start = f"start: (opened section){'*' if several else '?'} TEXT"
    return lark_grammar("\n".join([start, opened, text, *rules]))


def _opened(syntax: ToolCallSyntax) -> str:
    """What a section at the beginning of an answer begins with."""
    if syntax.opens_by_tag:
        return syntax.tag(syntax.first_tag)
    return f"{syntax.tag(PYTHON_TAG)}?" if PYTHON_TAG in syntax.token_ids else ""


def _literal(text: str) -> str:
    return lark_text(text) if text else ""


def _json_parts(text: str) -> str:
    parts = re.findall(r'"\w+"|\s+|.', text)
    return " ".join("BLANK_IN_JSON" if part.isspace() else _literal(part) for part in parts)


def _escaped(text: str) -> str:
    """As a part of a regular expression in Lark's notation."""
    return re.escape(text).replace("/", r"\/")
