"""Answers of the Responses API, as types: the response, its output items, and the events of a
stream. What a client sent stands behind `output`, so that a writer finds that field in the JSON.
"""

import re
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from tandem.api.responses import TokenLogprob
from tandem.api.responses_body import (
    InputItem,
    ReasoningConfig,
    ResponseTool,
    ResponseToolChoice,
    TextConfig,
)

RESPONSE_PREFIX = "resp_"
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-f]+)[io][0-9]+")
_ITEM_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
}
ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


def item_id(kind: str, response_id: str, side: Literal["i", "o"], place: int) -> str:
    """The name of an item that a response was made of (`i`) or that it has (`o`): it says where the
    item is found, so that there is no index of them."""
    return f"{_ITEM_PREFIXES[kind]}_{response_id.removeprefix(RESPONSE_PREFIX)}{side}{place}"


def response_of_item(name: str) -> str:
    """The response that `item_id` named the item after; none is called like other names."""
    found = _ITEM_ID.fullmatch(name)
    return RESPONSE_PREFIX + found[1] if found else ""


class OutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: list[str] = []
    logprobs: list[TokenLogprob] = []


class ReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    text: str = ""


class OutputMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class OutputReasoning(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """The reasoning itself, of which nobody makes a summary."""

    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[str] = []


class OutputCall(Struct, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


OutputItem = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(Struct, kw_only=True):
    """Nothing is charged for what a prompt leaves in the cache, so nothing counts as written."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, kw_only=True):
    """`reasoning_tokens` are those of the reasoning, with its tags."""

    reasoning_tokens: int


class ResponseUsage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    degraded: str | UnsetType = UNSET
    cascade: str | UnsetType = UNSET


class IncompleteDetails(Struct, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseError(Struct, kw_only=True):
    code: Literal["server_error"]
    message: str


class ResponseObject(Struct, kw_only=True):
    """A response, whole or as far as it has come. `store` says whether it is kept."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: ResponseStatus
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    output: list[OutputItem]
    usage: ResponseUsage | None = None
    model: str
    previous_response_id: str | None
    store: bool
    background: bool = False
    service_tier: Literal["default"] = "default"
    temperature: float
    top_p: float
    max_output_tokens: int | None
    top_logprobs: int
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice
    tools: list[ResponseTool]
    text: TextConfig
    reasoning: ReasoningConfig
    instructions: str | None
    metadata: dict[str, str]
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None


class ResponseEvent(Struct, kw_only=True):
    """One event of a stream: `type` says which of the fields it has."""

    type: str
    sequence_number: int
    response: ResponseObject | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[TokenLogprob] | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET


class ResponseDeleted(Struct, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class InputItemList(Struct, kw_only=True):
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class InputTokens(Struct, kw_only=True):
    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
