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

from tandem.facts.client_fields import client_fields
from tandem.facts.request import Request
from tandem.facts.sampling import ALLOWED_TOKENS_LIMIT, SamplingParameters

TokenId = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
HintSeconds = Annotated[float, Meta(ge=0, le=1e6)]
# Of what `scaling` asks, and of a judge's words.
ASK_CHARS = 8192
WORD_CHARS = 32
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
# By the name of a body's type; each is a whole call that works on any model with a template.
EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "ChatBody": {"messages": _CHAT_MESSAGES, "max_tokens": 64},
    "CompletionBody": {"prompt": "Once upon a time", "max_tokens": 32, "temperature": 0},
    "TokenizeBody": {"messages": _CHAT_MESSAGES},
    "DetokenizeBody": {"tokens": [72, 105]},
    "LoadAdapterBody": {"lora_name": "sql", "lora_path": "/adapters/sql"},
    "UnloadAdapterBody": {"lora_name": "sql"},
}


def _means(text: str) -> Meta:
    """What a field means to a client; the schema and the reference page show it."""
    return Meta(description=text)


# What fields of several bodies mean.
_MODEL = _means("A served name, or that of an adapter. Absent: the model that is served.")
_ADD_GENERATION_PROMPT = _means("Opens the assistant's turn. Default: true unless continuing.")
_CONTINUE_FINAL_MESSAGE = _means("Continues the last message instead of answering it.")
_CHAT_TEMPLATE_KWARGS = _means("Further variables of the checkpoint's chat template.")


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream carries beside the answer."""

    include_usage: Annotated[
        bool | None, _means("One more event at the end counts the tokens of the call.")
    ] = None
    continuous_usage_stats: Annotated[
        bool | None, _means("Every event counts the tokens so far.")
    ] = None
    include_obfuscation: Annotated[bool | None, _means("Accepted without effect.")] = None


class VerifierBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What scores the samples of a call with `scaling`."""

    type: Annotated[
        Literal["logprob", "judge"],
        _means(
            "logprob: the mean probability of a sample's tokens; judge: the model is asked whether "
            "the sample is right, and the probability of its yes counts."
        ),
    ] = "logprob"
    prompt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=ASK_CHARS)] | None,
        _means(
            "What the judge is asked after the sample; {question} and {answer} stand for the last "
            "message (or the prompt) and for the sample."
        ),
    ] = None
    yes: Annotated[
        Annotated[str, Meta(min_length=1, max_length=WORD_CHARS)] | None,
        _means("The judge's word for right. Default: yes."),
    ] = None
    no: Annotated[
        Annotated[str, Meta(min_length=1, max_length=WORD_CHARS)] | None,
        _means("The judge's word for wrong. Default: no."),
    ] = None


class ScalingBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Several samples or rounds for one answer."""

    method: Annotated[
        Literal["self-consistency", "best-of-n", "re-query"],
        _means(
            "self-consistency: the answer that most samples give; best-of-n: the sample that a "
            "verifier scores best; re-query: the model sees its own answer and is asked again."
        ),
    ]
    samples: Annotated[Count | None, _means("Samples at most. Default: 8; not of re-query.")] = None
    rounds: Annotated[
        Count | None, _means("Rounds of re-query at most, the first included. Default: 3.")
    ] = None
    parallel: Annotated[
        Count | None, _means("Samples that run at the same time. Default: all of them.")
    ] = None
    budget_tokens: Annotated[
        Count | None,
        _means("Once the gang has generated so many tokens, it stops. Default: no limit."),
    ] = None
    vote: Annotated[
        str | None,
        _means(
            "How a sample's answer is read: last-number (default), last-line, boxed, text, "
            "after:MARK or json:PATH. With best-of-n the scores of equal answers add up."
        ),
    ] = None
    confidence: Annotated[
        float | None,
        _means(
            "Above 0.5, below 1: stops as soon as the vote is so probable to stand, or with "
            "best-of-n once a sample scores as much. Default: only once nothing can change it."
        ),
    ] = None
    verifier: Annotated[
        VerifierBody | None,
        _means("What scores samples: of best-of-n by default logprob; else it breaks ties."),
    ] = None
    prompt: Annotated[
        Annotated[str, Meta(min_length=1, max_length=ASK_CHARS)] | None,
        _means("What re-query asks after an answer; {question} and {answer} as in the verifier."),
    ] = None


class AgentHints(Struct, kw_only=True, forbid_unknown_fields=True):
    """What an agent knows of its session and of what comes after this answer."""

    session: Annotated[
        str | None, _means("Calls of one session go on from each other. As X-Tandem-Session.")
    ] = None
    expected_output_tokens: Annotated[
        Count | None, _means("How long the answer will probably be.")
    ] = None
    pause_s: Annotated[
        HintSeconds | None,
        _means("After the answer a tool runs: expected seconds until the session's next call."),
    ] = None
    pin_s: Annotated[
        HintSeconds | None,
        _means("Keep what the call leaves in the cache for so long. As X-Tandem-Pin."),
    ] = None


class DynamoAgentHints(Struct, kw_only=True, forbid_unknown_fields=True):
    """Dynamo's `nvext.agent_hints`, as far as they mean something here."""

    priority: Annotated[
        Annotated[int, Meta(ge=-(2**31) + 1, le=2**31 - 1)] | None,
        _means("Larger runs sooner: the opposite of `priority`, within the same bounds."),
    ] = None
    osl: Annotated[Count | None, _means("As `agent.expected_output_tokens`.")] = None
    speculative_prefill: Annotated[
        bool | None, _means("Accepted without effect: KV of prompt and answer is cached anyway.")
    ] = None


class DynamoExtensions(Struct, kw_only=True, forbid_unknown_fields=True):
    """Dynamo's `nvext`."""

    agent_hints: Annotated[DynamoAgentHints | None, _means("What an agent knows of the call.")] = (
        None
    )


def _with_client_fields(body: type[Struct]) -> Any:
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
        kw_only=True,
        forbid_unknown_fields=True,
        module=body.__module__,
    )


class JsonSchemaFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """What OpenAI calls a JSON schema: the schema with a name."""

    name: str | None = None
    description: str | None = None
    schema: Annotated[
        dict[str, Any] | None, _means("The JSON schema that the answer validates against.")
    ] = None
    strict: Annotated[
        bool | None, _means("Accepted without effect: the answer always has to validate.")
    ] = None


class ResponseFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """OpenAI's `response_format`."""

    type: Annotated[
        Literal["text", "json_object", "json_schema"],
        _means("text: anything; json_object: a JSON object; json_schema: as `json_schema` says."),
    ]
    json_schema: JsonSchemaFormat | None = None


_JSON_SCHEMA = dict[str, Any] | str
_SCHEMA = _means("A JSON schema, also as text, that the answer validates against.")
_REGEX = _means("A regular expression that the whole answer matches.")
_CHOICE = _means("The answer is one of these texts; up to 1024.")
_WHITESPACE = _means(
    "A regular expression of what stands between the parts of JSON. Default: at most a space, or a "
    "new line and up to 32 characters that indent it."
)
_GRAMMAR = _means("A grammar of the answer, in Lark's notation or in EBNF as llama.cpp has it.")


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: one of these."""

    json: Annotated[_JSON_SCHEMA | None, _SCHEMA] = None
    json_object: Annotated[bool | None, _means("true: the answer is a JSON object.")] = None
    regex: Annotated[str | None, _REGEX] = None
    choice: Annotated[list[str] | None, _CHOICE] = None
    grammar: Annotated[str | None, _GRAMMAR] = None
    disable_any_whitespace: Annotated[
        bool | None, _means("true: JSON without any whitespace between its parts.")
    ] = None
    whitespace_pattern: Annotated[str | None, _WHITESPACE] = None


@_with_client_fields
class GenerationBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """What both generating calls share, beside what is declared where it is stored."""

    model: Annotated[str | None, _MODEL] = None
    logit_bias: Annotated[
        dict[str, float | bool] | list[tuple[TokenId | str, float | bool]] | None,
        _means(
            "Token id (as text) or word to a bias of -100 to 100, or to false: never; also as a "
            "list of pairs. At most 1024 tokens, 64 words of up to 256 characters."
        ),
    ] = None
    seed: Annotated[
        int | None,
        _means("64 bits. Same seed and request, same tokens. Absent: the server draws one."),
    ] = None
    max_tokens: Count | None = None
    min_tokens: Annotated[
        NonNegative | None, _means("End tokens and stop strings count only after so many tokens.")
    ] = None
    stop: Annotated[
        str | list[str] | None,
        _means("Up to 64 strings of 1 to 1024 characters; the answer ends before the first found."),
    ] = None
    stop_token_ids: Annotated[
        list[TokenId] | None,
        _means("Token ids that end the answer; at most 64 with the model's own."),
    ] = None
    allowed_token_ids: Annotated[
        list[TokenId] | None,
        _means(f"No other token is drawn; 1 to {ALLOWED_TOKENS_LIMIT} token ids."),
    ] = None
    bad_words: Annotated[
        list[str] | None,
        _means("Words that the answer must not have; up to 64 of 1 to 256 characters."),
    ] = None
    dry_sequence_breakers: Annotated[
        list[str] | None,
        _means(
            "Texts across which DRY matches nothing; up to 64 of 1 to 40 characters. Default: a "
            "new line, a colon, a double quote and an asterisk."
        ),
    ] = None
    response_format: Annotated[
        ResponseFormat | None, _means("The form of the answer. Default: any text.")
    ] = None
    structured_outputs: Annotated[
        StructuredOutputs | None, _means("The form of the answer, in vLLM's words.")
    ] = None
    guided_json: Annotated[_JSON_SCHEMA | None, _SCHEMA] = None
    guided_regex: Annotated[str | None, _REGEX] = None
    guided_choice: Annotated[list[str] | None, _CHOICE] = None
    guided_grammar: Annotated[str | None, _GRAMMAR] = None
    guided_whitespace_pattern: Annotated[str | None, _WHITESPACE] = None
    include_stop_str_in_output: Annotated[
        bool | None, _means("Keeps the stop string, or the text of the token that ended it.")
    ] = None
    ignore_eos: Annotated[bool | None, _means("The model's end tokens do not end the answer.")] = (
        None
    )
    skip_special_tokens: Annotated[
        bool | None, _means("Leaves special tokens out of the text. Default: true.")
    ] = None
    n: Annotated[Count | None, _means("Answers to each prompt. Default: 1.")] = None
    best_of: Annotated[
        Count | None,
        _means(
            "Computes so many answers to each prompt and gives the n with the highest mean "
            "log-probability of a token, best first. With beam search: its width. Default: n."
        ),
    ] = None
    use_beam_search: Annotated[
        bool | None,
        _means("The n likeliest answers that a beam search finds, up to 10 beams wide."),
    ] = None
    length_penalty: Annotated[
        float | None,
        _means("-10 to 10, of beam search: larger ones prefer longer answers. Default: 1."),
    ] = None
    early_stopping: Annotated[
        bool | Literal["never"] | None,
        _means(
            "true: a beam search is over once as many answers as beams have ended. Default: once "
            "no better one can come."
        ),
    ] = None
    scaling: Annotated[
        ScalingBody | None,
        _means("One answer from several samples or rounds, chosen by the server; not with n."),
    ] = None
    stream: Annotated[bool | None, _means("Answers as server-sent events. Default: false.")] = None
    stream_options: Annotated[
        StreamOptions | None, _means("What the stream carries beside the answer; needs stream.")
    ] = None
    truncate_prompt_tokens: Annotated[
        Annotated[int, Meta(ge=-1)] | None,
        _means(
            "Keeps so many of the prompt's last tokens; -1: as many as the context has room for "
            "beside max_tokens. Default: all, or the call is refused."
        ),
    ] = None
    prompt_logprobs: Annotated[
        NonNegative | None,
        _means(
            "Adds log-probabilities of the prompt's tokens, and so many alternatives to each, up "
            "to 20. Such a prompt takes nothing from the cache. Not with stream."
        ),
    ] = None
    return_token_ids: Annotated[bool | None, _means("Adds the token ids of prompt and answer.")] = (
        None
    )
    return_tokens_as_token_ids: Annotated[
        bool | None, _means('Log-probabilities name tokens as "token_id:123", not by their text.')
    ] = None
    agent: Annotated[
        AgentHints | None, _means("What an agent knows of its session. Changes no token.")
    ] = None
    nvext: Annotated[DynamoExtensions | None, _means("Hints in the words of NVIDIA Dynamo.")] = None


class CompletionBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions"""

    prompt: Annotated[Prompt, _means("One text or list of token ids, or several of them.")]
    max_tokens: Annotated[
        NonNegative | None,
        _means(
            "Longest answer. Default: 16; what the context has left bounds it. 0 with echo: none."
        ),
    ] = None
    echo: Annotated[
        bool | None,
        _means("Puts the prompt before the answer, and with logprobs its own before the others."),
    ] = None
    logprobs: Annotated[
        NonNegative | None,
        _means("Adds log-probabilities, and so many alternatives to each token, up to 20."),
    ] = None
    add_special_tokens: Annotated[
        bool | None, _means("Lets the tokenizer add its own, as a begin token. Default: true.")
    ] = None


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


class ChatBody(GenerationBody, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions"""

    messages: Annotated[
        list[ChatMessage],
        Meta(min_length=1, description="The conversation, oldest message first."),
    ]
    max_tokens: Annotated[
        Count | None, _means("Longest answer. Default and upper bound: what the context has left.")
    ] = None
    max_completion_tokens: Annotated[
        Count | None, _means("The same as max_tokens under its newer name.")
    ] = None
    tools: Annotated[list[Tool] | None, _means("Functions the model may call.")] = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | NamedToolChoice | None,
        _means(
            "auto (default): the model decides; none; required: one call at least; or the function "
            "to call."
        ),
    ] = None
    parallel_tool_calls: Annotated[
        bool | None, _means("false: one call at most. Default: true.")
    ] = None
    add_generation_prompt: Annotated[bool | None, _ADD_GENERATION_PROMPT] = None
    continue_final_message: Annotated[bool | None, _CONTINUE_FINAL_MESSAGE] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, _CHAT_TEMPLATE_KWARGS] = None
    logprobs: Annotated[bool | None, _means("true adds the log-probability of each token.")] = None
    top_logprobs: Annotated[
        NonNegative | None, _means("How many alternatives to each token, up to 20; needs logprobs.")
    ] = None


class TokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize: a `prompt` or the `messages` of a chat."""

    model: Annotated[str | None, _MODEL] = None
    prompt: Annotated[str | None, _means("A text; either this or messages.")] = None
    add_special_tokens: Annotated[
        bool | None, _means("Lets the tokenizer add its own to a prompt. Default: true.")
    ] = None
    messages: Annotated[
        Annotated[list[ChatMessage], Meta(min_length=1)] | None,
        _means("A conversation, put through the chat template; either this or prompt."),
    ] = None
    tools: Annotated[list[Tool] | None, _means("Functions the template may show.")] = None
    add_generation_prompt: Annotated[bool | None, _ADD_GENERATION_PROMPT] = None
    continue_final_message: Annotated[bool | None, _CONTINUE_FINAL_MESSAGE] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, _CHAT_TEMPLATE_KWARGS] = None
    return_token_strs: Annotated[bool | None, _means("Adds each token's own text.")] = None


class DetokenizeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize"""

    tokens: Annotated[list[TokenId], _means("The ids to turn into text.")]
    model: Annotated[str | None, _MODEL] = None


class LoadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter"""

    lora_name: Annotated[str, _means("The name of the model that the adapter is served as.")]
    lora_path: Annotated[str, _means("Its folder on the server, as PEFT writes it.")]


class UnloadAdapterBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter"""

    lora_name: Annotated[str, _means("The name that it was loaded under.")]
