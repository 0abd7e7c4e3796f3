"""Request bodies of Anthropic's Messages API, as types; the API schema is made of them.

A field that is null counts as absent. Messages, blocks and tools may carry further fields, which
clients echo or which say nothing about the answer (`cache_control`). `messages_translation.py` says
what all of it means, and refuses what would change the answer and is not supported.
"""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from tandem.api.body_fields import ContentPart, Count, ModelBody, means
from tandem.api.other_fields import ANTHROPIC, OtherFields


class MessageBlock(Struct, kw_only=True):
    """One block of a message. Which fields it needs depends on its type."""

    type: Annotated[str, means("text, thinking, tool_use or tool_result.")]
    text: Annotated[str | None, means("Of text.")] = None
    thinking: Annotated[str | None, means("Of thinking: the reasoning of an earlier answer.")] = (
        None
    )
    id: Annotated[str | None, means("Of tool_use: the name of the call.")] = None
    name: Annotated[str | None, means("Of tool_use: whom it calls.")] = None
    input: Annotated[dict[str, Any] | None, means("Of tool_use: the arguments.")] = None
    tool_use_id: Annotated[str | None, means("Of tool_result: the call it answers.")] = None
    content: Annotated[
        str | list[ContentPart] | None, means("Of tool_result: a text or text blocks.")
    ] = None
    is_error: Annotated[
        bool | None, means('Of tool_result: the model is shown "Error: " before its content.')
    ] = None


class InputMessage(Struct, kw_only=True):
    """One message. Neighbours of one role are one turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[MessageBlock]


class MessageTool(Struct, kw_only=True):
    """A tool of the client's, which the model may call."""

    name: Annotated[str, Meta(min_length=1)]
    description: str | None = None
    input_schema: Annotated[dict[str, Any] | None, means("The JSON schema of its input.")] = None
    type: Annotated[str | None, means("custom, the default; no other is supported.")] = None
    strict: Annotated[bool | None, means("true: its input validates against the schema.")] = None
    input_examples: Annotated[list[Any] | None, means("Not supported.")] = None
    defer_loading: Annotated[bool | None, means("Not supported.")] = None


class MessageToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the model may or must call."""

    type: Annotated[
        Literal["auto", "any", "tool", "none"],
        means("auto: the model decides; any: one call at least; tool: that of `name`; none."),
    ]
    name: str | None = None
    disable_parallel_tool_use: Annotated[bool | None, means("true: one call at most.")] = None


class Thinking(Struct, kw_only=True, forbid_unknown_fields=True):
    """Whether the model reasons before it answers."""

    type: Annotated[
        Literal["enabled", "disabled", "adaptive"],
        means("enabled and disabled tell the chat template so; adaptive leaves it to its default."),
    ]
    budget_tokens: Annotated[
        Count | None, means("Accepted without effect: max_tokens bounds reasoning and answer.")
    ] = None
    display: Annotated[
        Literal["summarized", "omitted"] | None,
        means("summarized: all of the reasoning, the default; omitted: none of it."),
    ] = None


class OutputFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema: Annotated[
        dict[str, Any], means("The JSON schema that the text of the answer validates against.")
    ]


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """What the answer is to be like."""

    effort: Annotated[
        Literal["high"] | None, means("high, the default: no other is supported.")
    ] = None
    format: OutputFormat | None = None


class MessageCountBody(ModelBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages/count_tokens"""

    other_fields: ClassVar[OtherFields] = ANTHROPIC

    messages: Annotated[
        list[InputMessage],
        Meta(
            min_length=1,
            description=(
                "The conversation, oldest message first. If the last is the assistant's, the "
                "answer goes on with it."
            ),
        ),
    ]
    system: Annotated[
        str | list[ContentPart] | None, means("What the system says first: a text or text blocks.")
    ] = None
    tools: Annotated[list[MessageTool] | None, means("Tools the model may call.")] = None
    tool_choice: Annotated[
        MessageToolChoice | None, means("What the model may or must call. Default: auto.")
    ] = None
    thinking: Annotated[
        Thinking | None,
        means("Whether the model reasons first. Default: as the chat template has it."),
    ] = None
    output_config: Annotated[OutputConfig | None, means("The form of the answer.")] = None
    output_format: Annotated[
        OutputFormat | None, means("The older name of `output_config.format`.")
    ] = None


class MessagesBody(MessageCountBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/messages"""

    max_tokens: Annotated[
        int,
        Meta(ge=1, description="Longest answer. What the context has left bounds it."),
    ]
    temperature: Annotated[
        float | None,
        means("0 to 100; 0 is greedy. Default: what the checkpoint recommends, else 1."),
    ] = None
    top_p: Annotated[
        float | None, means("Above 0, up to 1. Default: what the checkpoint recommends, else 1.")
    ] = None
    top_k: Annotated[
        int | None,
        means("0 switches it off. Default: what the checkpoint recommends, else off."),
    ] = None
    stop_sequences: Annotated[
        list[str] | None,
        means("Up to 64 strings of 1 to 1024 characters; the answer ends before the first found."),
    ] = None
    stream: Annotated[bool | None, means("Answers as server-sent events. Default: false.")] = None
