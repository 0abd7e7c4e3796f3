"""Fields that bodies of several calls share: kinds of values, what they mean to a client, the
messages of a conversation and the tools on offer."""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from tandem.api.other_fields import OPENAI, OtherFields

TokenId = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]


def means(text: str) -> Meta:
    """What a field means to a client; the schema and the reference page show it."""
    return Meta(description=text)


# What fields of several bodies mean.
MODEL = means("A served name, or that of an adapter. Absent: the model that is served.")


class ModelBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Of any call that a model answers: which one is known before the rest means anything."""

    other_fields: ClassVar[OtherFields] = OPENAI

    model: Annotated[str | None, MODEL] = None


ADD_GENERATION_PROMPT = means("Opens the assistant's turn. Default: true unless continuing.")
CONTINUE_FINAL_MESSAGE = means("Continues the last message instead of answering it.")
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
REASONING_EFFORT = means(
    "none, minimal: without reasoning; any other: with it; as far as the chat template can say so."
)
CHAT_TEMPLATE_KWARGS = means("Further variables of the checkpoint's chat template.")


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
    reasoning: str | None = None


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
    """Demands one tool."""

    type: Literal["function"]
    function: NamedFunction
