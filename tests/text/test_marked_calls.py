"""Laws of calls by markup: what is told while they are written is, joined, what was written, and
without a grammar nothing but whole calls is told; wherever the text is cut."""

import itertools
import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandem.text.call_markup import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALL_END,
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_SEPARATOR,
)
from tandem.text.tool_calls import CallsSoFar, MoreArguments, ToolCall, ToolFormat
from tandem.text.tools import CallsInAnswer, tool_parser

HERMES, LLAMA = ToolFormat.HERMES, ToolFormat.LLAMA3_JSON
MISTRAL, DEEPSEEK, DEEPSEEK_31 = (
    ToolFormat.MISTRAL,
    ToolFormat.DEEPSEEK_V3,
    ToolFormat.DEEPSEEK_V31,
)
Cuts = st.lists(st.integers(0, 400), max_size=40)


def cut(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


def parse(
    tool_format: ToolFormat, pieces: list[str], calls: CallsInAnswer
) -> tuple[str, list[ToolCall], list]:
    """The content, the calls, and all that was told."""
    parser = tool_parser(tool_format, calls)
    told = [each for piece in pieces for each in parser.feed(piece)] + parser.finish()
    made = CallsSoFar()
    for each in told:
        if not isinstance(each, str):
            made.add(each)
    return "".join(each for each in told if isinstance(each, str)), made.calls(), told


def hermes(*calls: ToolCall) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n'
        "</tool_call>"
        for call in calls
    )


def llama(*calls: ToolCall) -> str:
    return "; ".join(
        f'{{"name": {json.dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls
    )


def mistral_list(*calls: ToolCall) -> str:
    written = ", ".join(
        f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}, "id": "abc"}}'
        for call in calls
    )
    return f"[TOOL_CALLS] [{written}]"


def mistral_named(*calls: ToolCall) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}{call.arguments}" for call in calls)


def mistral_args(*calls: ToolCall) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}" for call in calls)


def mistral_ids(*calls: ToolCall) -> str:
    return "".join(
        f"[TOOL_CALLS]{call.name}[CALL_ID]c{place}[ARGS]{call.arguments}"
        for place, call in enumerate(calls)
    )


def deepseek(*calls: ToolCall) -> str:
    written = "\n".join(
        f"{DEEPSEEK_CALL}function{DEEPSEEK_SEPARATOR}{call.name}\n```json\n{call.arguments}\n```"
        f"{DEEPSEEK_CALL_END}"
        for call in calls
    )
    return DEEPSEEK_CALLS + written + DEEPSEEK_CALLS_END


def deepseek_31(*calls: ToolCall) -> str:
    written = "".join(
        f"{DEEPSEEK_CALL}{call.name}{DEEPSEEK_SEPARATOR}{call.arguments}{DEEPSEEK_CALL_END}"
        for call in calls
    )
    return DEEPSEEK_CALLS + written + DEEPSEEK_CALLS_END


WRITERS = [
    (HERMES, hermes),
    (LLAMA, llama),
    (MISTRAL, mistral_list),
    (MISTRAL, mistral_named),
    (MISTRAL, mistral_args),
    (MISTRAL, mistral_ids),
    (DEEPSEEK, deepseek),
    (DEEPSEEK_31, deepseek_31),
]
NAMES = [writer.__name__ for _, writer in WRITERS]
VALUES = st.recursive(
    st.none() | st.integers() | st.sampled_from(['"', "\\", "}", "</tool_call>", "a\n", "日本"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
ARGUMENTS = st.builds(
    json.dumps,
    st.dictionaries(st.sampled_from(["q", "{", 'a"b', "é"]), VALUES, max_size=3),
    ensure_ascii=st.booleans(),
    indent=st.sampled_from([None, 2]),
)
CALLS = st.lists(
    st.builds(ToolCall, st.sampled_from(["find", "get_weather.v2", "x-1"]), ARGUMENTS),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize(("tool_format", "writer"), WRITERS, ids=NAMES)
@settings(max_examples=120, deadline=None)
@given(calls=CALLS, cuts=Cuts)
def test_calls_of_a_grammar_are_told_as_they_are_written(tool_format, writer, calls, cuts):
    pieces = cut(writer(*calls), cuts)
    content, made, told = parse(tool_format, pieces, CallsInAnswer.FIRST)
    assert (content, made) == ("", calls)
    # Each begins by its name alone.
    assert [each for each in told if isinstance(each, ToolCall)] == [
        ToolCall(call.name, "") for call in calls
    ]


@pytest.mark.parametrize(("tool_format", "writer"), WRITERS, ids=NAMES)
@settings(max_examples=120, deadline=None)
@given(calls=CALLS, cuts=Cuts)
def test_calls_without_a_grammar_come_whole_and_are_the_same(tool_format, writer, calls, cuts):
    content, made, told = parse(tool_format, cut(writer(*calls), cuts), CallsInAnswer.UNCERTAIN)
    assert (content, made) == ("", calls)
    assert not any(isinstance(each, MoreArguments) for each in told)


@pytest.mark.parametrize(
    ("tool_format", "writer"), [each for each in WRITERS if each[0] is not LLAMA]
)
@settings(max_examples=60, deadline=None)
@given(calls=CALLS, cuts=Cuts)
def test_words_stand_around_calls(tool_format, writer, calls, cuts):
    text = f"I look. {writer(*calls)}\n\n"
    for found in (CallsInAnswer.ANYWHERE, CallsInAnswer.UNCERTAIN):
        content, made, _ = parse(tool_format, cut(text, cuts), found)
        assert (content, made) == ("I look. ", calls)
        content, made, _ = parse(tool_format, cut(text + "Done.", cuts), found)
        assert (content, made) == ("I look. \n\nDone.", calls)


def test_arguments_are_told_with_the_piece_that_has_them():
    parser = tool_parser(HERMES, CallsInAnswer.FIRST)
    told = [
        parser.feed(piece)
        for piece in (
            '<tool_call>\n{"name": "fi',
            'nd", "arg',
            'uments": ',
            "{",
            '"q": "a',
            '}b"}}',
        )
    ]
    assert told == [
        [],
        [ToolCall("find", "")],
        [],
        [MoreArguments("{")],
        [MoreArguments('"q": "a')],
        [MoreArguments('}b"}')],
    ]
    assert parser.feed("\n</tool_") + parser.finish() == []


FRAGMENTS = st.sampled_from(
    [
        *("[TOOL_CALLS]", "[TOOL", "_CALLS]", "[ARGS]", "[CALL_ID]", "f", "find", " ", "\n", "["),
        *("{", "}", "]", '"', "\\", '"a": 1', ",", '{"name": "f", "arguments": {}}', "{}", "NaN"),
        *(DEEPSEEK_CALLS + DEEPSEEK_CALL, DEEPSEEK_CALL, DEEPSEEK_CALL_END, DEEPSEEK_CALLS_END),
        *("function", DEEPSEEK_SEPARATOR, "\n```json\n", "```", DEEPSEEK_CALLS[:5], "\x00", ";"),
    ]
)


@pytest.mark.parametrize("tool_format", [MISTRAL, DEEPSEEK, DEEPSEEK_31])
@settings(max_examples=600, deadline=None)
@given(text=st.lists(FRAGMENTS, max_size=16).map("".join), cuts=Cuts)
@example(text='[TOOL_CALLS] [{"name": "f", "arguments": {}} x, {}]', cuts=[])
@example(text='[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": 1}]{', cuts=[])
def test_what_is_no_call_is_content(tool_format, text, cuts):
    content, made, _ = parse(tool_format, [text], CallsInAnswer.UNCERTAIN)
    assert parse(tool_format, cut(text, cuts), CallsInAnswer.UNCERTAIN)[:2] == (content, made)
    for call in made:
        assert isinstance(json.loads(call.arguments), dict)
        assert call.arguments in text
    if not made:
        assert content == text
    # What is content stands in the answer, in that order.
    places = iter(text)
    assert all(char in places for char in content)


@pytest.mark.parametrize("tool_format", [MISTRAL, DEEPSEEK, HERMES])
@settings(max_examples=300, deadline=None)
@given(text=st.lists(FRAGMENTS, max_size=12).map("".join), cuts=Cuts)
def test_an_answer_that_is_cut_off_is_told_alike(tool_format, text, cuts):
    """Also where a grammar was broken off, or not held to."""
    for found in (CallsInAnswer.FIRST, CallsInAnswer.ANYWHERE):
        whole = parse(tool_format, [text], found)[:2]
        assert parse(tool_format, cut(text, cuts), found)[:2] == whole


@pytest.mark.parametrize("found", list(CallsInAnswer))
@pytest.mark.parametrize(("tool_format", "writer"), WRITERS, ids=NAMES)
def test_the_work_is_linear(tool_format, writer, found):
    """A call of 200,000 characters, one by one: 20 GB of text if each looked at all so far."""
    text = writer(ToolCall("f", json.dumps({"q": '}{\\"' * 30_000})))
    began_s = time.process_time()
    parser = tool_parser(tool_format, found)
    told = [each for char in text for each in parser.feed(char)] + parser.finish()
    assert any(isinstance(each, ToolCall) for each in told)
    assert time.process_time() - began_s < 5
