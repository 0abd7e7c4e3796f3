"""The port of the skill measurements: what answers a chat, over HTTP or in this process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.bench.task import Message
from tandem.facts.sampling import SamplingParameters


@dataclass(frozen=True, slots=True)
class ChatReply:
    """One whole answer. Each of `tool_calls` is `{"name", "arguments"}`, the arguments a mapping or
    JSON text."""

    text: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0


class ChatModel(Protocol):
    """Answers chats; several may be asked at once."""

    async def complete_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: SamplingParameters,
    ) -> ChatReply:
        """The answer to one chat. Raises `TandemError` when there is none."""
        ...

    async def count_tokens(self, text: str) -> int:
        """How many tokens the model's tokenizer makes of `text`, without any added ones."""
        ...
