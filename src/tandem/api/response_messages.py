"""Items of the Responses API as messages of a chat, and the turns of a conversation that the
context has room for."""

from collections.abc import Callable, Sequence

from tandem.api.body_fields import CalledFunction, ChatMessage, ContentPart, MadeToolCall
from tandem.api.responses_body import InputItem, InputPart
from tandem.api.unsupported_fields import unsupported
from tandem.facts.errors import InvalidRequest

MESSAGE, REFERENCE = "message", "item_reference"
_TEXT_PARTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def kind_of(item: InputItem) -> str:
    """Clients leave out the type of messages, and of references."""
    if item.type is not None:
        return item.type
    return REFERENCE if item.role is None and item.id is not None else MESSAGE


def chat_messages(
    instructions: str | None, history: Sequence[InputItem], items: Sequence[InputItem]
) -> list[ChatMessage]:
    """The conversation: `history` and then `items`, which errors count from 0. Raises
    `InvalidRequest`, and `Refused` for items that are not supported."""
    messages: list[ChatMessage] = []
    for place, item in enumerate((*history, *items), -len(history)):
        _add_item(messages, item, f"input[{place}]")
    if not messages:
        raise InvalidRequest("input", "must not be empty")
    if instructions:
        _put_first(messages, instructions)
    return messages


def fitting_end(
    messages: list[ChatMessage], fits: Callable[[list[ChatMessage]], bool]
) -> list[ChatMessage]:
    """The conversation without as many of its oldest turns as it takes to fit, or with the last one
    alone. A turn begins with what the user says; what the system says before the first stays."""
    if fits(messages):
        return messages
    head = 0
    while head < len(messages) and messages[head].role in ("system", "developer"):
        head += 1
    said = [place for place, each in enumerate(messages) if each.role == "user"]
    starts = [head, *(place for place in said if place > head)]

    def kept(turns: int) -> list[ChatMessage]:
        return messages[:head] + messages[starts[-turns] :]

    # From the end on, so that what is tried is never much longer than what fits.
    fitting, too_many = 1, 2
    while too_many < len(starts) and fits(kept(too_many)):
        fitting, too_many = too_many, 2 * too_many
    too_many = min(too_many, len(starts))
    while too_many - fitting > 1:
        middle = (fitting + too_many) // 2
        fitting, too_many = (middle, too_many) if fits(kept(middle)) else (fitting, middle)
    return kept(fitting)


def _put_first(messages: list[ChatMessage], instructions: str) -> None:
    """Templates take one message of the system, at the beginning."""
    first = messages[0]
    if first.role not in ("system", "developer"):
        messages.insert(0, ChatMessage(role="system", content=instructions))
        return
    parts = first.content if isinstance(first.content, list) else [_text_part(first.content or "")]
    first.content = [_text_part(f"{instructions}\n"), *parts]


def _add_item(messages: list[ChatMessage], item: InputItem, field: str) -> None:
    kind = kind_of(item)
    if kind == MESSAGE:
        _add_message(messages, item, field)
    elif kind == "reasoning":
        if text := _reasoning_text(item, field):
            messages.append(ChatMessage(role="assistant", reasoning_content=text))
    elif kind == "function_call":
        _add_call(messages, item, field)
    elif kind == "function_call_output":
        content = _content(item.output, f"{field}.output")
        call_id = _given(item.call_id, f"{field}.call_id")
        messages.append(ChatMessage(role="tool", tool_call_id=call_id, content=content))
    else:
        raise unsupported(field, f"of type {kind[:64]!r} is not supported")


def _add_message(messages: list[ChatMessage], item: InputItem, field: str) -> None:
    content = _content(item.content, f"{field}.content")
    if item.role is None:
        raise InvalidRequest(f"{field}.role", "is missing")
    if item.role == _last_role(messages) == "assistant" and messages[-1].content is None:
        # The text of an answer that has begun with its reasoning or a call.
        messages[-1].content = content
        return
    messages.append(ChatMessage(role=item.role, content=content))


def _add_call(messages: list[ChatMessage], item: InputItem, field: str) -> None:
    """An answer's text and calls are one message of a chat."""
    function = CalledFunction(
        name=_given(item.name, f"{field}.name"), arguments=item.arguments or ""
    )
    call = MadeToolCall(id=_given(item.call_id, f"{field}.call_id"), function=function)
    if _last_role(messages) != "assistant":
        messages.append(ChatMessage(role="assistant"))
    messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]


def _last_role(messages: Sequence[ChatMessage]) -> str | None:
    return messages[-1].role if messages else None


def _reasoning_text(item: InputItem, field: str) -> str:
    """Empty where there is an encrypted form alone, which only its maker reads."""
    parts = item.content if item.content else item.summary
    content = _content(parts or "", field)
    return content if isinstance(content, str) else "\n".join(each.text or "" for each in content)


def _content(content: str | list[InputPart] | None, field: str) -> str | list[ContentPart]:
    if content is None:
        raise InvalidRequest(field, "is missing")
    if isinstance(content, str):
        return content
    return [_text_part(_part_text(part, f"{field}[{p}]")) for p, part in enumerate(content)]


def _part_text(part: InputPart, field: str) -> str:
    text = part.refusal if part.type == "refusal" else part.text
    if part.type not in _TEXT_PARTS and part.type != "refusal":
        raise unsupported(field, f"of type {part.type[:64]!r} is not supported: only text is")
    if text is None:
        raise InvalidRequest(f"{field}.text", "is missing")
    return text


def _text_part(text: str) -> ContentPart:
    return ContentPart(type="text", text=text)


def _given(value: str | None, field: str) -> str:
    if not value:
        raise InvalidRequest(field, "is missing")
    return value
