"""Answers as they are read out of what models write, and out of what nobody should."""

import time

import pytest

from tandem.facts.errors import InvalidRequest
from tandem.policy.scaling.answers import ANSWER_CHARS, answer_reader, canonical_json


@pytest.mark.parametrize(
    ("vote", "text", "answer"),
    [
        ("last-number", "7 * 6 = 42\nAnswer: 42", "42"),
        ("last-number", "It costs $1,200.50.", "1200.5"),
        ("last-number", "so x = -3.0", "-3"),
        ("last-number", "12-7", "7"),
        ("last-number", "about 007", "7"),
        ("last-number", "-0.0", "0"),
        ("last-number", "none at all", None),
        ("last-line", "Thinking.\n\n**Yes.**\n", "yes"),
        ("last-line", "  \n ", None),
        ("boxed", r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} and \boxed{2", None),
        ("boxed", "no box", None),
        ("text", " The  Cat\nsat. ", "the cat sat"),
        ("after:Answer:", "Answer: 3\nAnswer:  Four.\nBye", "four"),
        ("after:Answer:", "it is 3", None),
        ("json:a.0.b", '{"a": [{"b": {"y": 1, "x": 2}}]}', '{"x":2,"y":1}'),
        ("json:a", 'Here:\n```json\n{"a": "Q"}\n```', '"Q"'),
        ("json:a", '{"b": 1}', None),
        ("json:a.5", '{"a": [1]}', None),
        ("json:a", "[" * 5000, None),
        ("json:a", '{"a": 1' + "0" * 6000 + "}", None),
    ],
)
def test_answers(vote, text, answer):
    assert answer_reader(vote)(text) == answer


@pytest.mark.parametrize("vote", ["", "regex:(.*)", "after:", "json:", "after:" + "x" * 200])
def test_unknown_readers_are_refused(vote):
    with pytest.raises(InvalidRequest, match="last-number, last-line"):
        answer_reader(vote)


@pytest.mark.parametrize(
    "vote", ["last-number", "last-line", "boxed", "text", "after:a", "json:a", "json:0"]
)
@pytest.mark.parametrize(
    "piece", ["1", "1.", "1,", "-", "\\boxed{", "{", "[", "a", "\n", " ", '{"a":', "```", '"\\']
)
def test_hostile_texts_take_no_time(vote, piece):
    text = piece * (1 << 20)
    start = time.perf_counter()
    answer = answer_reader(vote)(text)
    assert time.perf_counter() - start < 0.5
    assert answer is None or len(answer) <= ANSWER_CHARS


def test_equal_values_are_equal_texts():
    assert canonical_json('{"b": 1, "a": [1.0]}') == canonical_json('{ "a":[1.0],"b":1}')
    assert canonical_json("{no json") == "{no json"
