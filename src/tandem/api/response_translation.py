"""The Responses API in the words of a chat: its fields as those of a `ChatBody`, and its items as
messages. Nothing here generates, and nothing is remembered.
"""

import re
from collections.abc import Sequence
from typing import Any

from tandem.api.body_fields import NamedFunction, NamedToolChoice, Tool, ToolFunction
from tandem.api.requests import ChatBody, JsonSchemaFormat, ResponseFormat
from tandem.api.responses_body import (
    LOGPROBS,
    ConversationBody,
    ResponsesBody,
    ResponseTool,
    ResponseToolChoice,
    TextConfig,
)
from tandem.api.tool_choice import TOOLS_LIMIT
from tandem.api.unsupported_fields import unsupported
from tandem.facts.client_fields import client_fields, client_values
from tandem.facts.errors import InvalidRequest, PromptTooLong
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters

_CLIENT_FIELDS = (*client_fields(SamplingParameters), *client_fields(Request))
# What a chat calls otherwise.
_OWN_WORDS = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}
_TOOL_FIELD = re.compile(r"(tools\[\d+\])\.function")


def in_own_words(error: InvalidRequest) -> InvalidRequest:
    """An error about a chat, as one about the response that it was made of."""
    field = _OWN_WORDS.get(error.field, _TOOL_FIELD.sub(r"\1", error.field))
    if isinstance(error, PromptTooLong):
        error.field = field
        return error
    return InvalidRequest(field, error.problem)


def conversation_body(sent: ConversationBody) -> ChatBody:
    """The chat without its messages, as far as it decides the prompt. Raises `InvalidRequest`, and
    `Refused` for what is not supported."""
    tools, choice = _offered(sent.tools or [], sent.tool_choice)
    return ChatBody(
        model=sent.model,
        messages=[],
        tools=tools or None,
        tool_choice=choice,
        parallel_tool_calls=sent.parallel_tool_calls,
        response_format=_response_format(sent.text),
        chat_template_kwargs=sent.chat_template_kwargs,
        reasoning_effort=None if sent.reasoning is None else sent.reasoning.effort,
    )


def response_body(sent: ResponsesBody) -> ChatBody:
    """`conversation_body` with all that decides the answer."""
    body = conversation_body(sent)
    for name, value in client_values(sent, _CLIENT_FIELDS).items():
        setattr(body, name, value)
    body.max_completion_tokens = sent.max_output_tokens
    body.seed, body.ignore_eos = sent.seed, sent.ignore_eos
    body.agent, body.stream = sent.agent, sent.stream
    if LOGPROBS in (sent.include or ()) or sent.top_logprobs:
        body.logprobs, body.top_logprobs = True, sent.top_logprobs
    return body


def _offered(
    tools: Sequence[ResponseTool], choice: str | ResponseToolChoice | None
) -> tuple[list[Tool], Any]:
    """The tools that the model is shown, and the chat's choice among them."""
    if len(tools) > TOOLS_LIMIT:
        raise InvalidRequest("tools", f"has more than {TOOLS_LIMIT} entries")
    offered = [_tool(each, f"tools[{place}]") for place, each in enumerate(tools)]
    if not isinstance(choice, ResponseToolChoice):
        return offered, choice
    if choice.type == "function":
        name = _named(choice.name, "tool_choice.name")
        return offered, NamedToolChoice(type="function", function=NamedFunction(name=name))
    if choice.type != "allowed_tools":
        raise unsupported(
            "tool_choice", f"{choice.type[:64]!r} is not supported: the tools are functions"
        )
    if len(choice.tools or ()) > TOOLS_LIMIT:
        raise InvalidRequest("tool_choice", f"allows more than {TOOLS_LIMIT} tools")
    allowed = [
        _function_name(each, f"tool_choice.tools[{place}]")
        for place, each in enumerate(choice.tools or ())
    ]
    known = {each.function.name for each in offered}
    for name in allowed:
        if name not in known:
            raise InvalidRequest("tool_choice", f"allows {name[:64]!r}, which is none of the tools")
    # Of what it is not shown, a model makes no calls.
    return [each for each in offered if each.function.name in allowed], choice.mode or "auto"


def _tool(tool: ResponseTool, field: str) -> Tool:
    name = _function_name(tool, field)
    if tool.defer_loading:
        raise unsupported(f"{field}.defer_loading", "is not supported")
    function = ToolFunction(
        name=name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _function_name(tool: Any, field: str) -> str:
    if tool.type != "function":
        problem = f"of type {tool.type[:64]!r} is not supported: only functions are"
        raise unsupported(field, problem)
    return _named(tool.name, f"{field}.name")


def _named(name: str | None, field: str) -> str:
    if not name:
        raise InvalidRequest(field, "is missing")
    return name


def _response_format(text: TextConfig | None) -> ResponseFormat | None:
    if text is None:
        return None
    if text.verbosity not in (None, "medium"):
        raise unsupported("text.verbosity", f"{text.verbosity!r} is not supported")
    form = text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return ResponseFormat(type="json_object")
    schema = JsonSchemaFormat(
        name=form.name, description=form.description, schema=form.schema, strict=form.strict
    )
    return ResponseFormat(type="json_schema", json_schema=schema)
