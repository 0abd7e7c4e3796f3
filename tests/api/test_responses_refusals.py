"""What the Responses API refuses by name, and what it takes because that asks for nothing."""

import pytest

from tests.api.test_refusals import error_of
from tests.api.test_responses_api import FIND, PATH, prompt_of, spoken

WEB_SEARCH = {"type": "web_search"}
PICTURE = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
FILE = {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": [WEB_SEARCH]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [FIND, {"type": "file_search"}]}, "tools[1]", "unsupported_parameter"),
        ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0]", "unsupported_parameter"),
        ({"tools": [FIND | {"defer_loading": True}]}, "tools[0].defer", "unsupported_parameter"),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "invalid_value"),
        ({"tool_choice": WEB_SEARCH}, "tool_choice", "unsupported_parameter"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [FIND], "tool_choice": {"type": "function", "name": "go"}},
            "tool_choice",
            "invalid_value",
        ),
        (
            {
                "tools": [FIND],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": "go"}],
                },
            },
            "tool_choice",
            "invalid_value",
        ),
        ({"input": [PICTURE]}, "input[0].content[0]", "unsupported_parameter"),
        ({"input": [FILE]}, "input[0].content[0]", "unsupported_parameter"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]", "unsupported_parameter"),
        ({"input": [{"content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user"}]}, "input[0].content", "invalid_value"),
        ({"input": [{"type": "function_call"}]}, "input[0].name", "invalid_value"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": None}, "input", "invalid_value"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{no"}]},
            "input",
            "invalid_value",
        ),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"background": 0}, "background", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"context_management": [{"type": "x"}]}, "context_management", "unsupported_parameter"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "invalid_value"),
        (
            {"text": {"format": {"type": "json_schema", "schema": {"not": {}}}}},
            "text.format.schema",
            "invalid_value",
        ),
        ({"tools": [FIND | {"strict": True, "parameters": {"not": {}}}]}, None, "invalid_value"),
        ({"include": ["else"]}, "include[0]", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"truncation": "some"}, "truncation", "invalid_value"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"reasoning": {"mode": "pro"}}, "reasoning", "invalid_value"),
        ({"metadata": {"a": 1}}, "metadata[...]", "invalid_value"),
        ({"metadata": {"a": "x" * 513}}, "metadata[...]", "invalid_value"),
        ({"messages": []}, "messages", "unknown_parameter"),
        ({"max_tokens": 3}, "max_tokens", "unknown_parameter"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(http, generator, fields, param, code):
    error = error_of(http.post(PATH, json={"input": "hello"} | fields), 400)
    assert error["code"] == code
    assert (error["param"] or "").startswith(param or "tools[0].parameters")
    assert error["message"].startswith((error["param"], f"unknown field '{param}'"))
    assert not generator.requests


def test_what_asks_for_nothing_is_taken(http, generator, text):
    names = "background conversation prompt instructions previous_response_id tools tool_choice"
    neutral = dict.fromkeys([*names.split(), "text", "reasoning", "truncation", "metadata"])
    others = {
        "background": False,
        "tools": [],
        "include": ["reasoning.encrypted_content"],
        "service_tier": "auto",
        "max_tool_calls": 3,
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "context_management": [],
        "reasoning": {"effort": "high", "summary": "auto"},
        "truncation": "disabled",
    }
    for fields in (neutral, others, {}):
        answer = http.post(PATH, json={"input": "hello"} | fields)
        assert answer.status_code == 200, answer.text
        assert prompt_of(generator, text) == spoken(("user", "hello"))
        assert not generator.requests[-1].sampling.grammar


def test_unknown_models_and_stored_streams(http, generator):
    error_of(http.post(PATH, json={"model": "else", "input": "hello"}), 404)
    made = http.post(PATH, json={"input": "hello"}).json()
    error_of(http.get(f"{PATH}/{made['id']}", params={"stream": "true"}), 400)


def test_large_tools_are_not_echoed(http, generator):
    large = FIND | {"description": "a" * (70 << 10)}
    body = {"input": "hello", "tools": [large], "tool_choice": "none"}
    assert http.post(PATH, json=body).json()["tools"] == []
    body["tools"] = [FIND]
    assert http.post(PATH, json=body).json()["tools"] == [FIND]
