"""Tool choice: which tools a call offers, and what its answer must be because of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.api.requests import ChatBody, NamedToolChoice, Tool
from tandem.facts.errors import InvalidRequest
from tandem.text.grammars import GrammarError
from tandem.text.model import TextModel
from tandem.text.tool_grammars import CalledTool, demanded_calls, fitting_calls
from tandem.text.tools import ToolFormat

TOOLS_LIMIT = 128


@dataclass(frozen=True, slots=True)
class ToolUse:
    """`offered` stand in the prompt. The answer must be calls of the `called` ones if they are
    `demanded`; else whatever it calls is one of them. Without any it may be anything."""

    offered: Sequence[Tool] = ()
    called: Sequence[Tool] = ()
    demanded: bool = False
    several: bool = True

    def grammar(self, text: TextModel) -> str:
        """May take some milliseconds. Raises `InvalidRequest` naming the tool and the place."""
        tools = [self._called_tool(each, text) for each in self.called]
        syntax = text.tool_call_syntax
        assert syntax is not None
        try:
            if self.demanded:
                grammar = demanded_calls(tools, syntax, several=self.several)
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
        held = bool(tools) and (strict or not several)
        # Only behind a tag it is known in time that a call begins.
        held = held and text.tool_format is ToolFormat.HERMES
        return ToolUse(tools, tools if held else (), several=several)
    if not tools or text.tool_call_syntax is None:
        raise InvalidRequest("tool_choice", "needs tools, and a model whose template shows them")
    if isinstance(choice, NamedToolChoice):
        name = choice.function.name
        named = [tool for tool in tools if tool.function.name == name]
        if not named:
            raise InvalidRequest("tool_choice", f"names {name[:64]!r}, which is none of the tools")
        return ToolUse(tools, named[:1], demanded=True, several=False)
    return ToolUse(tools, tools, demanded=True, several=several)
