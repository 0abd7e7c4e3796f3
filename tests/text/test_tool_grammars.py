"""Grammars of tool calls: what is drawn under them is what the parsers read as fitting calls."""

import json
import random

import jsonschema
import pytest
import tokenizers

from tandem.text.files import TokenizerFiles
from tandem.text.grammars import LlGuidanceGrammars
from tandem.text.tokenizer import Tokenizer
from tandem.text.tool_grammars import (
    MOST_CALLS,
    CalledTool,
    ToolCallSyntax,
    demanded_calls,
    fitting_calls,
)
from tandem.text.tools import CLOSE_TAG, OPEN_TAG, ToolCall, ToolFormat, tool_parser
from tests.text.test_grammars import GRAMMARS, TOKENIZER, drawn_text

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Paris", 'Saint-"X"', "Rio\nde"]}},
}
WEATHER, NOW = CalledTool("get_weather", CITY), CalledTool("now")
HERMES = ToolCallSyntax(ToolFormat.HERMES, has_tags=True)
LLAMA = ToolCallSyntax(ToolFormat.LLAMA3_JSON, has_tags=True)


def pieces(text: str, tool_format: ToolFormat) -> list:
    parser = tool_parser(tool_format)
    return [*parser.feed(text), *parser.finish()]


def calls_in(text: str, tool_format: ToolFormat) -> list[ToolCall]:
    return [piece for piece in pieces(text, tool_format) if isinstance(piece, ToolCall)]


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


@pytest.mark.parametrize("syntax", [HERMES, LLAMA], ids=lambda each: each.tool_format)
@pytest.mark.parametrize("several", [False, True])
def test_demanded_calls_are_nothing_but_calls_that_fit(syntax, several):
    grammar = demanded_calls([WEATHER, NOW], syntax, several=several)
    GRAMMARS.check(grammar)
    counts = set()
    for seed in range(40):
        text = drawn_text(grammar, random.Random(seed))
        if text is None:
            continue
        found = pieces(text, syntax.tool_format)
        assert all(isinstance(piece, ToolCall) for piece in found), text
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
    syntax = ToolCallSyntax(ToolFormat.HERMES, has_tags=False)
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
