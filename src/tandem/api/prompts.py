"""Prompts of a call as token ids: chat template and tokenizer. Pure work, which whoever calls it
runs off the event loop where the body was large."""

import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec.structs import replace

from tandem.api.body_fields import ChatMessage, ContentPart, MadeToolCall, Tool
from tandem.api.config import ApiConfig
from tandem.api.reasoning_effort import template_arguments
from tandem.api.request_body import decode_json, nested_deeper
from tandem.api.requests import ChatBody, CompletionBody, GenerationBody, TokenizeBody
from tandem.api.unsupported_fields import unsupported
from tandem.facts.errors import InvalidRequest, PromptTooLong
from tandem.facts.serving import ModelCard
from tandem.text.chat import ChatOptions
from tandem.text.model import TextModel
from tandem.text.shielding import unused_mark

Tokens: TypeAlias = "tuple[int, ...] | array[int]"

# More ids than this are kept as four bytes each, not as objects.
_MANY_TOKENS = 256
# A prompt of which only the end is kept may be so many contexts long.
_CONTEXTS_READ = 4


def completion_prompts(body: CompletionBody, text: TextModel, card: ModelCard) -> list[Tokens]:
    """Each prompt of a completion call, in order. Raises `InvalidRequest`."""
    specials = body.add_special_tokens is not False
    limit_tokens = read_limit(body, card.context_tokens)
    if body.suffix:
        return _middles(body, text, card)

    def read(prompt: str | list[int]) -> Tokens:
        if isinstance(prompt, str):
            return _compact(
                text.tokenizer.encode_within(prompt, limit_tokens, add_special_tokens=specials)
            )
        if len(prompt) >= limit_tokens:
            raise PromptTooLong(len(prompt), card.context_tokens)
        check_tokens("prompt", prompt, card)
        return _compact(prompt)

    return [read(prompt) for prompt in _prompt_list(body.prompt)]


def _middles(body: CompletionBody, text: TextModel, card: ModelCard) -> list[Tokens]:
    """Prompts whose answers stand before the suffix. Raises `InvalidRequest` and `Refused`."""
    if text.middle is None:
        problem = "is not supported by this model: it has no tokens to fill in a middle with"
        raise unsupported("suffix", problem)
    if body.echo or body.truncate_prompt_tokens is not None:
        field = "echo" if body.echo else "truncate_prompt_tokens"
        raise InvalidRequest(field, "cannot be combined with suffix")
    tokenizer, limit_tokens = text.tokenizer, card.context_tokens
    suffix = tokenizer.encode_within(body.suffix or "", limit_tokens, add_special_tokens=False)
    begin = tokenizer.encode("", add_special_tokens=body.add_special_tokens is not False)
    found: list[Tokens] = []
    for prompt in _prompt_list(body.prompt):
        if isinstance(prompt, str):
            prefix = tokenizer.encode_within(prompt, limit_tokens, add_special_tokens=False)
        else:
            check_tokens("prompt", prompt, card)
            prefix = tuple(prompt)
        found.append(_compact([*begin, *text.middle.prompt(prefix, suffix)]))
        if len(found[-1]) >= limit_tokens:
            raise PromptTooLong(len(found[-1]), limit_tokens)
    return found


def read_limit(body: GenerationBody, context_tokens: int) -> int:
    """How long a prompt may be that is read."""
    return context_tokens * (1 if body.truncate_prompt_tokens is None else _CONTEXTS_READ)


def kept_end(
    prompt: Tokens, body: GenerationBody, answer_tokens: int, context_tokens: int
) -> Tokens:
    """The prompt, or its end where the client wants no more; the whole context but for
    `answer_tokens` may be wanted."""
    wanted = body.truncate_prompt_tokens
    if wanted is None:
        return prompt
    return prompt[-(max(1, context_tokens - answer_tokens) if wanted == -1 else wanted) :]


def prompt_count(prompt: str | list[Any]) -> int:
    """How many prompts a completion call holds, known without reading them."""
    if isinstance(prompt, str) or (prompt and type(prompt[0]) is int):
        return 1
    return max(1, len(prompt))


def chat_prompt(
    body: ChatBody | TokenizeBody,
    tools: Sequence[Tool],
    text: TextModel,
    limit_tokens: int,
    config: ApiConfig,
) -> Tokens:
    """The prompt of a conversation. Raises `InvalidRequest`, and `PromptTooLong` for what has
    certainly more than `limit_tokens`."""
    template, client_text = text.chat, text.client_text
    if template is None:
        raise InvalidRequest("messages", "need a chat template, which this model does not have")
    if tools and not (template.uses_tools and text.tool_format):
        raise InvalidRequest("tools", "are not supported by the chat template of this model")
    # Each message costs a token at least, whatever the template makes of it.
    if len(body.messages or ()) > limit_tokens:
        raise PromptTooLong(len(body.messages or ()), limit_tokens, exact=False)
    messages: Any = [_message(message, config.max_nesting) for message in body.messages or ()]
    offered: Any = [msgspec.to_builtins(tool) for tool in tools]
    arguments: Any = template_arguments(body, text)
    if config.parse_special_tokens or not client_text.touches(messages, offered, arguments):
        prompt = template.render(messages, offered, _options(body, arguments))
        return _compact(
            text.tokenizer.encode_within(prompt, limit_tokens, add_special_tokens=False)
        )
    mark = unused_mark(messages, offered, arguments)
    shield, messages = client_text.other, client_text.marked_messages(messages, mark)
    options = _options(body, shield.marked(arguments, mark))
    prompt = template.render(messages, shield.marked(offered, mark), options)
    tokens: list[int] = []
    for piece in shield.pieces(prompt, mark):
        tokens += text.tokenizer.encode_within(piece, limit_tokens, add_special_tokens=False)
        if len(tokens) > 2 * limit_tokens:
            raise PromptTooLong(len(tokens), limit_tokens, exact=False)
    return _compact(tokens)


def chat_follow_up(
    body: ChatBody, text: TextModel, limit_tokens: int, config: ApiConfig
) -> Callable[[Tokens, str, str], Tokens]:
    """A `FollowUp` of this conversation, which raises `InvalidRequest`: the answer is one more
    turn, and what is asked about it the next."""
    said = [message for message in body.messages if message.role == "user"]

    def follow_up(_: Tokens, answer: str, ask: str) -> Tokens:
        question = content_text(said[-1].content) if said else ""
        turns = [
            ChatMessage(role="assistant", content=answer),
            ChatMessage(role="user", content=_filled(ask, question, answer)),
        ]
        asked = replace(body, messages=[*body.messages, *turns], add_generation_prompt=True)
        return chat_prompt(asked, (), text, limit_tokens, config)

    return follow_up


def completion_follow_up(
    question: str, text: TextModel, card: ModelCard
) -> Callable[[Tokens, str, str], Tokens]:
    """A `FollowUp` without a template, which raises `InvalidRequest`: the prompt goes on with the
    answer, and with what is asked on a line of its own."""

    def follow_up(prompt: Tokens, answer: str, ask: str) -> Tokens:
        rest = f"{answer}\n\n{_filled(ask, question, answer)}\n"
        tokens = text.tokenizer.encode_within(rest, card.context_tokens, add_special_tokens=False)
        return _compact([*prompt, *tokens])

    return follow_up


def _filled(ask: str, question: str, answer: str) -> str:
    """Each mark is filled once: what stands in question and answer is text."""
    values = {"{question}": question, "{answer}": answer}
    return re.sub(r"\{question\}|\{answer\}", lambda found: values[found[0]], ask)


def check_tokens(field: str, tokens: Sequence[int], card: ModelCard) -> None:
    """Raises `InvalidRequest` for an id that the model's vocabulary lacks."""
    if tokens and not 0 <= min(tokens) <= max(tokens) < card.vocabulary_tokens:
        problem = f"holds a token id outside the vocabulary of {card.vocabulary_tokens}"
        raise InvalidRequest(field, problem)


def _compact(tokens: Sequence[int]) -> Tokens:
    return array("I", tokens) if len(tokens) > _MANY_TOKENS else tuple(tokens)


def _options(body: ChatBody | TokenizeBody, arguments: dict[str, Any]) -> ChatOptions:
    return ChatOptions(
        add_generation_prompt=_wants_generation_prompt(body),
        continue_final_message=bool(body.continue_final_message),
        arguments=arguments,
    )


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


def _message(message: ChatMessage, max_nesting: int) -> dict[str, Any]:
    """The message as templates expect it: text content, call arguments as objects."""
    # Templates know no developers, which OpenAI's newer models have in place of the system.
    role = "system" if message.role == "developer" else message.role
    result: dict[str, Any] = {"role": role, "content": content_text(message.content)}
    reasoning = message.reasoning_content or message.reasoning
    fields = {"name": message.name, "tool_call_id": message.tool_call_id}
    fields["reasoning_content"] = reasoning
    result |= {name: value for name, value in fields.items() if value is not None}
    if message.tool_calls:
        result["tool_calls"] = [_made_call(call, max_nesting) for call in message.tool_calls]
    return result


def content_text(content: str | list[ContentPart] | None) -> str:
    """The text of a message. Raises `InvalidRequest` for parts that are none."""
    if not isinstance(content, list):
        return content or ""
    for part in content:
        if part.type != "text" or part.text is None:
            problem = f"have a content part of type {part.type[:32]!r}; only text is supported"
            raise InvalidRequest("messages", problem)
    return "\n".join(part.text or "" for part in content)


def _made_call(call: MadeToolCall, max_nesting: int) -> dict[str, Any]:
    arguments: object = call.function.arguments
    if isinstance(arguments, str):
        try:
            arguments = decode_json((arguments or "{}").encode())
        except ValueError as error:
            raise InvalidRequest("messages", "have tool call arguments that are no JSON") from error
        if nested_deeper(arguments, max_nesting):
            problem = f"have tool call arguments nested deeper than {max_nesting} levels"
            raise InvalidRequest("messages", problem)
    if not isinstance(arguments, dict):
        raise InvalidRequest("messages", "have tool call arguments that are no JSON object")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}
