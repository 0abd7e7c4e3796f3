"""What may a client send? The bodies of all calls, as types from which the API schema is made.

A field that is null counts as absent. Ranges of sampling values are checked in one place, by
`SamplingParameters`.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

TokenId = Annotated[int, Meta(ge=0)]
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
# msgspec reads one kind of array in a union; the schema says what is accepted in full.
Prompt = str | list[str | TokenId | list[TokenId]]
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside the answer."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(Struct, kw_only=True, forbid_unknown_fields=True):
    """What both generating calls share."""

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    n: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    return_token_ids: bool | None = None


class CompletionBody(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions"""

    prompt: Prompt
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    logprobs: Annotated[int, Meta(ge=0)] | None = None
    add_special_tokens: bool | None = None


class ContentPart(Struct, kw_only=True):
    """One part of a message; only text is supported."""

    type: str
    text: str | None = None


class CalledFunction(Struct, kw_only=True):
    """The function of an earlier call; `arguments` is a JSON object as text."""

    name: str
    arguments: str | dict[str, Any] = ""


class MadeToolCall(Struct, kw_only=True):
    """A tool call that an earlier answer made."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(Struct, kw_only=True):
    """One message of a conversation. Further fields, which some clients echo, are ignored."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MadeToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ToolFunction(Struct, kw_only=True, omit_defaults=True):
    """A function the model may call; `parameters` is a JSON schema."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    """One tool on offer."""

    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Struct, kw_only=True):
    name: str


class NamedToolChoice(Struct, kw_only=True):
    """Demands one tool; not supported yet."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0)] | None = None


class TokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a `prompt` or the `messages` of a chat."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    tools: list[Tool] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize"""

    tokens: list[TokenId]
    model: str | None = None
