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
        ({"guided_regex": "a+"}, ["aa", FOUND, WRONG, f"{FOUND}\n{NONE}"], ["", f"a{FOUND}"]),
        ({"guided_regex": "a+", "tools": [STRICT]}, ["aa", FOUND], ["b", NONE, WRONG]),
        ({"guided_regex": "a+", "tool_choice": "required"}, [FOUND], ["aa", WRONG]),
        (
            {"response_format": {"type": "json_object"}, "parallel_tool_calls": False},
            ['{"a": 1}', FOUND],
            ["a", f"{FOUND}\n{NONE}"],
        ),
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


def streamed(client, **fields):
    """The deltas of tool calls of each chunk, content, and the finish reason."""
    deltas, content, finish = [], "", None
    for chunk in client.chat.completions.create(stream=True, **(CHAT | fields)):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        finish = choice.finish_reason or finish
        deltas += [choice.delta.tool_calls] if choice.delta.tool_calls else []
    return deltas, content, finish


@pytest.mark.parametrize("fields", [{"tool_choice": "required"}, {"tools": [STRICT, NOW]}], ids=str)
def test_arguments_of_certain_calls_stream(client, generator, fields):
    wanted = '{"q":  "日本 and a longer text"}'
    generator.script.answer = f"{call('find', wanted)}\n{NONE}"
    fields = {"model": "tiny", "tools": [FIND, NOW]} | fields
    deltas, content, finish = streamed(client, **fields)
    assert (content, finish) == ("", "tool_calls")
    first, *more = [delta for (delta,) in deltas if delta.index == 0]
    assert (first.type, first.function.name) == ("function", "find")
    assert first.id.startswith("call_")
    assert first.function.arguments == ""
    assert len(more) > 5
    assert {(each.id, each.type, each.function.name) for each in more} == {(None, None, None)}
    whole = client.chat.completions.create(**(CHAT | fields)).choices[0].message.tool_calls
    assert [each.function.arguments for each in whole] == [wanted, "{}"]
    for index, each in enumerate(whole):
        parts = [delta.function for (delta,) in deltas if delta.index == index]
        assert parts[0].name == each.function.name
        assert "".join(part.arguments for part in parts) == each.function.arguments


def test_the_client_puts_a_streamed_call_together(client, generator):
    generator.script.answer = FOUND
    with client.chat.completions.stream(
        model="tiny", messages=CHAT["messages"], tools=[STRICT], tool_choice="required"
    ) as stream:
        kinds = [event.type for event in stream]
    assert kinds.count("tool_calls.function.arguments.delta") > 1
    (made,) = stream.get_final_completion().choices[0].message.tool_calls
    assert (made.function.name, made.function.parsed_arguments) == ("find", {"q": "x"})


@pytest.mark.parametrize("fields", [{}, {"tool_choice": "required", "stop": ["zzz"]}], ids=str)
def test_a_call_that_may_break_off_comes_whole(client, generator, fields):
    generator.script.answer = f"{FOUND}\n{NONE}"
    deltas, _, finish = streamed(client, model="tiny", tools=[FIND, NOW], **fields)
    made = [delta for chunk in deltas for delta in chunk]
    assert [each.function.arguments for each in made] == ['{"q":"x"}', "{}"]
    assert all(each.id for each in made)
    assert finish == "tool_calls"


def test_half_a_call_is_told_alike_and_has_not_ended(client, generator, text):
    generator.script.answer = FOUND
    before_end = FOUND.rindex("x")
    tokens = text.tokenizer.encode(FOUND[:before_end], add_special_tokens=False)
    fields = {"tools": [FIND], "tool_choice": "required", "max_tokens": len(tokens)}
    deltas, _, finish = streamed(client, model="tiny", **fields)
    whole = client.chat.completions.create(**(CHAT | {"model": "tiny"} | fields)).choices[0]
    (made,) = whole.message.tool_calls
    assert finish == whole.finish_reason == "length"
    told = "".join(delta.function.arguments for (delta,) in deltas)
    assert told == made.function.arguments == '{"q":"'


def test_text_of_a_form_beside_tools_is_content(client, generator, text):
    """Even if it names the tag that opens calls, which only a call may begin with."""
    generator.script.answer = '{"a": "<tool_call>{\\"name\\": 1}</tool_call>"}'
    form = {"type": "json_object"}
    fields = {"model": "tiny", "tools": [FIND], "response_format": form}
    deltas, content, finish = streamed(client, **fields)
    assert (deltas, content, finish) == ([], generator.script.answer, "stop")
    generator.script.answer = FOUND
    deltas, content, finish = streamed(client, **fields)
    assert (len(deltas) > 1, content, finish) == (True, "", "tool_calls")


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
        ({"guided_regex": "("}, "guided_regex"),
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
