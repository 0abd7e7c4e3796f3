"""Bodies of the Responses API: a conversation as items, and how the model is to go on from it.

`response_translation.py` says what they come to in the words of a chat.
"""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from tandem.api.body_fields import (
    CHAT_TEMPLATE_KWARGS,
    Count,
    ModelBody,
    NonNegative,
    ReasoningEffort,
    means,
)
from tandem.api.other_fields import OPENAI_RESPONSES, OtherFields
from tandem.api.request_extensions import AgentHints
from tandem.api.requests import with_client_fields

LOGPROBS = "message.output_text.logprobs"
# The others name what built-in tools and other kinds of input would add, and the encrypted form of
# reasoning, which stands in plain text here: there is nothing to add.
Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
_MetadataKey = Annotated[str, Meta(max_length=64)]
_MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[_MetadataKey, _MetadataValue], Meta(max_length=16)]
_Name = Annotated[str, Meta(max_length=1024)]
_Summary = Literal["auto", "concise", "detailed"]


class InputPart(Struct, kw_only=True, omit_defaults=True):
    """One part of a message, of a tool's result or of reasoning; only text is supported."""

    type: str
    text: str | None = None
    refusal: str | None = None


class InputItem(Struct, kw_only=True, omit_defaults=True):
    """One item of a conversation: a message, a call of a function, its result, reasoning, or a
    reference to a stored item. Further fields, which clients echo, are ignored."""

    type: str | None = None
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[InputPart] | None = None
    summary: list[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[InputPart] | None = None
    status: str | None = None


class ResponseTool(Struct, kw_only=True, omit_defaults=True):
    """A function the model may call; `parameters` is a JSON schema. Built-in tools are refused, and
    functions that a search must find first."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class AllowedTool(Struct, kw_only=True):
    type: str
    name: str | None = None


class ResponseToolChoice(Struct, kw_only=True, omit_defaults=True):
    """Demands one function, or allows only some of the tools."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[AllowedTool] | None = None


class TextFormat(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The form of the answer; a JSON schema stands beside its name."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`summary` has no effect: the reasoning itself is given. What becomes of earlier reasoning is
    for the chat template to say."""

    effort: ReasoningEffort | None = None
    summary: _Summary | None = None
    generate_summary: _Summary | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: Annotated[bool | None, means("Accepted without effect.")] = None
    include_usage: Annotated[
        bool | None, means("Accepted without effect: the last event always has the usage.")
    ] = None


class ConversationBody(ModelBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses/input_tokens: what makes the prompt of a response."""

    other_fields: ClassVar[OtherFields] = OPENAI_RESPONSES

    input: Annotated[
        str | list[InputItem] | None,
        means("What the user says, or items of the conversation, oldest first."),
    ] = None
    instructions: Annotated[
        str | None,
        means("What the system says, before all items. Not taken over by later responses."),
    ] = None
    previous_response_id: Annotated[
        str | None, means("A stored response, whose conversation goes on.")
    ] = None
    tools: Annotated[list[ResponseTool] | None, means("Functions the model may call.")] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ResponseToolChoice | None,
        means(
            "auto (default): the model decides; none; required: one call at least; the function to "
            "call; or allowed_tools with a mode."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, means("false: one call at most. Default: true.")
    ] = None
    text: Annotated[
        TextConfig | None,
        means("The form of the answer. Default: any text. A verbosity must be medium."),
    ] = None
    reasoning: Annotated[
        ReasoningConfig | None,
        means("How much the model is to reason, as far as its chat template can be told."),
    ] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        means(
            "auto: drops the oldest turns where the context has no room. Default: disabled, such a "
            "call is refused."
        ),
    ] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, CHAT_TEMPLATE_KWARGS] = None


@with_client_fields
class ResponsesBody(ConversationBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses"""

    max_output_tokens: Annotated[
        Count | None,
        means("Longest answer, with its reasoning. Default: what the context has left."),
    ] = None
    seed: Annotated[
        int | None,
        means("64 bits. Same seed and request, same tokens. Absent: the server draws one."),
    ] = None
    ignore_eos: Annotated[bool | None, means("The model's end tokens do not end the answer.")] = (
        None
    )
    store: Annotated[
        bool | None, means("Whether the response is kept for later calls. Default: true.")
    ] = None
    stream: Annotated[bool | None, means("Answers as server-sent events. Default: false.")] = None
    stream_options: Annotated[ResponseStreamOptions | None, means("Accepted without effect.")] = (
        None
    )
    include: Annotated[
        list[Includable] | None,
        means(f"{LOGPROBS} adds the log-probability of each token; the others have no effect."),
    ] = None
    top_logprobs: Annotated[
        NonNegative | None, means("How many alternatives to each token, up to 20.")
    ] = None
    metadata: Annotated[
        Metadata | None, means("Up to 16 pairs, kept with the response and echoed.")
    ] = None
    user: Annotated[_Name | None, means("Echoed, without effect.")] = None
    safety_identifier: Annotated[_Name | None, means("Echoed, without effect.")] = None
    prompt_cache_key: Annotated[_Name | None, means("Echoed, without effect.")] = None
    agent: Annotated[
        AgentHints | None, means("What an agent knows of its session. Changes no token.")
    ] = None
