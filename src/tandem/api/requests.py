"""Request bodies of all calls, as types; the API schema is made of them, field by field.

A field that is null counts as absent. What a client sets as it is stored (`temperature`,
`priority`) is declared where it is stored, in `facts/sampling.py` and `facts/request.py`, and gets
its field here by itself. Ranges of sampling values are checked in one place, by
`SamplingParameters`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from tandem.api.body_fields import (
    ADD_GENERATION_PROMPT,
    CHAT_TEMPLATE_KWARGS,
    CONTINUE_FINAL_MESSAGE,
    REASONING_EFFORT,
    ChatMessage,
    Count,
    ModelBody,
    NamedToolChoice,
    NonNegative,
    ReasoningEffort,
    TokenId,
    Tool,
    means,
)
from tandem.api.request_extensions import AgentHints, DynamoExtensions, ScalingBody
from tandem.facts.client_fields import client_fields
from tandem.facts.request import Request
from tandem.facts.sampling import ALLOWED_TOKENS_LIMIT, SamplingParameters

_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
# msgspec reads one kind of array in a union; the schema says what is accepted in full.
Prompt = str | list[str | TokenId | list[TokenId]]
PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1},
    ]
}
_CHAT_MESSAGES = [{"role": "user", "content": "Hello!"}]
_TEXTS = ["The cat sat.", "It rained."]
# By the name of a body's type; each is a whole call that works on any model with a template, and
# those of encoders on any encoder that has what is asked for.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "ChatBody": {"messages": _CHAT_MESSAGES, "max_tokens": 64},
    "CompletionBody": {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0},
    "MessagesBody": {"messages": _CHAT_MESSAGES, "max_tokens": 64},
    "MessageCountBody": {"messages": _CHAT_MESSAGES},
    "ResponsesBody": {"input": "Hello!", "max_output_tokens": 64},
    "ConversationBody": {"input": "Hello!"},
    "BatchBody": {
        "input_file_id": "file-abc",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    },
    "TokenizeBody": {"messages": _CHAT_MESSAGES},
    "DetokenizeBody": {"tokens": [72, 105]},
    "InferBody": {
        "inputs": [
            {
                "name": "text_input",
                "shape": [1],
                "datatype": "BYTES",
                "data": ["Once upon a time"],
            },
            {"name": "max_tokens", "shape": [1], "datatype": "INT32", "data": [32]},
        ]
    },
    "GenerateBody": {
        "text_input": "Once upon a time",
        "parameters": {"max_tokens": 32, "temperature": 0},
    },
    "LoadAdapterBody": {"lora_name": "sql", "lora_path": "/adapters/sql"},
    "UnloadAdapterBody": {"lora_name": "sql"},
    "DrainBody": {"then_role": "decode"},
    "ApplyBody": {"settings": ["policies.routing=round-robin"]},
    "WhatIfBody": {"last_s": 300, "routing": "round-robin"},
    "EmbeddingBody": {"input": _TEXTS},
    "RerankBody": {"query": "How was the weather?", "documents": _TEXTS},
    "ScoreBody": {"text_1": "How was the weather?", "text_2": _TEXTS},
    "ClassifyBody": {"input": _TEXTS},
}


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside the answer."""

    include_usage: Annotated[
        bool | None, means("One more event at the end counts the tokens of the call.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, means("Every event counts the tokens so far.")
    ] = None
    include_obfuscation: Annotated[bool | None, means("Accepted without effect.")] = None


def with_client_fields(body: type[Struct]) -> Any:
    """The body type with a field more for each that `SamplingParameters` and `Request` declare as
    a client's to set."""
    declared: list[tuple[str, Any, Any]] = []
    for each in (*client_fields(SamplingParameters), *client_fields(Request)):
        kind = Annotated[each.kind, each.body] if each.body else each.kind
        meaning = Meta(description=each.meaning)
        declared.append((each.name, Annotated[kind | None, meaning], None))
    return msgspec.defstruct(
        body.__name__,
        declared,
        bases=(body,),
        namespace={"__doc__": body.__doc__},
        kw_only=True,
        forbid_unknown_fields=True,
        module=body.__module__,
    )


class JsonSchemaFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """What OpenAI calls a JSON schema: the schema with a name."""

    name: str | None = None
    description: str | None = None
    schema: Annotated[
        dict[str, Any] | None, means("The JSON schema that the answer validates against.")
    ] = None
    strict: Annotated[
        bool | None, means("Accepted without effect: the answer always has to validate.")
    ] = None


class ResponseFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's `response_format`."""

    type: Annotated[
        Literal["text", "json_object", "json_schema"],
        means("text: anything; json_object: a JSON object; json_schema: as `json_schema` says."),
    ]
    json_schema: JsonSchemaFormat | None = None


_JSON_SCHEMA = dict[str, Any] | str
_SCHEMA = means("A JSON schema, also as text, that the answer validates against.")
_REGEX = means("A regular expression that the whole answer matches.")
_CHOICE = means("The answer is one of these texts; up to 1024.")
_WHITESPACE = means(
    "A regular expression of what stands between the parts of JSON. Default: at most a space, or a "
    "new line and up to 32 characters that indent it."
)
_GRAMMAR = means("A grammar of the answer, in Lark's notation or in EBNF as llama.cpp has it.")


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: one of these."""

    json: Annotated[_JSON_SCHEMA | None, _SCHEMA] = None
    json_object: Annotated[bool | None, means("true: the answer is a JSON object.")] = None
    regex: Annotated[str | None, _REGEX] = None
    choice: Annotated[list[str] | None, _CHOICE] = None
    grammar: Annotated[str | None, _GRAMMAR] = None
    disable_any_whitespace: Annotated[
        bool | None, means("true: JSON without any whitespace between its parts.")
    ] = None
    whitespace_pattern: Annotated[str | None, _WHITESPACE] = None
    disable_fallback: Annotated[
        bool | None, means("Accepted without effect: there is one way to hold to a form.")
    ] = None
    disable_additional_properties: Annotated[
        bool | None, means("Only false: the schema says which properties there may be.")
    ] = None
    structural_tag: Annotated[None, means("Only null: it is not supported.")] = None


@with_client_fields
class GenerationBody(ModelBody, kw_only=True, forbid_unknown_fields=True):
    """What both generating calls share, beside what is declared where it is stored."""

    logit_bias: Annotated[
        dict[str, float | bool] | list[tuple[TokenId | str, float | bool]] | None,
        means(
            "Token id (as text) or word to a bias of -100 to 100, or to false: never; also as a "
            "list of pairs. At most 1024 tokens, 64 words of up to 256 characters."
        ),
    ] = None
    seed: Annotated[
        int | None,
        means("64 bits. Same seed and request, same tokens. Absent: the server draws one."),
    ] = None
    max_tokens: Count | None = None
    min_tokens: Annotated[
        NonNegative | None, means("End tokens and stop strings count only after so many tokens.")
    ] = None
    stop: Annotated[
        str | list[str] | None,
        means("Up to 64 strings of 1 to 1024 characters; the answer ends before the first found."),
    ] = None
    stop_token_ids: Annotated[
        list[TokenId] | None,
        means("Token ids that end the answer; at most 64 with the model's own."),
    ] = None
    allowed_token_ids: Annotated[
        list[TokenId] | None,
        means(f"No other token is drawn; 1 to {ALLOWED_TOKENS_LIMIT} token ids."),
    ] = None
    bad_words: Annotated[
        list[str] | None,
        means("Words that the answer must not have; up to 64 of 1 to 256 characters."),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        means(
            "Texts across which DRY matches nothing; up to 64 of 1 to 40 characters. Default: a "
            "new line, a colon, a double quote and an asterisk."
        ),
    ] = None
    response_format: Annotated[
        ResponseFormat | None, means("The form of the answer. Default: any text.")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, means("The form of the answer, in vLLM's words.")
    ] = None
    guided_json: Annotated[_JSON_SCHEMA | None, _SCHEMA] = None
    guided_regex: Annotated[str | None, _REGEX] = None
    guided_choice: Annotated[list[str] | None, _CHOICE] = None
    guided_grammar: Annotated[str | None, _GRAMMAR] = None
    guided_whitespace_pattern: Annotated[str | None, _WHITESPACE] = None
    include_stop_str_in_output: Annotated[
        bool | None, means("Keeps the stop string, or the text of the token that ended it.")
    ] = None
    ignore_eos: Annotated[bool | None, means("The model's end tokens do not end the answer.")] = (
        None
    )
    skip_special_tokens: Annotated[
        bool | None, means("Leaves special tokens out of the text. Default: true.")
    ] = None
    n: Annotated[Count | None, means("Answers to each prompt. Default: 1.")] = None
    best_of: Annotated[
        Count | None,
        means(
            "Computes so many answers to each prompt and gives the n with the highest mean "
            "log-probability of a token, best first. With beam search: its width. Default: n."
        ),
    ] = None
    use_beam_search: Annotated[
        bool | None,
        means("The n likeliest answers that a beam search finds, up to 10 beams wide."),
    ] = None
    length_penalty: Annotated[
        float | None,
        means("-10 to 10, of beam search: larger ones prefer longer answers. Default: 1."),
    ] = None
    early_stopping: Annotated[
        bool | Literal["never"] | None,
        means(
            "true: a beam search is over once as many answers as beams have ended. Default: once "
            "no better one can come."
        ),
    ] = None
    scaling: Annotated[
        ScalingBody | None,
        means("One answer from several samples or rounds, chosen by the server; not with n."),
    ] = None
    stream: Annotated[bool | None, means("Answers as server-sent events. Default: false.")] = None
    stream_options: Annotated[
        StreamOptions | None, means("What the stream carries beside the answer; needs stream.")
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        means(
            "Keeps so many of the prompt's last tokens; -1: as many as the context has room for "
            "beside max_tokens. Default: all, or the call is refused."
        ),
    ] = None
    prompt_logprobs: Annotated[
        NonNegative | None,
        means(
            "Adds log-probabilities of the prompt's tokens, and so many alternatives to each, up "
            "to 20. Such a prompt takes nothing from the cache. Not with stream."
        ),
    ] = None
    return_token_ids: Annotated[bool | None, means("Adds the token ids of prompt and answer.")] = (
        None
    )
    return_token_sources: Annotated[
        bool | None,
        means("With stream: which worker drew each token, and whether a draft had guessed it."),
    ] = None
    return_tokens_as_token_ids: Annotated[
        bool | None, means('Log-probabilities name tokens as "token_id:123", not by their text.')
    ] = None
    agent: Annotated[
        AgentHints | None, means("What an agent knows of its session. Changes no token.")
    ] = None
    session_id: Annotated[str | None, means("As `agent.session`, in vLLM's words.")] = None
    nvext: Annotated[DynamoExtensions | None, means("Hints in the words of NVIDIA Dynamo.")] = None


class CompletionBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions"""

    prompt: Annotated[Prompt, means("One text or list of token ids, or several of them.")]
    max_tokens: Annotated[
        NonNegative | None,
        means(
            "Longest answer. Default: 16; what the context has left bounds it. 0 with echo: none."
        ),
    ] = None
    suffix: Annotated[
        str | None,
        means(
            "What comes behind the answer, which then stands between prompt and suffix; for models "
            "with tokens for that."
        ),
    ] = None
    echo: Annotated[
        bool | None,
        means("Puts the prompt before the answer, and with logprobs its own before the others."),
    ] = None
    logprobs: Annotated[
        NonNegative | None,
        means("Adds log-probabilities, and so many alternatives to each token, up to 20."),
    ] = None
    add_special_tokens: Annotated[
        bool | None, means("Lets the tokenizer add its own, as a begin token. Default: true.")
    ] = None


class ChatBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions"""

    messages: Annotated[
        list[ChatMessage],
        Meta(min_length=1, description="The conversation, oldest message first."),
    ]
    max_tokens: Annotated[
        Count | None, means("Longest answer. Default and upper bound: what the context has left.")
    ] = None
    max_completion_tokens: Annotated[
        Count | None, means("The same as max_tokens under its newer name.")
    ] = None
    tools: Annotated[list[Tool] | None, means("Functions the model may call.")] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedToolChoice | None,
        means(
            "auto (default): the model decides; none; required: one call at least; or the function "
            "to call."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, means("false: one call at most. Default: true.")
    ] = None
    add_generation_prompt: Annotated[bool | None, ADD_GENERATION_PROMPT] = None
    continue_final_message: Annotated[bool | None, CONTINUE_FINAL_MESSAGE] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, CHAT_TEMPLATE_KWARGS] = None
    reasoning_effort: Annotated[ReasoningEffort | None, REASONING_EFFORT] = None
    logprobs: Annotated[bool | None, means("true adds the log-probability of each token.")] = None
    top_logprobs: Annotated[
        NonNegative | None, means("How many alternatives to each token, up to 20; needs logprobs.")
    ] = None


class TokenizeBody(ModelBody, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a `prompt` or the `messages` of a chat."""

    prompt: Annotated[str | None, means("A text; either this or messages.")] = None
    add_special_tokens: Annotated[
        bool | None, means("Lets the tokenizer add its own to a prompt. Default: true.")
    ] = None
    messages: Annotated[
        Annotated[list[ChatMessage], Meta(min_length=1)] | None,
        means("A conversation, put through the chat template; either this or prompt."),
    ] = None
    tools: Annotated[list[Tool] | None, means("Functions the template may show.")] = None
    add_generation_prompt: Annotated[bool | None, ADD_GENERATION_PROMPT] = None
    continue_final_message: Annotated[bool | None, CONTINUE_FINAL_MESSAGE] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, CHAT_TEMPLATE_KWARGS] = None
    reasoning_effort: Annotated[ReasoningEffort | None, REASONING_EFFORT] = None
    return_token_strs: Annotated[bool | None, means("Adds each token's own text.")] = None


class DetokenizeBody(ModelBody, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize"""

    tokens: Annotated[list[TokenId], means("The ids to turn into text.")]


class LoadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter"""

    lora_name: Annotated[str, means("The name of the model that the adapter is served as.")]
    lora_path: Annotated[str, means("Its folder on the server, as PEFT writes it.")]


class UnloadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter"""

    lora_name: Annotated[str, means("The name that it was loaded under.")]


class DrainBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tandem/workers/{worker}/drain"""

    then_role: Annotated[
        Literal["prefill", "decode", "both"] | None,
        means("The role that the worker takes once it is empty. Default: it stays drained."),
    ] = None
    leave: Annotated[bool | None, means("Its process ends once it is empty.")] = None


Settings = list[Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]]


class ApplyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tandem/apply"""

    settings: Annotated[
        Annotated[Settings, Meta(min_length=1, max_length=64)],
        means("Keys of the cluster file with their new values, as policies.routing=cost."),
    ]
    seen: Annotated[
        Annotated[int, Meta(ge=0, le=2**53)] | None,
        means(
            "The number that an answer without it gave: apply it, if nothing was applied since. "
            "Default: only say what would change."
        ),
    ] = None


# One, or several with commas between them; empty for what was.
POLICY_NAMES = r"^[a-z0-9,_-]*$"


class WhatIfBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tandem/what-if"""

    last_s: Annotated[
        Annotated[float, Meta(gt=0, le=86_400.0)] | None,
        means("Of the requests that came within so many seconds. Default: 300."),
    ] = None
    routing: Annotated[
        Annotated[str, Meta(max_length=64, pattern=POLICY_NAMES)] | None,
        means("The policy that chooses workers. Default: as it was."),
    ] = None
    admission: Annotated[
        Annotated[str, Meta(max_length=64, pattern=POLICY_NAMES)] | None,
        means("The policy that admits requests. Default: as it was."),
    ] = None
    workers: Annotated[
        dict[
            Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=64)],
            Annotated[int, Meta(ge=0, le=1024)],
        ]
        | None,
        means("How many workers pools have, by name. Default: as many as there were."),
    ] = None
    settings: Annotated[
        Annotated[Settings, Meta(max_length=64)] | None,
        means("Other keys of the cluster file, as slo.ttft=1s. Default: none."),
    ] = None
