"""Duel: the linear tool parsers say, piece by piece, what the obvious ones say."""

import json
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.text.call_markup import PYTHON_TAG
from tandem.text.tool_calls import Pieces, ToolCall
from tandem.text.tools import CALL_KEYS, HermesParser, Llama3Parser
from tests.text.slow_hermes import SlowHermesParser

_CALL = '<tool_call>{"name": "f", "arguments": {"x": "'
FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", "_call>", "</", _CALL, '"}}</tool_call>'),
        *('"', "\\", '\\"', "\\\\", "\\u12", "\\u1234", "{", "}", "[", "]", ",", ":", " ", "\n"),
        *("a", "1", "-", ".5", "e5", "true", "nul", "NaN", "\x0b", ";", '{"name": "f"}'),
        *('"name":', "parameters", '["', "<|python_tag|>", "<|py"),
    ]
)
# Where each piece ends: at fragments or anywhere between two characters.
TEXTS = st.lists(FRAGMENTS, max_size=20).map("".join)


def pieces_of(data: st.DataObject, text: str) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def plain(pieces: Pieces) -> list[object]:
    """Neighbouring texts joined: how content is cut within one answer means nothing. Arguments as
    they would be written anew."""
    result: list[object] = []
    for piece in pieces:
        if isinstance(piece, ToolCall):
            piece = ToolCall(piece.name, json.dumps(json.loads(piece.arguments)))
        if isinstance(piece, str) and result and isinstance(result[-1], str):
            result[-1] += piece
        else:
            result.append(piece)
    return result


@settings(max_examples=1500, deadline=None)
@given(text=TEXTS, data=st.data())
def test_hermes_says_what_the_slow_parser_says(text, data):
    fast, slow = HermesParser(), SlowHermesParser()
    for piece in pieces_of(data, text):
        assert plain(fast.feed(piece)) == plain(slow.feed(piece))
    assert plain(fast.finish()) == plain(slow.finish())


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_hermes_character_by_character(text):
    fast, slow = HermesParser(), SlowHermesParser()
    for piece in text:
        assert plain(fast.feed(piece)) == plain(slow.feed(piece))
    assert plain(fast.finish()) == plain(slow.finish())


@settings(max_examples=500, deadline=None)
@given(text=TEXTS, data=st.data())
def test_llama_holds_back_what_may_still_be_a_call(text, data):
    parser, seen, shown = Llama3Parser(), "", ""
    for piece in pieces_of(data, text):
        seen += piece
        shown += "".join(map(str, parser.feed(piece)))
        assert shown == ("" if may_be_call(seen) else seen)


def may_be_call(text: str) -> bool:
    if PYTHON_TAG.startswith(text.lstrip()):
        return True
    text = text.lstrip().removeprefix(PYTHON_TAG)
    first_key = re.match(r'\s*\{\s*"([^"\\]*)"', text)
    if first_key:
        return first_key[1] in CALL_KEYS
    return not text.strip() or re.fullmatch(r'\s*\{\s*("[^"\\]*)?', text) is not None
