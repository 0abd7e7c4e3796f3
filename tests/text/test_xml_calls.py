"""Calls in XML: texts stay texts, other arguments are JSON, and what is no call is content,
wherever the text is cut."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.text.tool_calls import ToolCall, ToolFormat
from tandem.text.tools import tool_parser

TEXTS = frozenset({("find", "q")})


def parse(pieces: list[str]) -> tuple[str, list[ToolCall]]:
    parser = tool_parser(ToolFormat.QWEN3_XML, text_parameters=TEXTS)
    told = [each for piece in pieces for each in parser.feed(piece)] + parser.finish()
    content = "".join(each for each in told if isinstance(each, str))
    return content, [each for each in told if not isinstance(each, str)]


def written(name: str, **arguments: str) -> str:
    parameters = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items()
    )
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


FIND = written("find", q="12", n="12", where='{"a": [1]}', words="a b\n\nc", half='"\\ud800"')
FOUND = {"q": "12", "n": 12, "where": {"a": [1]}, "words": "a b\n\nc", "half": '"\\ud800"'}


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        (FIND, "", [FOUND]),
        (f"I look.\n{FIND}\n{written('now')}\n", "I look.\n", [FOUND, {}]),
        (f"{FIND}\n\nDone.", "\n\nDone.", [FOUND]),
        (FIND.removesuffix("</tool_call>"), "", [FOUND]),
        (FIND.replace("</function>\n", ""), "", [FOUND]),
        (FIND.replace("</parameter>", "<parameter>"), None, []),
        ("<tool_call>{}</tool_call>" + written("now"), "<tool_call>{}</tool_call>", [{}]),
        ("<tool_call>\n<function=find>\n<parameter=q>\nhal", None, []),
    ],
)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_calls_and_content(text, content, arguments, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    seen, calls = parse(pieces)
    assert seen == (text if content is None else content)
    assert [json.loads(call.arguments) for call in calls] == arguments


def test_the_work_is_linear():
    """Half a million characters, one by one: minutes if each looked at the text so far."""
    text = written("find", q="</tool_cal" * 50_000)
    began_s = time.process_time()
    _, (call,) = parse(list(text))
    assert len(call.arguments) > 500_000
    assert time.process_time() - began_s < 10


FRAGMENTS = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", "_call>", "<function=f>", "</function>", "a"),
        *("<parameter=x>", "</parameter>", "\n", " ", "1", "<", "</", written("now")),
    ]
)


@settings(max_examples=500, deadline=None)
@given(parts=st.lists(FRAGMENTS, max_size=12), data=st.data())
def test_how_the_text_is_cut_means_nothing(parts, data):
    text = "".join(parts)
    whole = parse([text])
    assert parse(list(text)) == whole
    assert parse(parts) == whole
    content, calls = whole
    if not calls:
        assert content == text
    # What is content stands in the answer, in that order.
    places = iter(text)
    assert all(char in places for char in content)
