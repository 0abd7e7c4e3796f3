"""OpenAI's `reasoning_effort`: variables of the chat template that say whether, and how much, a
model reasons before it answers."""

from typing import Any

from tandem.api.requests import ChatBody, TokenizeBody
from tandem.facts.errors import InvalidRequest
from tandem.text.model import TextModel

EFFORT = "reasoning_effort"
# By which templates switch reasoning on and off, as Qwen3's and DeepSeek V3.1's do.
SWITCHES = ("enable_thinking", "thinking")
_OFF = ("none", "minimal")


def template_arguments(body: ChatBody | TokenizeBody, text: TextModel) -> dict[str, Any]:
    """The further variables of the template: those that follow from `reasoning_effort`, as far as
    the template asks for them, and before them the client's own. A model that does not reason does
    what it does anyway. Raises `InvalidRequest` where reasoning cannot be switched off."""
    own, effort = body.chat_template_kwargs or {}, body.reasoning_effort
    if effort is None or text.chat is None:
        return own
    reasons = effort not in _OFF
    wanted = {**dict.fromkeys(SWITCHES, reasons), EFFORT: effort}
    known = {name: value for name, value in wanted.items() if name in text.chat.variables}
    if not known and not reasons and text.reasoning is not None:
        problem = f"{effort!r} is not possible: this model always reasons before it answers"
        raise InvalidRequest(EFFORT, problem)
    return {**known, **own}
