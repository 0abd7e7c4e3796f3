"""Bodies of all answers and stream events, as types; the API schema is made of them."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from tandem.facts.request import TokenSource

Finish = Literal["stop", "length", "tool_calls", "abort"]


class ErrorDetail(Struct, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Struct, kw_only=True):
    error: ErrorDetail


class PromptTokensDetails(Struct, kw_only=True):
    cached_tokens: int


class CompletionTokensDetails(Struct, kw_only=True):
    """`reasoning_tokens` are those of the reasoning, with its tags."""

    reasoning_tokens: int


class Usage(Struct, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET
    degraded: str | UnsetType = UNSET
    cascade: str | UnsetType = UNSET


class ScalingSamples(Struct, kw_only=True):
    """Samples or rounds of a gang: `finished` by themselves, `cancelled` once it was decided,
    `refused` for want of room, or because their prompt grew longer than the context."""

    started: int
    finished: int
    cancelled: int
    refused: int


class ScalingTokens(Struct, kw_only=True):
    """Generated tokens: of the sample that is the answer, of all samples, and of their verifier."""

    answer: int
    samples: int
    verifier: int


class ScalingReport(Struct, kw_only=True):
    """How a call with `scaling` came to its answer.

    `answer` is what the vote says, `votes` counts those of the finished samples, most first.
    `winner` is the number of the sample (or round) that is shown, from 0; `scores` are those of the
    samples by number, null for one without.
    """

    method: Literal["self-consistency", "best-of-n", "re-query"]
    answer: str | None
    votes: dict[str, int]
    winner: int
    stopped_by: Literal["vote", "confidence", "budget", "deadline", "samples"]
    decided_early: bool
    samples: ScalingSamples
    tokens: ScalingTokens
    scores: list[float | None] | UnsetType = UNSET


class TopLogprob(Struct, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class PromptLogprob(Struct, kw_only=True):
    logprob: float
    rank: int
    decoded_token: str


# One place a token of the prompt, by token id.
PromptLogprobs = list[dict[int, PromptLogprob] | None]


class ChatLogprobs(Struct, kw_only=True):
    content: list[TokenLogprob]


class CompletionLogprobs(Struct, kw_only=True):
    """Parallel lists, one place a token; offsets count characters of the choice's text.
    The first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class FunctionCall(Struct, kw_only=True):
    name: str
    arguments: str


class AnswerToolCall(Struct, kw_only=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class AnswerMessage(Struct, kw_only=True):
    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[AnswerToolCall] | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatAnswer(Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    object: Literal["chat.completion"] = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    scaling: ScalingReport | UnsetType = UNSET


class FunctionCallDelta(Struct, kw_only=True):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(Struct, kw_only=True):
    """The first of a call names its id, type and function; `arguments` of all of them, joined, are
    its arguments."""

    index: int
    function: FunctionCallDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(Struct, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    token_sources: list[TokenSource] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    scaling: ScalingReport | UnsetType = UNSET


class CompletionChoice(Struct, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET
    token_sources: list[TokenSource] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionAnswer(Struct, kw_only=True):
    """The whole answer, or one event of a stream, which may lack the usage."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    system_fingerprint: str
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET
    scaling: ScalingReport | UnsetType = UNSET


class ModelEntry(Struct, kw_only=True):
    id: str
    created: int
    max_model_len: int
    vocabulary_tokens: int
    object: Literal["model"] = "model"
    owned_by: str = "tandem"
    root: str | None = None
    parent: str | None = None


class ModelList(Struct, kw_only=True):
    data: list[ModelEntry]
    object: Literal["list"] = "list"


class TokenizeAnswer(Struct, kw_only=True):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | None = None


class DetokenizeAnswer(Struct, kw_only=True):
    prompt: str


class AddedToken(Struct, kw_only=True):
    content: str
    special: bool


class TokenizerInfoAnswer(Struct, kw_only=True):
    """Special tokens are null where the checkpoint has none; `added_tokens_decoder` is by token
    id."""

    tokenizer_class: str | None
    chat_template: str | None
    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    sep_token: str | None
    pad_token: str | None
    cls_token: str | None
    mask_token: str | None
    added_tokens_decoder: dict[str, AddedToken]
    model_max_length: int


class AdapterAnswer(Struct, kw_only=True):
    lora_name: str
    status: Literal["loaded", "unloaded"]


class StatusAnswer(Struct, kw_only=True):
    status: str


class LoadAnswer(Struct, kw_only=True):
    server_load: int


class VersionAnswer(Struct, kw_only=True):
    version: str
