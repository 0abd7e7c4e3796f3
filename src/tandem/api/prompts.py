"""Which token ids does a call ask to continue? Templates and tokenises, off the loop when large."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from tandem.api.bodies import (
    ChatBody,
    ChatMessage,
    CompletionBody,
    ContentPart,
    MadeToolCall,
    TokenizeBody,
    Tool,
)
from tandem.facts.errors import InvalidRequest
from tandem.facts.serving import ModelCard
from tandem.text.chat import ChatOptions
from tandem.text.model import TextModel

Result = TypeVar("Result")
Tokens = tuple[int, ...]

# About a millisecond of tokenising; shorter work is not worth a thread.
LARGE_PROMPT_CHARS = 8 << 10


async def completion_prompts(
    body: CompletionBody, text: TextModel, card: ModelCard
) -> list[Tokens]:
    """Each prompt of a completion call, in order. Raises `InvalidRequest`."""
    specials = body.add_special_tokens is not False
    prompts = _prompt_list(body.prompt)

    def read(prompt: str | list[int]) -> Tokens:
        if isinstance(prompt, str):
            return text.tokenizer.encode(prompt, add_special_tokens=specials)
        check_tokens("prompt", prompt, card)
        return tuple(prompt)

    chars = sum(len(prompt) for prompt in prompts)
    return await _off_loop_if_large(chars, lambda: [read(prompt) for prompt in prompts])


def prompt_count(prompt: str | list[Any]) -> int:
    """How many prompts a completion call holds, known without reading them."""
    return len(_prompt_list(prompt))


async def chat_prompt(
    body: ChatBody | TokenizeBody, tools: Sequence[Tool], text: TextModel
) -> Tokens:
    """The prompt of a conversation. Raises `InvalidRequest`."""
    if text.chat is None:
        raise InvalidRequest("messages", "need a chat template, which this model does not have")
    if tools and not (text.chat.uses_tools and text.tool_format):
        raise InvalidRequest("tools", "are not supported by the chat template of this model")
    template = text.chat
    options = ChatOptions(
        add_generation_prompt=_wants_generation_prompt(body),
        continue_final_message=bool(body.continue_final_message),
        arguments=body.chat_template_kwargs or {},
    )
    messages = [_message(message) for message in body.messages or ()]
    offered = [msgspec.to_builtins(tool) for tool in tools]

    def render() -> Tokens:
        prompt = template.render(messages, offered, options)
        return text.tokenizer.encode(prompt, add_special_tokens=False)

    return await _off_loop_if_large(sum(len(m["content"]) for m in messages), render)


async def encode(prompt: str, text: TextModel, *, add_special_tokens: bool) -> Tokens:
    """Tokenises plain text."""
    return await _off_loop_if_large(
        len(prompt), lambda: text.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
    )


def check_tokens(field: str, tokens: Sequence[int], card: ModelCard) -> None:
    """Raises `InvalidRequest` for an id that the model's vocabulary lacks."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < card.vocabulary_tokens:
        problem = f"holds a token id outside the vocabulary of {card.vocabulary_tokens}"
        raise InvalidRequest(field, problem)


async def _off_loop_if_large(chars: int, work: Callable[[], Result]) -> Result:
    if chars > LARGE_PROMPT_CHARS:
        return await asyncio.to_thread(work)
    return work()


def _prompt_list(prompt: str | list[Any]) -> list[str | list[int]]:
    """One prompt or several: a list of ids is one prompt, a list of texts or id lists several."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt", "must not be an empty list")
    kind = type(prompt[0])
    if any(type(part) is not kind for part in prompt):
        raise InvalidRequest("prompt", "must not mix texts, token ids and lists of token ids")
    return [prompt] if kind is int else prompt


def _wants_generation_prompt(body: ChatBody | TokenizeBody) -> bool:
    if body.add_generation_prompt is None:
        return not body.continue_final_message
    return body.add_generation_prompt


def _message(message: ChatMessage) -> dict[str, Any]:
    """The message as templates expect it: text content, call arguments as objects."""
    # Templates know no developers, which OpenAI's newer models have in place of the system.
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": _content(message.content)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            result[name] = value
    if message.tool_calls:
        result["tool_calls"] = [_made_call(call) for call in message.tool_calls]
    return result


def _content(content: str | list[ContentPart] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            problem = f"have a content part of type {part.type[:32]!r}; only text is supported"
            raise InvalidRequest("messages", problem)
    return "\n".join(part.text or "" for part in content)


def _made_call(call: MadeToolCall) -> dict[str, Any]:
    arguments: object = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidRequest("messages", "have tool call arguments that are no JSON") from error
    if not isinstance(arguments, dict):
        raise InvalidRequest("messages", "have tool call arguments that are no JSON object")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
