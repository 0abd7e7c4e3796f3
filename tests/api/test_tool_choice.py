"""Tool choices over HTTP: what each makes of the answer's form."""

import pytest

from tests.api.test_refusals import CHAT, CHAT_PATH, error_of

FIND = {
    "type": "function",
    "function": {
        "name": "find",
        "parameters": {
            "type": "object",
            "properties": {"q": {"type": "string"}},
            "required": ["q"],
            "additionalProperties": False,
        },
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
STRICT = {"type": "function", "function": FIND["function"] | {"strict": True}}
TO_FIND = {"type": "function", "function": {"name": "find"}}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


FOUND, NONE, WRONG = call("find", '{"q":"x"}'), call("now", "{}"), call("find", '{"q":1}')


@pytest.mark.parametrize(
    ("fields", "answers", "none"),
    [
        ({"tool_choice": "required"}, [FOUND, f"{FOUND}\n{NONE}"], ["", "Hm.", WRONG]),
        (
            {"tool_choice": "required", "parallel_tool_calls": False},
            [FOUND, NONE],
            [f"{FOUND}\n{NONE}"],
        ),
        ({"tool_choice": TO_FIND}, [FOUND], [NONE, f"{FOUND}\n{FOUND}", ""]),
        ({"tools": [STRICT, NOW]}, ["Hm.", FOUND, call("now", '{"a":1}')], [WRONG]),
        ({"parallel_tool_calls": False}, ["", FOUND, WRONG], [f"{FOUND}\n{FOUND}"]),
    ],
    ids=str,
)
def test_a_choice_is_a_form_of_the_answer(http, generator, text, fields, answers, none):
    generator.script.answer = FOUND
    answer = http.post(CHAT_PATH, json=CHAT | {"tools": [FIND, NOW]} | fields).json()
    (made,) = answer["choices"][0]["message"]["tool_calls"]
    assert (made["function"]["name"], answer["choices"][0]["finish_reason"]) == (
        "find",
        "tool_calls",
    )
    grammar = generator.requests[-1].sampling.grammar

    def fits(wanted: str) -> bool:
        matcher = text.grammars.begin(grammar)
        matcher.consume(text.tokenizer.encode(wanted, add_special_tokens=False))
        return matcher.complete

    assert [fits(each) for each in answers] == [True] * len(answers)
    assert [fits(each) for each in none] == [False] * len(none)


@pytest.mark.parametrize(
    "fields",
    [{}, {"tool_choice": "none", "parallel_tool_calls": False}, {"parallel_tool_calls": True}],
)
def test_tools_alone_leave_the_answer_free(http, generator, fields):
    http.post(CHAT_PATH, json=CHAT | {"tools": [FIND]} | fields)
    assert not generator.requests[-1].sampling.grammar


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "guided_regex": "a"}, "tools"),
        ({"tools": [FIND] * 129}, "tools"),
        (
            {
                "tool_choice": "required",
                "tools": [
                    NOW,
                    {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}},
                ],
            },
            "tools[1].function.parameters",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_chosen_is_named(http, fields, param):
    body = CHAT | {"tools": [FIND]} | fields
    assert error_of(http.post(CHAT_PATH, json=body), 400)["param"] == param
