"""Law: calls come out whole, everything else comes out as content, wherever the text is cut."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.text.tool_calls import ToolCall, ToolFormat
from tandem.text.tools import tool_parser

HERMES, LLAMA = ToolFormat.HERMES, ToolFormat.LLAMA3_JSON


def parse(tool_format: ToolFormat, text: str, cuts=()) -> tuple[str, list[ToolCall]]:
    parser = tool_parser(tool_format)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = []
    for start, end in itertools.pairwise(places):
        pieces += parser.feed(text[start:end])
    pieces += parser.finish()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [piece for piece in pieces if isinstance(piece, ToolCall)]


CALL = '<tool_call>\n{"name": "find", "arguments": {"q": "é"}}\n</tool_call>'
FIND = ToolCall("find", '{"q": "é"}')

CASES = [
    (HERMES, CALL, "", [FIND]),
    (HERMES, "Let me see. " + CALL, "Let me see. ", [FIND]),
    (HERMES, CALL + "\n" + CALL + "\n", "", [FIND, FIND]),
    (HERMES, CALL + "\nDone.", "\nDone.", [FIND]),
    (HERMES, CALL.removesuffix("</tool_call>"), "", [FIND]),
    (HERMES, "<tool_call>{broken}</tool_call> then", "<tool_call>{broken}</tool_call> then", []),
    (HERMES, "<tool_call>[1]</tool_call>" + CALL, "<tool_call>[1]</tool_call>", [FIND]),
    (HERMES, '<tool_call>{"name": "x', '<tool_call>{"name": "x', []),
    (HERMES, "a <tool_cal b", "a <tool_cal b", []),
    (HERMES, '<tool_call>{"name": "x</tool_call>' + CALL, None, [FIND]),
    (
        HERMES,
        '<tool_call>{"name": "say", "arguments": {"t": "</tool_call>"}}</tool_call>',
        "",
        [ToolCall("say", '{"t": "</tool_call>"}')],
    ),
    (HERMES, '<tool_call>{"name": "n", "arguments": "{\\"a\\": 1}"}</tool_call>', "", None),
    (HERMES, '<tool_call>{"name": "n", "arguments": {"a": NaN}}</tool_call>', None, []),
    (LLAMA, '{"name": "find", "parameters": {"q": "é"}}', "", [FIND]),
    (LLAMA, ' {"name": "find", "parameters": {"q": "é"}}; {"name": "f"}', "", None),
    (LLAMA, '{"answer": 1}', '{"answer": 1}', []),
    (LLAMA, '{"name": "half', '{"name": "half', []),
    (LLAMA, "plain text", "plain text", []),
    (LLAMA, '{"name": "a", "parameters": {}} trailing', None, []),
    (LLAMA, "{" * 5000, "{" * 5000, []),
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=30))
def test_calls_and_content(case, cuts):
    tool_format, text, content, calls = case
    seen_content, seen_calls = parse(tool_format, text, cuts)
    if content is not None:
        assert seen_content == content
    elif not calls:
        assert seen_content == text
    if calls is not None:
        assert seen_calls == calls
    else:
        assert seen_calls
    assert all(isinstance(json.loads(call.arguments), dict) for call in seen_calls)


ALPHABET = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": {}}',
    '"',
    "x",
    " ",
    "\n",
    "<",
    "{",
]


@settings(max_examples=300, deadline=None)
@given(parts=st.lists(st.sampled_from(ALPHABET), max_size=10), cuts=st.lists(st.integers(0, 200)))
def test_nothing_but_tags_space_and_calls_is_lost(parts, cuts):
    text = "".join(parts)
    whole = parse(HERMES, text)
    assert parse(HERMES, text, cuts) == whole
    content, calls = whole
    kept = "".join(content.split()) + '<tool_call>{"name":"f","arguments":{}}</tool_call>' * len(
        calls
    )
    # An unclosed last call has no closing tag to lose.
    missing = len(kept) - len("".join(text.split()))
    assert missing in (0, len("</tool_call>"))


def test_content_streams_before_a_call():
    parser = tool_parser(HERMES)
    assert parser.feed("I look: <") == ["I look: "]
    assert parser.feed("tool_call>") == []
    assert parser.feed('{"name": "f", "arguments": {}}</tool_call>') == [ToolCall("f", "{}")]
