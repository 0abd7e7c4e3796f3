"""The responses of an OpenAI-compatible server, as far as a client reads them: server-sent events
and the JSON in them. Fields that nobody here reads are ignored."""

from typing import Any

import msgspec


class EventParser:
    """Server-sent events of one stream: bytes in, whole `data` payloads out, however the network
    cut them (WHATWG "event stream interpretation").

    Owns only the unfinished tail. Comments, event names and ids are dropped: no client here needs
    them.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_return = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The payloads that `chunk` completes, in order; lines may end in LF, CR LF or CR."""
        if not chunk:
            return []
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_return = False
        if b"\r" in chunk:
            # A CR ends its line at once; its LF may come with the next chunk, then it is skipped.
            self._after_return = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif chunk:
            self._after_return = False
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()
        return self._dispatch(lines)

    def _dispatch(self, lines: list[bytes]) -> list[bytes]:
        payloads = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            elif not line and self._data:
                payloads.append(b"\n".join(self._data))
                self._data.clear()
        return payloads


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
        """None where the server does not count them."""
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
    """One answer, or in a stream the piece it grew by. `logprobs` differs by endpoint; `token_ids`
    are there where `return_token_ids` was asked for and the server knows it, and so are
    `token_sources` (worker, whether a draft had guessed it) with `return_token_sources`."""

    index: int = 0
    text: str | None = None
    delta: ChatText | None = None
    message: ChatText | None = None
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    token_ids: list[int] | None = None
    token_sources: list[tuple[str, bool]] | None = None

    @property
    def shown_text(self) -> str:
        """The text that this piece adds, whichever endpoint sent it."""
        if self.text is not None:
            return self.text
        message = self.delta or self.message
        return (message.content or "") if message else ""

    @property
    def carries_tokens(self) -> bool:
        """Whether a token stands behind this piece.

        An opening piece with only the role, or a closing one with only the reason, has none. A
        completion piece with empty text but no reason has: some tokens print as nothing.
        """
        if self.text is not None:
            return bool(self.text) or self.finish_reason is None
        message = self.delta or self.message
        return message is not None and bool(
            message.content or message.reasoning_content or message.tool_calls is not None
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


class Detokenized(msgspec.Struct):
    """The answer of /detokenize, likewise."""

    prompt: str = ""


class AddedToken(msgspec.Struct):
    """A token that a tokenizer has beside those that it learnt."""

    special: bool = False


class TokenizerInfo(msgspec.Struct):
    """The answer of /tokenizer_info, likewise."""

    added_tokens_decoder: dict[str, AddedToken] = {}

    @property
    def special_ids(self) -> frozenset[int]:
        """Of those that mark turns and ends, and belong to no text."""
        return frozenset(
            int(id) for id, token in self.added_tokens_decoder.items() if token.special
        )


def error_text(error: Any) -> str:
    """The message inside an error body, whichever of the usual shapes it has, on one line."""
    if isinstance(error, dict):
        for key in ("error", "message", "detail"):
            if error.get(key):
                return error_text(error[key])
    return " ".join(str(error).split())[:300]
