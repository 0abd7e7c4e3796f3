"""Arguments of tool calls come as text within JSON: they may nest no deeper than a body may."""

import json
from pathlib import Path

import msgspec
import pytest

import tandem
from tandem.api.prompts import chat_prompt
from tandem.api.requests import ChatBody
from tandem.facts.errors import InvalidRequest
from tandem.text.model import TextModel
from tandem.text.tools import HermesParser, Llama3Parser, ToolCall


@pytest.fixture(scope="module")
def text() -> TextModel:
    return TextModel.load(Path(tandem.__file__).parent / "bundled" / "tandem-mini")


def body_of(arguments: str) -> ChatBody:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "<|im_end|>"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    return msgspec.convert({"messages": messages}, ChatBody)


def nested(levels: int) -> str:
    """An object of so many levels."""
    return '{"a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


@pytest.mark.parametrize("levels", [9, 400, 900, 3000, 20_000])
def test_deep_arguments_are_refused(text, levels):
    with pytest.raises(InvalidRequest, match="messages have tool call arguments"):
        chat_prompt(body_of(nested(levels)), [], text, 100_000, max_nesting=8)


def test_arguments_within_the_bound_are_taken(text):
    assert chat_prompt(body_of(nested(8)), [], text, 100_000, max_nesting=8)
    assert chat_prompt(body_of(nested(64)), [], text, 100_000)


@pytest.mark.parametrize("levels", [300, *range(960, 1000, 2), 5000])
def test_what_a_model_nests_is_a_call_or_content(levels):
    answer = json.dumps({"name": "f", "parameters": nested(levels)})
    for spelled in (answer, '{"name":"f","parameters":' + nested(levels) + "}"):
        llama, hermes = Llama3Parser(), HermesParser()
        for parser, whole in ((llama, spelled), (hermes, f"<tool_call>{spelled}</tool_call>")):
            pieces = parser.feed(whole) + parser.finish()
            assert pieces == [whole] or isinstance(pieces[0], ToolCall)
