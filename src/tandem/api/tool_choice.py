"""Tool choice: which tools a call offers, and what its answer must be because of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.api.body_fields import NamedToolChoice, Tool, ToolFunction
from tandem.api.requests import ChatBody
from tandem.api.structured_output import answer_grammar, wants_form
from tandem.facts.errors import InvalidRequest
from tandem.text.grammars import GrammarError
from tandem.text.model import TextModel
from tandem.text.tool_grammars import (
    CalledTool,
    calls_or_form,
    demanded_calls,
    fitting_calls,
)
from tandem.text.tools import CallsInAnswer
from tandem.text.xml_calls import Parameter

TOOLS_LIMIT = 128


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`offered` stand in the prompt. The answer must be calls of the `called` ones if they are
    `demanded`, or calls or of the client's form with `beside_form`; else whatever it calls is one
    of them. Without any it may be anything."""

    offered: Sequence[Tool] = ()
    called: Sequence[Tool] = ()
    demanded: bool = False
    beside_form: bool = False
    several: bool = True

    @property
    def text_parameters(self) -> frozenset[Parameter]:
        """The parameters whose values are texts and nothing else."""
        return frozenset(
            (tool.function.name, name)
            for tool in self.offered
            for name, schema in _properties(tool.function).items()
            if isinstance(schema, Mapping) and schema.get("type") == "string"
        )

    def calls_in_answer(self, body: ChatBody, text: TextModel) -> CallsInAnswer:
        """Which calls are certain to be well-formed: those of the grammar, unless something that
        the client names may end the answer in the middle of one, or its form may be like one."""
        syntax = text.tool_call_syntax
        may_break_off = bool(body.stop or body.stop_token_ids)
        if self.beside_form and syntax is not None:
            is_certain = syntax.opens_by_tag and not may_break_off
            return CallsInAnswer.FIRST if is_certain else CallsInAnswer.FIRST_IF_WHOLE
        if not self.called or may_break_off:
            return CallsInAnswer.UNCERTAIN
        return CallsInAnswer.FIRST if self.demanded else CallsInAnswer.ANYWHERE

    def grammar(self, body: ChatBody, text: TextModel) -> str:
        """May take some milliseconds. Raises `InvalidRequest` naming the tool and the place."""
        form = answer_grammar(body, text.grammars) if self.beside_form else ""
        tools = [self._called_tool(each, text) for each in self.called]
        syntax = text.tool_call_syntax
        assert syntax is not None
        try:
            if self.demanded:
                grammar = demanded_calls(tools, syntax, several=self.several)
            elif self.beside_form:
                grammar = calls_or_form(tools, syntax, form, several=self.several)
            else:
                grammar = fitting_calls(tools, syntax, several=self.several)
            text.grammars.check(grammar)
        except GrammarError as error:
            raise InvalidRequest("tools", f"cannot be used: {error}") from error
        return grammar

    def _called_tool(self, tool: Tool, text: TextModel) -> CalledTool:
        function = tool.function
        if not (self.demanded or function.strict):
            return CalledTool(function.name, {"type": "object"})
        called = CalledTool(function.name, function.parameters or {})
        try:
            text.grammars.check_schema(called.schema)
        except GrammarError as error:
            field = f"tools[{self.offered.index(tool)}].function.parameters"
            raise InvalidRequest(field, f"cannot be used: {error}") from error
        return called


def _properties(function: ToolFunction) -> Mapping[str, Any]:
    properties = (function.parameters or {}).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def tool_use(body: ChatBody, text: TextModel) -> ToolUse:
    """Raises `InvalidRequest` for a choice that the tools do not leave."""
    tools, choice = body.tools or [], body.tool_choice
    several = body.parallel_tool_calls is not False
    if choice == "none":
        return ToolUse()
    if len(tools) > TOOLS_LIMIT:
        raise InvalidRequest("tools", f"has more than {TOOLS_LIMIT} entries")
    if choice in (None, "auto"):
        strict = any(tool.function.strict for tool in tools)
        beside_form = wants_form(body)
        held = bool(tools) and (strict or not several or beside_form)
        if not held or text.tool_call_syntax is None:
            return ToolUse(tools, several=several)
        return ToolUse(tools, tools, beside_form=beside_form, several=several)
    if not tools or text.tool_call_syntax is None:
        problem = "needs tools, and a model whose calls can be demanded in their format"
        raise InvalidRequest("tool_choice", problem)
    if isinstance(choice, NamedToolChoice):
        name = choice.function.name
        named = [tool for tool in tools if tool.function.name == name]
        if not named:
            raise InvalidRequest("tool_choice", f"names {name[:64]!r}, which is none of the tools")
        return ToolUse(tools, named[:1], demanded=True, several=False)
    return ToolUse(tools, tools, demanded=True, several=several)
