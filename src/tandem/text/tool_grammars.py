"""Grammars of tool calls, as each format writes them: answers that must be calls, and answers that
may be anything but whose calls must fit."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.text.grammars import WHITESPACE, lark_grammar
from tandem.text.tools import CLOSE_TAG, OPEN_TAG, ToolFormat

# Who must call tools makes at most so many calls in one answer.
MOST_CALLS = 16
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}


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
    """How a model writes calls; `has_tags`: its tags are tokens of their own, not text."""

    tool_format: ToolFormat
    has_tags: bool

    @property
    def arguments_key(self) -> str:
        return "arguments" if self.tool_format is ToolFormat.HERMES else "parameters"

    def call_rules(self, tools: Sequence[CalledTool]) -> list[str]:
        """Of `call`, without what opens it, in Lark's notation."""
        names = " | ".join(f"function_{number}" for number in range(len(tools)))
        rules = [f"call: {names}"]
        if self.tool_format is ToolFormat.HERMES:
            close = f'"\\n" {CLOSE_TAG}' if self.has_tags else json.dumps(f"\n{CLOSE_TAG}")
            rules = [f'call: "\\n" ({names}) {close}']
        for number, tool in enumerate(tools):
            head = f'{{"name": {json.dumps(tool.name)}, "{self.arguments_key}": '
            rules.append(f'function_{number}: {json.dumps(head)} arguments_{number} "}}"')
            rules.append(f"arguments_{number}: %json {json.dumps(tool.schema)}")
        return rules


def demanded_calls(tools: Sequence[CalledTool], syntax: ToolCallSyntax, *, several: bool) -> str:
    """The answer is a call of one of these tools, or with `several` a few of them. Raises
    `GrammarError`."""
    opening, between = "", '"; "'
    if syntax.tool_format is ToolFormat.HERMES:
        opening, between = OPEN_TAG if syntax.has_tags else json.dumps(OPEN_TAG), '"\\n"'
    more = f" ({between} {opening} call){{0,{MOST_CALLS - 1}}}" if several else ""
    return lark_grammar("\n".join([f"start: {opening} call{more}", *syntax.call_rules(tools)]))


def fitting_calls(tools: Sequence[CalledTool], syntax: ToolCallSyntax, *, several: bool) -> str:
    """Any text, but what Hermes's tag opens calls one of these tools, with arguments that fit; at
    most once unless `several`. Raises `GrammarError`."""
    assert syntax.tool_format is ToolFormat.HERMES
    opened = f"TEXT {OPEN_TAG}"
    rules = [
        f"start: (opened call){'*' if several else '?'} TEXT",
        f"opened: {opened}",
        r"TEXT: /(.|\n)*/",
    ]
    if not syntax.has_tags:
        rules[1] = rf"opened[lazy]: /(.|\n)*{OPEN_TAG}/"
    return lark_grammar("\n".join([*rules, *syntax.call_rules(tools)]))
