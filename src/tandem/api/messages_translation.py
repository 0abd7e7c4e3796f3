"""A call of Anthropic's Messages API in the words of a chat, field by field.

Raises `InvalidRequest` for what would change the answer and is not supported.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, Literal, TypeVar

from msgspec.structs import replace

from tandem.api.body_fields import (
    CalledFunction,
    ChatMessage,
    ContentPart,
    MadeToolCall,
    NamedFunction,
    NamedToolChoice,
    Tool,
    ToolFunction,
)
from tandem.api.messages_requests import (
    MessageBlock,
    MessageCountBody,
    MessagesBody,
    MessageTool,
    MessageToolChoice,
    Thinking,
)
from tandem.api.prompts import content_text
from tandem.api.requests import ChatBody, JsonSchemaFormat, ResponseFormat
from tandem.facts.errors import InvalidRequest

T = TypeVar("T")
ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice

# The type of a tool that the client runs itself.
_CUSTOM = "custom"
_CHOICES: Mapping[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}
# What a chat calls them, and what the client does.
_FIELDS = {
    "stop": "stop_sequences",
    "chat_template_kwargs": "thinking",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
}


def chat_of(body: MessagesBody) -> ChatBody:
    """The whole call."""
    return replace(
        conversation_of(body),
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        stream=body.stream,
    )


def conversation_of(body: MessageCountBody) -> ChatBody:
    """What of the call makes the prompt, and the form of the answer."""
    messages, choice = _chat_messages(body), body.tool_choice
    continues = messages[-1].role == "assistant"
    if continues and messages[-1].tool_calls:
        raise InvalidRequest("messages", "end with a tool_use block; its tool_result must follow")
    return ChatBody(
        model=body.model,
        messages=messages,
        tools=None if body.tools is None else [_tool(i, each) for i, each in enumerate(body.tools)],
        tool_choice=None if choice is None else _tool_choice(choice),
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
        response_format=_response_format(body),
        continue_final_message=True if continues else None,
        chat_template_kwargs=_template_arguments(body.thinking),
    )


@contextmanager
def fields_as_sent() -> Iterator[None]:
    """What is raised within the block of a field of the chat names that of the client."""
    try:
        yield
    except InvalidRequest as error:
        field = error.field.replace(".function.parameters", ".input_schema")
        field = _FIELDS.get(field, field)
        if field == error.field:
            raise
        raise InvalidRequest(field, error.problem) from error


def _chat_messages(body: MessageCountBody) -> list[ChatMessage]:
    messages = [_system_message(body.system)] if body.system else []
    for role, turns in groupby(body.messages, key=lambda message: message.role):
        blocks: list[MessageBlock] = []
        for turn in turns:
            if not turn.content and role != "assistant":
                raise InvalidRequest("messages", f"have one of role {role!r} without content")
            blocks += _blocks(turn.content)
        if role == "assistant":
            messages.append(_assistant_message(blocks))
        elif role == "user":
            messages += _user_messages(blocks)
        else:
            messages.append(ChatMessage(role="system", content=_text_parts(blocks)))
    return messages


def _blocks(content: str | list[MessageBlock]) -> list[MessageBlock]:
    return [MessageBlock(type="text", text=content)] if isinstance(content, str) else content


def _system_message(content: str | list[ContentPart]) -> ChatMessage:
    for part in content if isinstance(content, list) else ():
        if part.type != "text" or part.text is None:
            raise InvalidRequest("system", "must be a text or blocks of text")
    return ChatMessage(role="system", content=content)


def _user_messages(blocks: Sequence[MessageBlock]) -> Iterator[ChatMessage]:
    """In a chat results of tools are messages of their own."""
    for is_result, neighbours in groupby(blocks, key=lambda block: block.type == "tool_result"):
        if is_result:
            yield from map(_tool_message, neighbours)
        else:
            yield ChatMessage(role="user", content=_text_parts(neighbours))


def _assistant_message(blocks: Sequence[MessageBlock]) -> ChatMessage:
    """One turn: its texts stand before its calls, wherever they were."""
    texts: list[MessageBlock] = []
    reasoning: list[str] = []
    calls: list[MadeToolCall] = []
    for block in blocks:
        if block.type == "thinking":
            reasoning.append(_given(block, "thinking", block.thinking))
        elif block.type == "tool_use":
            name, arguments = _given(block, "name", block.name), block.input or {}
            calls.append(
                MadeToolCall(
                    id=_given(block, "id", block.id),
                    function=CalledFunction(name=name, arguments=arguments),
                )
            )
        else:
            texts.append(block)
    return ChatMessage(
        role="assistant",
        content=_text_parts(texts),
        tool_calls=calls or None,
        reasoning_content="\n".join(reasoning) or None,
    )


def _tool_message(block: MessageBlock) -> ChatMessage:
    content = block.content or ""
    if block.is_error:
        # A chat has no other way to tell the model.
        text = content if isinstance(content, str) else content_text(content)
        content = f"Error: {text}"
    call_id = _given(block, "tool_use_id", block.tool_use_id)
    return ChatMessage(role="tool", tool_call_id=call_id, content=content)


def _text_parts(blocks: Iterable[MessageBlock]) -> list[ContentPart]:
    return [ContentPart(type="text", text=_text(block)) for block in blocks]


def _text(block: MessageBlock) -> str:
    if block.type != "text":
        problem = f"have a block of type {block.type[:32]!r}, which is not supported there"
        raise InvalidRequest("messages", problem)
    return _given(block, "text", block.text)


def _given(block: MessageBlock, field: str, value: T | None) -> T:
    if value is None:
        raise InvalidRequest("messages", f"have a block of type {block.type!r} without {field}")
    return value


def _tool(place: int, tool: MessageTool) -> Tool:
    field = f"tools[{place}]"
    if tool.type not in (None, _CUSTOM):
        problem = "is not supported; only tools that the client runs itself are"
        raise InvalidRequest(f"{field}.type", f"{tool.type[:32]!r} {problem}")
    if tool.input_schema is None:
        raise InvalidRequest(f"{field}.input_schema", "is missing")
    for name in ("input_examples", "defer_loading"):
        if getattr(tool, name):
            raise InvalidRequest(f"{field}.{name}", "is not supported")
    function = ToolFunction(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def _tool_choice(choice: MessageToolChoice) -> ToolChoice:
    if choice.type != "tool":
        return _CHOICES[choice.type]
    if choice.name is None:
        raise InvalidRequest("tool_choice.name", "is missing")
    return NamedToolChoice(type="function", function=NamedFunction(name=choice.name))


def _response_format(body: MessageCountBody) -> ResponseFormat | None:
    wanted = body.output_config.format if body.output_config is not None else None
    if wanted is not None and body.output_format is not None:
        raise InvalidRequest("output_format", "contradicts output_config.format; send one of them")
    wanted = wanted or body.output_format
    if wanted is None:
        return None
    return ResponseFormat(type="json_schema", json_schema=JsonSchemaFormat(schema=wanted.schema))


def _template_arguments(thinking: Thinking | None) -> dict[str, Any] | None:
    """As chat templates call it: Qwen3's and most others, and those of DeepSeek V3.1 and Granite.
    A template does not see what it does not ask for."""
    if thinking is None or thinking.type == "adaptive":
        return None
    return dict.fromkeys(("enable_thinking", "thinking"), thinking.type == "enabled")
