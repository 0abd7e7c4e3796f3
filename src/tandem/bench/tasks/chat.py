"""What answers the chats of the tasks: the port, and the server behind an OpenAI-compatible URL."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tandem.bench.client import Client, RequestFailed, ServerRefused
from tandem.bench.load import CHAT_PATH
from tandem.bench.responses import Chunk, Usage
from tandem.bench.tasks.task import Message
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


class HttpChat:
    """A `ChatModel` behind an OpenAI-compatible URL."""

    def __init__(self, client: Client, model: str) -> None:
        self._client = client
        self._model = model

    async def complete_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        sampling: SamplingParameters,
    ) -> ChatReply:
        """Raises `RequestFailed`."""
        body = chat_body(self._model, messages, tools, sampling)
        return _reply(await self._client.complete(CHAT_PATH, body))

    async def count_tokens(self, text: str) -> int:
        """Asks /tokenize; where there is none, a short chat tells by its prompt's length."""
        try:
            return len(await self._client.token_ids(self._model, text))
        except ServerRefused:
            one = SamplingParameters(max_tokens=1, temperature=0.0)
            short = await self.complete_chat([{"role": "user", "content": ""}], (), one)
            long = await self.complete_chat([{"role": "user", "content": text}], (), one)
            return max(1, long.prompt_tokens - short.prompt_tokens)


def chat_body(
    model: str,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    sampling: SamplingParameters,
) -> dict[str, Any]:
    """A task's chat in the OpenAI shape."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [openai_message(message) for message in messages],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
    }
    if tools:
        body["tools"] = list(tools)
    return body


def openai_message(message: Message) -> Message:
    """A task's message as the OpenAI schema wants it: calls have ids and their arguments are text,
    and a tool's turn names the call that it answers."""
    if message["role"] == "tool":
        return {"tool_call_id": "call_0", **message}
    if not message.get("tool_calls"):
        return message
    calls = []
    for number, call in enumerate(message["tool_calls"]):
        function = call["function"]
        arguments = function["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments)
        calls.append(
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": function["name"], "arguments": arguments},
            }
        )
    return {**message, "tool_calls": calls}


def _reply(answer: Chunk) -> ChatReply:
    if not answer.choices or answer.choices[0].message is None:
        raise RequestFailed("the answer holds no message")
    message = answer.choices[0].message
    calls = tuple(
        {"name": call.function.name, "arguments": call.function.arguments or "{}"}
        for call in message.tool_calls or ()
        if call.function is not None
    )
    usage = answer.usage or Usage()
    return ChatReply(message.content or "", calls, usage.prompt_tokens, usage.completion_tokens)
