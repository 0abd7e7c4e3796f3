"""What the bodies of calls must keep beyond the types of their fields, as JSON Schema: bounds,
kinds of messages, and which of two fields there must be.

The code that reads a body decides and says what is wrong; here stands the same for those who only
have the schema. What a schema cannot say is not here: whether a pattern or a grammar compiles, a
name is that of a tool, two lists are equally long, or two fields go together.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from tandem.api.app_context import SESSION_CHARS
from tandem.api.requests import PROMPT_SCHEMA
from tandem.api.sampling_request import (
    BAD_WORD_CHARS_LIMIT,
    BAD_WORDS_COUNT_LIMIT,
    DRY_BREAKER_CHARS_LIMIT,
    DRY_BREAKERS_COUNT_LIMIT,
    STOP_STRING_CHARS_LIMIT,
    STOP_STRINGS_LIMIT,
)
from tandem.api.search_request import BEAM_WIDTH_LIMIT, LENGTH_PENALTY_LIMIT, NOT_WITH_BEAMS
from tandem.api.structured_output import CHOICES_LIMIT
from tandem.api.tool_choice import TOOLS_LIMIT
from tandem.facts.client_fields import client_fields
from tandem.facts.sampling import (
    ALLOWED_TOKENS_LIMIT,
    GRAMMAR_CHARS_LIMIT,
    LOGIT_BIAS_LIMIT,
    SEED_LIMIT,
    STOP_TOKENS_LIMIT,
    TOP_LOGPROBS_LIMIT,
    SamplingParameters,
)
from tandem.policy.scaling.answers import MARK_CHARS

Schema = dict[str, Any]
_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": "string"}
_NUMBERS = ("number", "integer")
_FORMS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
# Not blank alone, and no token id: what a word is.
_WORD: Schema = {"type": "string", "pattern": r"\S", "minLength": 1}


@dataclass(frozen=True, slots=True)
class SchemaLimits:
    """What a server bounds. Of encoders the largest numbers count, where there are several; 0:
    there are none. With `empty_prompts` a tokenizer makes a token of nothing."""

    vocabulary_tokens: int
    end_tokens: int
    max_choices: int
    max_scaling_samples: int
    empty_prompts: bool
    encoder_context_tokens: int = 0
    encoder_vocabulary_tokens: int = 0
    encoder_features: int = 0
    most_texts: int = 0


def apply_rules(types: dict[str, Schema], limits: SchemaLimits) -> None:
    """Adds the rules to the schemas of bodies, by name, in place."""
    for name in ("ChatBody", "CompletionBody", "ResponsesBody", "MessagesBody"):
        _sampling(_fields(types, name))
    for name in ("ChatBody", "CompletionBody"):
        _generation(_fields(types, name), limits)
    _conversation(types, limits)
    _responses(types)
    _messages(types)
    _tokens(types, limits)
    _adapters(types)
    _together(types)
    if limits.encoder_features:
        _encoders(types, limits)


def _fields(types: Mapping[str, Schema], name: str) -> Schema:
    fields: Schema = types[name]["properties"]
    return fields


def _branches(field: Schema) -> list[Schema]:
    branches: list[Schema] = field.get("anyOf") or [field]
    return branches


def _bound(field: Schema, *kinds: str, **rules: Any) -> None:
    """Adds rules to what a field may be of these kinds."""
    for branch in _branches(field):
        if branch.get("type") in kinds:
            branch.update(deepcopy(rules))


def _bound_known(fields: Schema, names: Sequence[str], *kinds: str, **rules: Any) -> None:
    for name in names:
        if name in fields:
            _bound(fields[name], *kinds, **rules)


def _instead(field: Schema, *kinds: Schema) -> None:
    """The field may be one of these, or null where it might have been."""
    null = [_NULL] if _NULL in _branches(field) else []
    field.pop("type", None)
    field.pop("items", None)
    field.pop("$ref", None)
    field["anyOf"] = [*kinds, *null]


def _sampling(fields: Schema) -> None:
    for each in client_fields(SamplingParameters):
        if each.name not in fields or each.between is None:
            continue
        low, high = each.between
        # -1 is a common spelling of "no top-k".
        _bound(fields[each.name], *_NUMBERS, minimum=-1 if each.name == "top_k" else low)
        _bound(fields[each.name], *_NUMBERS, maximum=high)
    _bound_known(fields, ("top_p", "typical_p"), "number", exclusiveMinimum=0)
    _bound_known(fields, ("seed",), "integer", minimum=-(SEED_LIMIT // 2), maximum=SEED_LIMIT - 1)
    stop: Schema = {"type": "string", "minLength": 1, "maxLength": STOP_STRING_CHARS_LIMIT}
    _bound_known(fields, ("stop", "stop_sequences"), "string", **stop)
    _bound_known(
        fields, ("stop", "stop_sequences"), "array", items=stop, maxItems=STOP_STRINGS_LIMIT
    )
    names = ("logprobs", "top_logprobs", "prompt_logprobs")
    _bound_known(fields, names, "integer", maximum=TOP_LOGPROBS_LIMIT)


def _generation(fields: Schema, limits: SchemaLimits) -> None:
    token: Schema = {"type": "integer", "minimum": 0, "maximum": limits.vocabulary_tokens - 1}
    # The model's own are among those that end an answer.
    ends = STOP_TOKENS_LIMIT - limits.end_tokens
    _bound(fields["stop_token_ids"], "array", items=token, maxItems=ends)
    allowed: Schema = {"items": token, "minItems": 1, "maxItems": ALLOWED_TOKENS_LIMIT}
    _bound(fields["allowed_token_ids"], "array", **allowed)
    word = _WORD | {"maxLength": BAD_WORD_CHARS_LIMIT}
    _bound(fields["bad_words"], "array", items=word, maxItems=BAD_WORDS_COUNT_LIMIT)
    breaker: Schema = {"type": "string", "minLength": 1, "maxLength": DRY_BREAKER_CHARS_LIMIT}
    breakers: Schema = {"items": breaker, "maxItems": DRY_BREAKERS_COUNT_LIMIT}
    _bound(fields["dry_sequence_breakers"], "array", **breakers)
    _logit_bias(fields["logit_bias"], limits)
    for name in ("n", "best_of"):
        _bound(fields[name], "integer", maximum=limits.max_choices)
    penalty: Schema = {"minimum": -LENGTH_PENALTY_LIMIT, "maximum": LENGTH_PENALTY_LIMIT}
    _bound(fields["length_penalty"], "number", **penalty)
    text: Schema = {"minLength": 1, "maxLength": GRAMMAR_CHARS_LIMIT}
    for name in ("guided_regex", "guided_grammar"):
        _bound(fields[name], "string", **text)
    choices: Schema = {"items": _TEXT | {"minLength": 1}, "minItems": 1, "maxItems": CHOICES_LIMIT}
    _bound(fields["guided_choice"], "array", **choices)
    _bound(fields["session_id"], "string", **_session())
    _instead(fields["truncate_prompt_tokens"], {"const": -1}, {"type": "integer", "minimum": 1})


def _together(types: dict[str, Schema]) -> None:
    """Fields that mean something with another one alone."""
    some: Schema = {"type": "array", "minItems": 1}
    tools: Schema = {"required": ["tools"], "properties": {"tools": some}}
    for name in ("ChatBody", "CompletionBody"):
        whole: Schema = {"stream": {"enum": [None, False]}, "stream_options": _NULL}
        streamed: Schema = {"stream": {"const": True}, "prompt_logprobs": _NULL}
        _either(
            types, name, {"properties": whole}, {"required": ["stream"], "properties": streamed}
        )
        unsearched = {
            "use_beam_search": {"enum": [None, False]},
            "length_penalty": {"enum": [None, 1]},
            "early_stopping": {"enum": [None, False, "never"]},
        }
        beams = {"required": ["use_beam_search"], "properties": _beams(_fields(types, name))}
        _either(types, name, {"properties": unsearched}, beams)
    some_tokens: Schema = {"anyOf": [_NULL, {"type": "integer", "minimum": 1}]}
    answered: Schema = {"properties": {"max_tokens": some_tokens}}
    single: Schema = {"use_beam_search": {"enum": [None, False]}, "scaling": _NULL}
    echoed: Schema = {"required": ["echo"], "properties": {"echo": {"const": True}, **single}}
    _either(types, "CompletionBody", answered, echoed)
    silent: Schema = {"properties": {"echo": {"enum": [None, False]}}}
    _either(types, "CompletionBody", silent, _without("logprobs"), {"properties": single})
    _either(types, "ChatBody", _without("top_logprobs"), _is("logprobs", True))
    # Which tools a choice may name, a schema cannot say.
    for name in ("ChatBody", "ResponsesBody", "ConversationBody"):
        free: Schema = {"enum": [None, "none", "auto"]}
        _either(types, name, {"properties": {"tool_choice": free}}, tools)
    for name in ("MessagesBody", "MessageCountBody"):
        free = {"properties": {"type": {"enum": ["auto", "none"]}}}
        _either(types, name, {"properties": {"tool_choice": free}}, tools)
    session: Schema = {"session": _TEXT | {"minLength": 1}}
    _either(
        types, "AgentHints", _without("pause_s"), {"required": ["session"], "properties": session}
    )
    plain: Schema = {"properties": {"type": {"enum": ["text", "json_object"]}}}
    schema: Schema = {"required": ["schema"], "properties": {"schema": {"type": "object"}}}
    named: Schema = {"type": {"const": "json_schema"}}
    _either(
        types,
        "ResponseFormat",
        plain,
        {"required": ["json_schema"], "properties": {**named, "json_schema": schema}},
    )
    _either(types, "TextFormat", plain, schema | {"properties": {**named, **schema["properties"]}})
    forms = ("json", "regex", "choice", "grammar")
    _either(types, "StructuredOutputs", *map(_given, forms), _is("json_object", True))


def _beams(fields: Schema) -> Schema:
    """What may stand beside a beam search, which decides all else by itself."""
    width: Schema = {"anyOf": [_NULL, {"type": "integer", "maximum": BEAM_WIDTH_LIMIT}]}
    rules: Schema = dict.fromkeys((*NOT_WITH_BEAMS, *_FORMS, "prompt_logprobs"), _NULL)
    rules |= {"use_beam_search": {"const": True}, "n": width, "best_of": width}
    rules["stream"] = {"enum": [None, False]}
    plain = SamplingParameters()
    for each in client_fields(SamplingParameters):
        rules[each.name] = {"enum": [None, getattr(plain, each.name)]}
    # Greedy it is anyway, and -1 is no top-k either.
    for name, value in (("temperature", 0), ("top_k", -1)):
        rules[name]["enum"].append(value)
    return {name: rule for name, rule in rules.items() if name in fields}


def _either(types: dict[str, Schema], body: str, *ways: Schema) -> None:
    """One of these holds of the body, beside all else that does."""
    types[body].setdefault("allOf", []).append({"anyOf": list(ways)})


def _without(field: str) -> Schema:
    return {"properties": {field: _NULL}}


def _is(field: str, value: object) -> Schema:
    return {"required": [field], "properties": {field: {"const": value}}}


def _session() -> Schema:
    return {"pattern": "^[ -~]*$", "maxLength": SESSION_CHARS}


def _logit_bias(field: Schema, limits: SchemaLimits) -> None:
    bias: Schema = {
        "anyOf": [{"type": "number", "minimum": -100, "maximum": 100}, {"const": False}]
    }
    token = _decimal_up_to(limits.vocabulary_tokens - 1)
    # Digits are an id; everything else is a word.
    key: Schema = {
        "anyOf": [
            {"pattern": f"^0*({token})$", "maxLength": 11},
            {"pattern": r"[^0-9\s]", "maxLength": BAD_WORD_CHARS_LIMIT},
        ]
    }
    pairs: Schema = {
        "type": "array",
        "minItems": 2,
        "maxItems": 2,
        "prefixItems": [
            {
                "anyOf": [
                    {"type": "integer", "minimum": 0, "maximum": limits.vocabulary_tokens - 1},
                    {"type": "string", **key},
                ]
            },
            bias,
        ],
        "items": False,
    }
    most = LOGIT_BIAS_LIMIT
    _bound(field, "object", additionalProperties=bias, propertyNames=key, maxProperties=most)
    _bound(field, "array", items=pairs, maxItems=most)


def _decimal_up_to(number: int) -> str:
    """A regular expression of the numbers from 0 to this one, without leading zeros."""
    digits = str(number)
    shorter = [f"[0-9]{{1,{len(digits) - 1}}}"] if len(digits) > 1 else []
    options = []
    for place, digit in enumerate(digits):
        low = 1 if place == 0 and len(digits) > 1 else 0
        if int(digit) > low:
            rest = f"[0-9]{{{len(digits) - place - 1}}}" if place + 1 < len(digits) else ""
            options.append(f"{digits[:place]}[{low}-{int(digit) - 1}]{rest}")
    return "|".join([*shorter, *options, digits])


def _conversation(types: dict[str, Schema], limits: SchemaLimits) -> None:
    """Chats, their parts and their tools, wherever they stand."""
    types["ContentPart"] = _object(types, "ContentPart", type={"const": "text"}, text=_TEXT)
    for name in ("ChatBody", "TokenizeBody"):
        tools = _fields(types, name)["tools"]
        if name == "ChatBody":
            _bound(tools, "array", maxItems=TOOLS_LIMIT)
    scaling = _fields(types, "ScalingBody")
    most = max(1, limits.max_scaling_samples)
    for name in ("samples", "rounds"):
        _bound(scaling[name], "integer", maximum=most)
    mark = f"(after|json):(.|\\n){{1,{MARK_CHARS}}}"
    _bound(scaling["vote"], "string", pattern=f"^(last-number|last-line|boxed|text|{mark})$")
    several: Schema = {"method": {"enum": ["self-consistency", "best-of-n"]}}
    rounds: Schema = {"method": {"const": "re-query"}}
    several |= dict.fromkeys(("rounds", "prompt"), _NULL)
    rounds |= dict.fromkeys(("samples", "parallel", "confidence", "verifier"), _NULL)
    _either(types, "ScalingBody", {"properties": several}, {"properties": rounds})
    judged: Schema = {"properties": {"type": {"const": "judge"}}, "required": ["type"]}
    scored = {"type": {"const": "logprob"}} | dict.fromkeys(("prompt", "yes", "no"), _NULL)
    _either(types, "VerifierBody", judged, {"properties": scored})
    _bound(scaling["confidence"], "number", exclusiveMinimum=0.5, exclusiveMaximum=1)
    _bound(_fields(types, "AgentHints")["session"], "string", **_session())
    structured = _fields(types, "StructuredOutputs")
    text: Schema = {"minLength": 1, "maxLength": GRAMMAR_CHARS_LIMIT}
    for name in ("regex", "grammar"):
        _bound(structured[name], "string", **text)
    choices: Schema = {"items": _TEXT | {"minLength": 1}, "minItems": 1, "maxItems": CHOICES_LIMIT}
    _bound(structured["choice"], "array", **choices)
    _instead(structured["disable_additional_properties"], {"const": False})


def _object(types: Mapping[str, Schema], of: str, /, **needed: Schema) -> Schema:
    """The schema that is called so, with these fields as they must be."""
    schema = deepcopy(types[of])
    for field, rule in needed.items():
        told = {
            key: value for key, value in schema["properties"][field].items() if key == "description"
        }
        schema["properties"][field] = told | deepcopy(rule)
    schema["required"] = sorted({*schema["required"], *needed})
    return schema


def _given(*names: str) -> Schema:
    """Where these are there, and not null."""
    return {"required": list(names), "properties": {name: {"not": _NULL} for name in names}}


def _responses(types: dict[str, Schema]) -> None:
    """Items of a conversation by their kind. Other fields are echoes of clients."""
    text = ["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    types["InputPart"]["anyOf"] = [
        {"required": ["type", "text"], "properties": {"type": {"enum": text}, "text": _TEXT}},
        {
            "required": ["type", "refusal"],
            "properties": {"type": {"const": "refusal"}, "refusal": _TEXT},
        },
    ]
    named: Schema = {"type": "string", "minLength": 1}
    said = {
        "anyOf": [_TEXT, {"type": "array", "items": {"$ref": "#/components/schemas/InputPart"}}]
    }

    def item(kind: Schema, **needed: Schema) -> Schema:
        required = [*(["type"] if "const" in kind else []), *needed]
        return {"required": required, "properties": {"type": kind, **needed}}

    roles = {"enum": ["assistant", "developer", "system", "user"]}
    types["InputItem"]["anyOf"] = [
        item({"enum": ["message", None]}, role=roles, content=said),
        item({"const": "reasoning"}),
        item({"const": "function_call"}, call_id=named, name=named),
        item({"const": "function_call_output"}, call_id=named, output=said),
        item({"const": "item_reference"}, id=named),
    ]
    tool = _object(types, "ResponseTool", type={"const": "function"}, name=named)
    _instead(tool["properties"]["defer_loading"], {"const": False})
    types["ResponseTool"] = tool
    types["AllowedTool"] = _object(types, "AllowedTool", type={"const": "function"}, name=named)
    _bound(_fields(types, "TextConfig")["verbosity"], *())
    _instead(_fields(types, "TextConfig")["verbosity"], {"const": "medium"})
    types["ResponseToolChoice"]["anyOf"] = [
        {"required": ["name"], "properties": {"type": {"const": "function"}, "name": named}},
        {"properties": {"type": {"const": "allowed_tools"}}},
    ]
    for name in ("ResponsesBody", "ConversationBody"):
        _bound(_fields(types, name)["tools"], "array", maxItems=TOOLS_LIMIT)
        _bound(_fields(types, name)["input"], "array", minItems=1)
        types[name]["anyOf"] = [_given("input"), _given("previous_response_id")]


def _messages(types: dict[str, Schema]) -> None:
    """Anthropic's messages: which blocks there may be depends on whose message it is."""
    named: Schema = {"type": "string"}
    kinds: dict[str, Schema] = {
        "text": {"text": _TEXT},
        "thinking": {"thinking": _TEXT},
        "tool_use": {"id": named, "name": named},
        "tool_result": {"tool_use_id": named},
    }

    def blocks(*names: str, **rules: Any) -> Schema:
        of_kind = [
            {
                "required": ["type", *kinds[name]],
                "properties": {"type": {"const": name}, **kinds[name]},
            }
            for name in names
        ]
        reference: Schema = {"$ref": "#/components/schemas/MessageBlock"}
        items = {"allOf": [reference, {"anyOf": of_kind} if len(of_kind) > 1 else of_kind[0]]}
        return {"type": "array", "items": items, **rules}

    def message(role: str, *contents: Schema) -> Schema:
        return {"properties": {"role": {"const": role}, "content": {"anyOf": list(contents)}}}

    some = _TEXT | {"minLength": 1}
    types["InputMessage"]["anyOf"] = [
        message("user", some, blocks("text", "tool_result", minItems=1)),
        message("assistant", _TEXT, blocks("text", "thinking", "tool_use")),
        message("system", some, blocks("text", minItems=1)),
    ]
    tool = _object(types, "MessageTool", input_schema={"type": "object"})
    _instead(tool["properties"]["type"], {"const": "custom"})
    _instead(tool["properties"]["defer_loading"], {"const": False})
    _bound(tool["properties"]["input_examples"], "array", maxItems=0)
    types["MessageTool"] = tool
    types["MessageToolChoice"]["anyOf"] = [
        {"properties": {"type": {"enum": ["any", "auto", "none"]}}},
        {"required": ["name"], "properties": {"type": {"const": "tool"}, "name": _TEXT}},
    ]


def _tokens(types: dict[str, Schema], limits: SchemaLimits) -> None:
    most = limits.vocabulary_tokens - 1
    prompt = _prompt(types, "CompletionBody", "prompt", most)
    if not limits.empty_prompts:
        texts = next(each for each in _branches(prompt) if each.get("items", {}) == _TEXT)
        for text in (prompt["anyOf"][0], texts["items"]):
            text["minLength"] = 1
    _bound(_fields(types, "DetokenizeBody")["tokens"], "array", items=_token_id(most))
    types["TokenizeBody"]["anyOf"] = [
        _given("prompt") | {"properties": {"prompt": _TEXT, "messages": _NULL}},
        _given("messages") | {"properties": {"messages": {"not": _NULL}, "prompt": _NULL}},
    ]


def _token_id(most: int) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": most}


def _prompt(types: dict[str, Schema], body: str, field: str, most: int) -> Schema:
    """A text or token ids, or several of either."""
    told = _fields(types, body)[field]["description"]
    prompt = deepcopy(PROMPT_SCHEMA) | {"description": told}
    _, _, ids, several = _branches(prompt)
    ids["items"] = _token_id(most)
    several["items"]["items"] = _token_id(most)
    _fields(types, body)[field] = prompt
    return prompt


def _adapters(types: dict[str, Schema]) -> None:
    if "LoadAdapterBody" not in types:
        return
    name, path = (_fields(types, "LoadAdapterBody")[each] for each in ("lora_name", "lora_path"))
    name.update(minLength=1, maxLength=256, pattern="^[ -~]+$")
    path["pattern"] = "^/"


def _encoders(types: dict[str, Schema], limits: SchemaLimits) -> None:
    texts: Schema = {"minItems": 1, "maxItems": limits.most_texts}
    cut: Schema = {
        "anyOf": [
            {"const": -1},
            {"type": "integer", "minimum": 1, "maximum": limits.encoder_context_tokens},
            _NULL,
        ]
    }
    for name in ("EmbeddingBody", "RerankBody", "ScoreBody", "ClassifyBody"):
        fields = _fields(types, name)
        fields["truncate_prompt_tokens"].update(deepcopy(cut))
        _bound_known(fields, ("input", "documents", "text_1", "text_2"), "array", **texts)
    embedded = _prompt(types, "EmbeddingBody", "input", limits.encoder_vocabulary_tokens - 1)
    for branch in _branches(embedded):
        if branch.get("type") == "array" and branch["items"]["type"] != "integer":
            branch.update(texts)
    dimensions = _fields(types, "EmbeddingBody")["dimensions"]
    _bound(dimensions, "integer", maximum=limits.encoder_features)
