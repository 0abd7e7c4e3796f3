"""Grammars of tool calls: what is drawn under them is what the parsers read as fitting calls."""

import json
import random

import jsonschema
import pytest
import tokenizers

from tandem.text.call_markup import (
    CLOSE_TAG,
    MISTRAL_CALLS,
    OPEN_TAG,
    PYTHON_TAG,
    TAGS,
    written_calls,
)
from tandem.text.files import TokenizerFiles
from tandem.text.grammars import GrammarError, LlGuidanceGrammars, json_grammar
from tandem.text.tokenizer import Tokenizer
from tandem.text.tool_calls import CallsSoFar, ToolCall, ToolFormat
from tandem.text.tool_grammars import (
    MOST_CALLS,
    CalledTool,
    ToolCallSyntax,
    calls_or_form,
    demanded_calls,
    fitting_calls,
)
from tandem.text.tools import CallsInAnswer, tool_parser
from tests.text.test_grammars import GRAMMARS, TOKENIZER, drawn_text

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Paris", 'Saint-"X"', "Rio\nde"]}},
}
WEATHER, NOW = CalledTool("get_weather", CITY), CalledTool("now")


def syntax_of(
    tool_format: ToolFormat, templates: str = "", tokenizer: Tokenizer = TOKENIZER
) -> ToolCallSyntax:
    ids = {tag: tokenizer.token_id(tag) for tag in (*TAGS[tool_format], PYTHON_TAG)}
    known = {tag: i for tag, i in ids.items() if i is not None}
    return ToolCallSyntax(tool_format, written_calls(tool_format, templates), known)


HERMES, LLAMA = syntax_of(ToolFormat.HERMES), syntax_of(ToolFormat.LLAMA3_JSON)
# Of the others the tokenizer has no tags: they are text.
SYNTAXES = {
    "hermes": HERMES,
    "llama3": LLAMA,
    "mistral": syntax_of(ToolFormat.MISTRAL),
    "mistral-args": syntax_of(ToolFormat.MISTRAL, "[TOOL_CALLS]x[ARGS]"),
    "mistral-ids": syntax_of(ToolFormat.MISTRAL, "[TOOL_CALLS]x[CALL_ID]y[ARGS]"),
    "deepseek": syntax_of(ToolFormat.DEEPSEEK_V3),
    "deepseek-v3.1": syntax_of(ToolFormat.DEEPSEEK_V31),
}
EACH = pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)


def content_and_calls(
    text: str, tool_format: ToolFormat, calls: CallsInAnswer = CallsInAnswer.UNCERTAIN
) -> tuple[str, list[ToolCall]]:
    parser, content, made = tool_parser(tool_format, calls), "", CallsSoFar()
    for piece in (*parser.feed(text), *parser.finish()):
        if isinstance(piece, str):
            content += piece
        else:
            made.add(piece)
    return content, made.calls()


def fits(grammar: str, text: str) -> bool:
    matcher = GRAMMARS.begin(grammar)
    matcher.consume(TOKENIZER.encode(text, add_special_tokens=False))
    return matcher.complete


def check(call: ToolCall) -> None:
    arguments = json.loads(call.arguments)
    if call.name == "now":
        assert arguments == {}
    else:
        assert call.name == "get_weather"
        jsonschema.validate(arguments, CITY)


@EACH
@pytest.mark.parametrize("several", [False, True])
def test_demanded_calls_are_nothing_but_calls_that_fit(syntax, several):
    grammar = demanded_calls([WEATHER, NOW], syntax, several=several)
    GRAMMARS.check(grammar)
    counts = set()
    for seed in range(40):
        text = drawn_text(grammar, random.Random(seed))
        if text is None:
            continue
        content, found = content_and_calls(text, syntax.tool_format)
        assert not content, text
        # What is told at once is the same.
        told = content_and_calls(text, syntax.tool_format, CallsInAnswer.FIRST)
        assert told == (content, found)
        for call in found:
            check(call)
        counts.add(len(found))
    assert counts == {1} if not several else 1 < max(counts) <= MOST_CALLS


def test_a_call_in_a_text_fits_or_does_not_begin():
    grammar = fitting_calls([WEATHER, NOW], HERMES, several=True)
    GRAMMARS.check(grammar)
    call = f'{OPEN_TAG}\n{{"name": "now", "arguments": {{}}}}\n{CLOSE_TAG}'
    for text in ("", "Just words <b> {}", call, f"Words.\n{call}", f"{call}\n{call}\nand more"):
        assert fits(grammar, text), text
    for text in (
        OPEN_TAG,
        f"{OPEN_TAG} later",
        call.replace("now", "never"),
        call.replace("{}", '{"city": 1}'),
        call.replace("now", "get_weather"),
        call[: -len(CLOSE_TAG)],
    ):
        assert not fits(grammar, text), text
    one = fitting_calls([NOW], HERMES, several=False)
    assert fits(one, f"Words. {call} More.")
    assert not fits(one, f"{call}\n{call}")


def written(syntax: ToolCallSyntax, *calls: ToolCall) -> str:
    texts = []
    for call in calls:
        text = syntax.written.call.replace("$quoted_name", json.dumps(call.name))
        text = text.replace("$name", call.name).replace("$id", "abcdefgh1")
        texts.append(text.replace("$arguments", call.arguments))
    return syntax.written.opening + syntax.written.between.join(texts) + syntax.written.closing


IS_NOW, IS_PARIS = ToolCall("now", "{}"), ToolCall("get_weather", '{"city": "Paris"}')
NEVER, WRONG = ToolCall("never", "{}"), ToolCall("get_weather", '{"city": 1}')


@EACH
def test_any_text_or_calls_that_fit(syntax):
    grammar = fitting_calls([WEATHER, NOW], syntax, several=True)
    GRAMMARS.check(grammar)
    free = ["", "Hm.", '{"answer": 1}', "[TOOL", '{"nam', "<", "  \n"]
    for text in [*free, written(syntax, IS_PARIS), written(syntax, IS_NOW, IS_PARIS)]:
        assert fits(grammar, text), text
        content, calls = content_and_calls(text, syntax.tool_format, CallsInAnswer.ANYWHERE)
        assert (content == text) != bool(calls)
    for call in (NEVER, WRONG):
        assert not fits(grammar, written(syntax, call))
        assert not fits(grammar, written(syntax, IS_NOW, call))
    one = fitting_calls([WEATHER, NOW], syntax, several=False)
    assert fits(one, written(syntax, IS_NOW))
    assert not fits(one, written(syntax, IS_NOW, IS_NOW))
    words = f"Words. {written(syntax, IS_NOW)}"
    assert fits(grammar, words) or not syntax.opens_by_tag


@EACH
def test_calls_or_a_form(syntax):
    properties = {"a": {"type": "integer"}}
    form = json_grammar({"type": "object", "properties": properties, "additionalProperties": False})
    grammar = calls_or_form([WEATHER, NOW], syntax, form, several=True)
    GRAMMARS.check(grammar)
    for text in ('{"a": 1}', written(syntax, IS_NOW), written(syntax, IS_NOW, IS_PARIS)):
        assert fits(grammar, text), text
        content, calls = content_and_calls(text, syntax.tool_format, CallsInAnswer.FIRST)
        assert (content == text) != bool(calls)
    for text in ("", "Hm.", '{"a": "x"}', written(syntax, WRONG), "Hm. " + written(syntax, IS_NOW)):
        assert not fits(grammar, text), text


@pytest.mark.parametrize(
    ("schema", "answers"),
    [
        ({"type": "object"}, ['{"name": "bob"}', "{}"]),
        (
            {
                "type": "object",
                "properties": {"name": {"type": "string"}, "x": {"type": "integer"}},
            },
            ['{"name": "now", "x": 1}', '{"x":1}'],
        ),
        ({"type": "array", "items": {"type": "object"}}, ['[{"name": "now"}]']),
    ],
    ids=["any", "like-a-call", "list"],
)
def test_a_form_may_begin_like_a_call_that_has_no_tag(schema, answers):
    grammar = calls_or_form([WEATHER, NOW], LLAMA, json_grammar(schema), several=True)
    for text in (*answers, written(LLAMA, IS_PARIS), written(LLAMA, IS_PARIS, IS_NOW)):
        assert fits(grammar, text), text
        content, calls = content_and_calls(text, LLAMA.tool_format, CallsInAnswer.FIRST_IF_WHOLE)
        assert (content, bool(calls)) == ((text, False) if text in answers else ("", True))


def test_a_tag_that_is_spelled_in_other_tokens_is_no_text():
    grammar = fitting_calls([NOW], HERMES, several=True)
    spelled = [t for char in OPEN_TAG for t in TOKENIZER.encode(char, add_special_tokens=False)]
    matcher = GRAMMARS.begin(grammar)
    assert matcher.core.validate_tokens(spelled) == len(spelled) - 1


def test_a_name_that_cannot_be_written_is_refused():
    for syntax in (SYNTAXES["mistral-args"], SYNTAXES["deepseek"]):
        with pytest.raises(GrammarError, match="name 'a b'"):
            demanded_calls([CalledTool("a b")], syntax, several=True)


def test_tags_are_tokens_where_there_are_some():
    """Mistral's, which have no angle brackets."""
    document = json.loads(TOKENIZER.core.to_str())
    for each in document["added_tokens"]:
        if each["content"] == OPEN_TAG:
            each["content"] = MISTRAL_CALLS
            each["special"] = True
    document["model"]["vocab"].pop(OPEN_TAG, None)
    core = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer = Tokenizer(core, TokenizerFiles(core.to_str(), {"eos_token": "<|im_end|>"}, {}, {}))
    grammars = LlGuidanceGrammars(tokenizer)
    syntax = syntax_of(ToolFormat.MISTRAL, "[ARGS]", tokenizer)
    assert set(syntax.token_ids) == {MISTRAL_CALLS}
    for grammar, text, fitted in (
        (demanded_calls([NOW], syntax, several=True), written(syntax, IS_NOW), True),
        (demanded_calls([NOW], syntax, several=True), written(syntax, NEVER), False),
        (fitting_calls([NOW], syntax, several=True), "Hm. " + written(syntax, IS_NOW), True),
        (fitting_calls([NOW], syntax, several=True), "Hm. " + written(syntax, NEVER), False),
    ):
        grammars.check(grammar)
        matcher = grammars.begin(grammar)
        matcher.consume(tokenizer.encode(text, add_special_tokens=False))
        assert matcher.complete == fitted, text


def test_tags_may_be_text():
    """Of a tokenizer that has no tokens for them."""
    document = json.loads(TOKENIZER.core.to_str())
    document["added_tokens"] = [
        each for each in document["added_tokens"] if "tool_call" not in each["content"]
    ]
    core = tokenizers.Tokenizer.from_str(json.dumps(document))
    plain = Tokenizer(core, TokenizerFiles(core.to_str(), {"eos_token": "<|im_end|>"}, {}, {}))
    grammars = LlGuidanceGrammars(plain)
    assert plain.token_id(OPEN_TAG) is None
    syntax = syntax_of(ToolFormat.HERMES, tokenizer=plain)
    call = f'{OPEN_TAG}\n{{"name": "now", "arguments": {{}}}}\n{CLOSE_TAG}'
    demanded = demanded_calls([WEATHER, NOW], syntax, several=True)
    fitting = fitting_calls([WEATHER, NOW], syntax, several=True)

    def fits_plain(grammar: str, text: str) -> bool:
        grammars.check(grammar)
        matcher = grammars.begin(grammar)
        matcher.consume(plain.encode(text, add_special_tokens=False))
        return matcher.complete

    for grammar, text, fitted in (
        (demanded, call, True),
        (demanded, f"{call}\n{call}", True),
        (demanded, f"Words. {call}", False),
        (fitting, f"Words <b>. {call} More.", True),
        (fitting, "", True),
        (fitting, call.replace("now", "never"), False),
    ):
        assert fits_plain(grammar, text) == fitted, text
