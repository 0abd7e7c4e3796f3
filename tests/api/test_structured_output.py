"""Structured output over HTTP: what each field becomes, and how what cannot be used is refused."""

import json

import pytest
from pydantic import BaseModel

from tests.api.test_refusals import CHAT, CHAT_PATH, PROMPT, PROMPT_PATH, error_of

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SHORT = '{"a":1}'


def asked(http, generator, **fields):
    assert http.post(CHAT_PATH, json=CHAT | fields).status_code == 200
    return generator.requests[-1].sampling


def answers(text, grammar: str, *wanted: str) -> list[bool]:
    """Which of these are whole answers."""
    found = []
    for each in wanted:
        matcher = text.grammars.begin(grammar)
        matcher.consume(text.tokenizer.encode(each, add_special_tokens=False))
        found.append(matcher.complete)
    return found


@pytest.mark.parametrize(
    ("fields", "answer", "none"),
    [
        ({"response_format": {"type": "json_object"}}, '{"b": [1]}', "[1]"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            SHORT,
            "{}",
        ),
        ({"structured_outputs": {"json": SCHEMA}}, '{"a": 1}', "{}"),
        ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, SHORT, "{}"),
        ({"structured_outputs": {"json_object": True}}, "{}", "1"),
        ({"structured_outputs": {"regex": "a+"}}, "aaa", "ab"),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes", "yesno"),
        ({"structured_outputs": {"grammar": 'start: "x"+'}}, "xx", ""),
        ({"guided_json": json.dumps(SCHEMA)}, SHORT, "{}"),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": "_"}, '{"a":_1}', '{"a": 1}'),
        ({"guided_regex": "[0-9]{2}"}, "42", "4"),
        ({"guided_choice": ["red"]}, "red", "re"),
        ({"guided_grammar": 'root ::= "x" "y"?'}, "xy", "y"),
    ],
    ids=str,
)
def test_each_field_is_one_grammar(http, generator, text, fields, answer, none):
    sampling = asked(http, generator, **fields)
    assert answers(text, sampling.grammar, answer, none) == [True, False]
    assert http.post(PROMPT_PATH, json=PROMPT | fields).status_code == 200
    assert generator.requests[-1].sampling.grammar == sampling.grammar


def test_whatever_asks_for_any_text_has_no_grammar(http, generator):
    for fields in ({}, {"response_format": {"type": "text"}}, {"guided_json": None}):
        assert not asked(http, generator, **fields).grammar


def test_a_grammar_ends_the_answer_whatever_else_does_not(http, generator, text):
    sampling = asked(http, generator, guided_choice=["yes"], ignore_eos=True, min_tokens=9)
    assert not sampling.min_tokens
    assert set(sampling.stop_token_ids) == set(text.tokenizer.end_token_ids)


def test_the_client_makes_a_schema_of_a_class(client, generator, text):
    class Person(BaseModel):
        name: str
        age: int

    generator.script.answer = '{"name": "Ada", "age": 36}'
    answer = client.beta.chat.completions.parse(
        model="tiny", messages=CHAT["messages"], response_format=Person
    )
    assert answer.choices[0].message.parsed == Person(name="Ada", age=36)
    grammar = generator.requests[-1].sampling.grammar
    assert answers(text, grammar, generator.script.answer, '{"name": "Ada"}') == [True, False]


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"response_format": {"type": "json"}}, "response_format.type", ""),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", ""),
        ({"guided_json": {"type": "objec"}}, "guided_json", "objec"),
        ({"guided_json": "{"}, "guided_json", "no JSON"),
        ({"guided_json": "[]"}, "guided_json", "no JSON object"),
        (
            {"guided_json": {"properties": {"a": {"not": {}}}, "type": "object"}},
            "guided_json",
            "(at /properties/a)",
        ),
        ({"guided_regex": "("}, "guided_regex", "unclosed"),
        ({"guided_regex": ""}, "guided_regex", "characters"),
        ({"guided_choice": []}, "guided_choice", "1 to 1024"),
        ({"guided_choice": ["a", ""]}, "guided_choice", "none empty"),
        ({"guided_choice": ["a" * 70_000]}, "guided_choice", "65536"),
        ({"guided_grammar": "%%%"}, "guided_grammar", ""),
        ({"guided_grammar": "root ::= gone"}, "guided_grammar", "'gone' is not defined"),
        ({"guided_grammar": "root ::= root"}, "guided_grammar", "no answer"),
        ({"structured_outputs": {}}, "structured_outputs", "needs one of"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs.regex", "already"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice", "guided_regex"),
    ],
    ids=str,
)
def test_what_cannot_be_used_is_named(http, fields, param, said):
    error = error_of(http.post(CHAT_PATH, json=CHAT | fields), 400)
    assert error["param"] == param
    assert said in error["message"]
