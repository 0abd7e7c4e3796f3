"""What an OpenAI-compatible server sends, as far as a client reads it; the rest is ignored."""

from typing import Any

import msgspec


class TokenDetails(msgspec.Struct):
    """The part of the prompt that came from the server's prefix cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """The server's own token counts; the last event of a stream carries them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: TokenDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """None where the server does not say."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class CalledFunction(msgspec.Struct):
    """A function's name and (a piece of) its arguments in JSON."""

    name: str | None = None
    arguments: str | None = None


class ToolCall(msgspec.Struct):
    """A tool call, or in a stream a piece of the `index`-th one."""

    index: int = 0
    function: CalledFunction | None = None


class ChatText(msgspec.Struct):
    """A chat message, or in a stream the piece it grew by."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class Choice(msgspec.Struct):
    """One answer, or in a stream the piece it grew by. `logprobs` differs by endpoint."""

    index: int = 0
    text: str | None = None
    delta: ChatText | None = None
    message: ChatText | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None

    @property
    def shown_text(self) -> str:
        """The text that this piece adds, whichever endpoint sent it."""
        if self.text is not None:
            return self.text
        said = self.delta or self.message
        return (said.content or "") if said else ""

    @property
    def carries_tokens(self) -> bool:
        """Whether a token stands behind this piece.

        An opening piece with only the role, or a closing one with only the reason, has none. A
        completion piece with empty text but no reason has: some tokens print as nothing.
        """
        if self.text is not None:
            return bool(self.text) or self.finish_reason is None
        said = self.delta or self.message
        return said is not None and bool(
            said.content or said.reasoning_content or said.tool_calls is not None
        )


class Chunk(msgspec.Struct):
    """One event of a stream, or a whole answer that was not streamed."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None


class ServedModel(msgspec.Struct):
    """A row of /v1/models; the sizes are extensions that not every server gives."""

    id: str
    max_model_len: int | None = None
    context_tokens: int | None = None
    vocabulary_tokens: int | None = None
    vocab_size: int | None = None

    @property
    def vocabulary(self) -> int | None:
        return self.vocabulary_tokens or self.vocab_size

    @property
    def context(self) -> int | None:
        return self.context_tokens or self.max_model_len


class ModelList(msgspec.Struct):
    """The answer of /v1/models."""

    data: list[ServedModel] = []


class Tokenized(msgspec.Struct):
    """The answer of /tokenize, an extension that vLLM introduced."""

    tokens: list[int] = []


def error_text(error: Any) -> str:
    """The message inside an error body, whichever of the usual shapes it has, on one line."""
    if isinstance(error, dict):
        for key in ("error", "message", "detail"):
            if error.get(key):
                return error_text(error[key])
    return " ".join(str(error).split())[:300]
