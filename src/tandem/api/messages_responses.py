"""Answers, stream events and errors of Anthropic's Messages API, as types; the API schema is made
of them."""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(Struct, kw_only=True, tag="text"):
    text: str


class ThinkingBlock(Struct, kw_only=True, tag="thinking"):
    """Reasoning. It is not signed: whoever sends it back may have changed it."""

    thinking: str
    signature: str = ""


class ToolUseBlock(Struct, kw_only=True, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class OutputTokensDetails(Struct, kw_only=True):
    """`thinking_tokens` are those of the reasoning, with its tags."""

    thinking_tokens: int


class MessageUsage(Struct, kw_only=True):
    """The tokens of the prompt are `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens_details: OutputTokensDetails | UnsetType = UNSET


class MessageAnswer(Struct, kw_only=True):
    """The whole answer, or what is known of it when a stream begins."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageTokens(Struct, kw_only=True):
    input_tokens: int


class TextDelta(Struct, kw_only=True, tag="text_delta"):
    text: str


class ThinkingDelta(Struct, kw_only=True, tag="thinking_delta"):
    thinking: str


class InputJsonDelta(Struct, kw_only=True, tag="input_json_delta"):
    """Those of one block, joined, are its input."""

    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | InputJsonDelta


class MessageStart(Struct, kw_only=True, tag="message_start"):
    message: MessageAnswer


class ContentBlockStart(Struct, kw_only=True, tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class ContentBlockDelta(Struct, kw_only=True, tag="content_block_delta"):
    index: int
    delta: BlockDelta


class ContentBlockStop(Struct, kw_only=True, tag="content_block_stop"):
    index: int


class MessageEnd(Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(Struct, kw_only=True, tag="message_delta"):
    delta: MessageEnd
    usage: MessageUsage


class MessageStop(Struct, kw_only=True, tag="message_stop"):
    """Nothing follows it."""


MESSAGE_EVENTS = (
    MessageStart,
    ContentBlockStart,
    ContentBlockDelta,
    ContentBlockStop,
    MessageDelta,
    MessageStop,
)


class MessageErrorCode(Struct, kw_only=True):
    """`error_code` is the `code` that the same error has in OpenAI's shape."""

    error_code: str


class MessageErrorDetail(Struct, kw_only=True):
    type: str
    message: str
    details: MessageErrorCode | UnsetType = UNSET


class MessageError(Struct, kw_only=True, tag="error"):
    error: MessageErrorDetail
    request_id: str
