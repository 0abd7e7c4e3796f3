"""Anthropic's Messages API over HTTP: the conversation underneath is that of a chat, and answers,
streams and errors have Anthropic's shape."""

import json

import httpx2
import msgspec
import pytest

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.facts.errors import EngineFailed, Overloaded, Rejection
from tandem.text.model import TextModel
from tests.api.conftest import MAX_BODY_BYTES
from tests.api.scripted_generator import Script, ScriptedGenerator
from tests.api.server import client_of
from tests.api.test_reasoning import THINKING
from tests.api.test_tool_choice import FIND, FOUND, NONE, STRICT, call
from tests.text.tiny_checkpoint import write_checkpoint

PATH, COUNT_PATH, CHAT_PATH = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
ASKED = {"model": "tiny", "max_tokens": 400, "messages": HELLO}
NOTED = {"type": "ephemeral"}
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def tool(openai_tool: dict) -> dict:
    """The same tool in Anthropic's words."""
    function = dict(openai_tool["function"])
    return {"input_schema": function.pop("parameters"), **function}


def text_block(text: str, **more) -> dict:
    return {"type": "text", "text": text} | more


USED = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"q": "x"}}
MADE = {"id": "toolu_1", "type": "function", "function": {"name": "find", "arguments": '{"q":"x"}'}}


def result(content, **more) -> dict:
    block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": content}
    return {"role": "user", "content": [block | more]}


def ask(http: httpx2.Client, **fields) -> dict:
    response = http.post(PATH, json=ASKED | fields)
    assert response.status_code == 200, response.text
    assert response.headers["request-id"] == response.headers["x-request-id"]
    # Not every reader takes what `json` does.
    return msgspec.json.decode(response.content)


def counted(http: httpx2.Client, **fields) -> int:
    response = http.post(COUNT_PATH, json={"messages": HELLO} | fields)
    assert response.status_code == 200, response.text
    (tokens,) = response.json().values()
    return tokens


def events_in(text: str) -> list[dict]:
    """Each has a name, and its data say the same."""
    assert text.endswith("\n\n")
    events = []
    for lines in text.removesuffix("\n\n").split("\n\n"):
        name, data = lines.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def put_together(events: list[dict]) -> dict:
    """The answer that a stream comes to; each event has to be one that may come next."""
    message = events[0]["message"]
    assert (events[0]["type"], message["content"], message["stop_reason"]) == (
        "message_start",
        [],
        None,
    )
    content, texts, is_open = message["content"], {}, False
    grown = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}
    kinds = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
    for event in events[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(content)
                content.append(event["content_block"])
                texts[event["index"]], is_open = "", True
            case "content_block_delta":
                delta = event["delta"]
                assert is_open and event["index"] == len(content) - 1
                assert delta["type"] == kinds[content[-1]["type"]]
                assert delta[grown[delta["type"]]]
                texts[event["index"]] += delta[grown[delta["type"]]]
            case "content_block_stop":
                assert is_open and event["index"] == len(content) - 1
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    for index, block in enumerate(content):
        if block["type"] == "tool_use":
            assert block["input"] == {}
            block["input"] = json.loads(texts[index] or "{}")
        else:
            assert block[block["type"]] == ""
            block[block["type"]] = texts[index]
    last, end = events[-2:]
    assert (last["type"], end) == ("message_delta", {"type": "message_stop"})
    # What it begins with is said again at its end.
    begun = {name: message["usage"][name] for name in ("input_tokens", "cache_read_input_tokens")}
    assert begun.items() <= last["usage"].items()
    return message | last["delta"] | {"usage": last["usage"]}


def streamed(http: httpx2.Client, **fields) -> dict:
    response = http.post(PATH, json=ASKED | {"stream": True} | fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return put_together(events_in(response.text))


def without_ids(message: dict) -> dict:
    content = [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]
    return message | {"id": "", "content": content}


def texts_of(message: dict) -> str:
    return "".join(each["text"] for each in message["content"] if each["type"] == "text")


def calls_of(message: dict) -> list[tuple[str, dict]]:
    return [
        (each["name"], each["input"]) for each in message["content"] if each["type"] == "tool_use"
    ]


def test_an_answer(http, generator):
    generator.script.cached_tokens = 3
    message = ask(http, model="org/tiny")
    assert message["id"].startswith("msg_")
    prompt_tokens = len(generator.requests[-1].prompt_tokens)
    assert message == {
        "id": message["id"],
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [text_block("hello world")],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": prompt_tokens - 3,
            "output_tokens": message["usage"]["output_tokens"],
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 0,
        },
    }
    assert message["usage"]["output_tokens"] > 2
    assert without_ids(streamed(http)) == without_ids(message)
    generator.script.answer = ""
    assert ask(http)["content"] == streamed(http)["content"] == []


@pytest.mark.parametrize(
    ("fields", "messages"),
    [
        ({"system": "Be kind."}, [{"role": "system", "content": "Be kind."}, *HELLO]),
        (
            {
                "system": [text_block("Be"), text_block("kind.", cache_control=NOTED)],
                "messages": [{"role": "user", "content": [text_block("a"), text_block("b")]}],
            },
            [{"role": "system", "content": "Be\nkind."}, {"role": "user", "content": "a\nb"}],
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "Sure, "}]},
            [*HELLO, {"role": "assistant", "content": "Sure, "}],
        ),
        (
            {"messages": [*HELLO, *HELLO, {"role": "assistant", "content": "A"}, *HELLO]},
            [
                {"role": "user", "content": "hello\nhello"},
                {"role": "assistant", "content": "A"},
                *HELLO,
            ],
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": [text_block("Hm."), USED]},
                    result("42"),
                    {"role": "user", "content": [text_block("So?", citations=None)]},
                ]
            },
            [
                *HELLO,
                {"role": "assistant", "content": "Hm.", "tool_calls": [MADE]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "42"},
                {"role": "user", "content": "So?"},
            ],
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {"role": "assistant", "content": [USED | {"caller": None}]},
                    result([text_block("no"), text_block("such")], is_error=True),
                ]
            },
            [
                *HELLO,
                {"role": "assistant", "content": None, "tool_calls": [MADE]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: no\nsuch"},
            ],
        ),
        (
            {"messages": [{"role": "system", "content": "Be kind."}, *HELLO]},
            [{"role": "system", "content": "Be kind."}, *HELLO],
        ),
    ],
    ids=["system", "blocks", "continued", "neighbours", "results", "error", "said by the system"],
)
def test_the_prompt_is_that_of_a_chat(http, generator, fields, messages):
    tools = {"tools": [tool(FIND), tool(NOW) | {"description": "The time.", "type": "custom"}]}
    now = {"type": "function", "function": NOW["function"] | {"description": "The time."}}
    continues = messages[-1]["role"] == "assistant"
    for ours, theirs in (({}, {}), (tools, {"tools": [FIND, now]})):
        count = counted(http, **fields | ours)
        usage = ask(http, **fields | ours)["usage"]
        chat = {"messages": messages, "continue_final_message": continues} | theirs
        assert http.post(CHAT_PATH, json=chat).status_code == 200
        said, expected = (request.prompt_tokens for request in generator.requests[-2:])
        assert said == expected
        assert count == len(said) == usage["input_tokens"]


CHOICES = [
    ({}, {}),
    ({"tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
    (
        {"tool_choice": {"type": "tool", "name": "find"}},
        {"tool_choice": {"type": "function", "function": {"name": "find"}}},
    ),
    (
        {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        {"parallel_tool_calls": False},
    ),
    ({"tool_choice": {"type": "none"}}, {"tool_choice": "none"}),
]


@pytest.mark.parametrize("tokens_per_output", [1, 3, 64])
@pytest.mark.parametrize(("ours", "theirs"), CHOICES, ids=str)
@pytest.mark.parametrize("strict", [False, True])
def test_text_and_calls_are_those_of_a_chat(
    http, generator, ours, theirs, strict, tokens_per_output
):
    tools = [STRICT if strict else FIND, NOW]
    for answer in (FOUND, f"{FOUND}\n{NONE}", "Just 日本 text.", f"Well: {FOUND}"):
        generator.script = Script(answer, tokens_per_output=tokens_per_output)
        message = ask(http, tools=[tool(each) for each in tools], **ours)
        sent = {"messages": HELLO, "max_tokens": 400, "tools": tools} | theirs
        choice = http.post(CHAT_PATH, json=sent).json()["choices"][0]
        assert texts_of(message) == (choice["message"]["content"] or "")
        assert calls_of(message) == [
            (each["function"]["name"], json.loads(each["function"]["arguments"]))
            for each in choice["message"].get("tool_calls", [])
        ]
        finish = {"stop": "end_turn", "tool_calls": "tool_use"}[choice["finish_reason"]]
        assert message["stop_reason"] == finish
        said, expected = (request.sampling for request in generator.requests[-2:])
        assert said.grammar == expected.grammar
        told = streamed(http, tools=[tool(each) for each in tools], **ours)
        assert without_ids(told) == without_ids(message)
        ids = [block["id"] for block in told["content"] if block["type"] == "tool_use"]
        assert len(set(ids)) == len(ids)
        assert all(each.startswith("toolu_") for each in ids)


@pytest.mark.parametrize("tokens_per_output", [1, 2, 5, 64])
def test_what_follows_a_call_is_a_block_of_its_own(http, generator, tokens_per_output):
    generator.script = Script(f"{FOUND}Found. {NONE} Done.", tokens_per_output=tokens_per_output)
    told = streamed(http, tools=[tool(STRICT), tool(NOW)])
    whole = ask(http, tools=[tool(STRICT), tool(NOW)])
    assert [block["type"] for block in whole["content"]] == ["text", "tool_use", "tool_use"]
    assert texts_of(told) == texts_of(whole)
    assert calls_of(told) == calls_of(whole) == [("find", {"q": "x"}), ("now", {})]
    if tokens_per_output == 1:
        order = ["tool_use", "text", "tool_use", "text"]
        assert [block["type"] for block in told["content"]] == order


def test_half_a_call_has_no_input_and_has_not_ended(http, generator, text):
    generator.script.answer = FOUND
    half = text.tokenizer.encode(FOUND[: FOUND.rindex("x")], add_special_tokens=False)
    fields = {
        "tools": [tool(FIND)],
        "tool_choice": {"type": "any"},
        "max_tokens": len(half),
    }
    message = ask(http, **fields)
    assert (calls_of(message), message["stop_reason"]) == ([("find", {})], "max_tokens")
    events = events_in(http.post(PATH, json=ASKED | fields | {"stream": True}).text)
    pieces = [
        each["delta"]["partial_json"] for each in events if "content_block_delta" in each["type"]
    ]
    assert "".join(pieces) == '{"q":"'
    assert events[-2]["delta"]["stop_reason"] == "max_tokens"


def test_half_characters_make_no_answer_unreadable(http, generator):
    written = r'{"q": "a\ud83d\\ud83d \ud83d\ude00\ude00"}'
    generator.script.answer = call("find", written)
    (made,) = calls_of(ask(http, tools=[tool(FIND)]))
    assert made == ("find", {"q": "a\ufffd\\ud83d 😀\ufffd"})


def test_sampling_fields_arrive(http, generator):
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop_sequences": ["zzz", "yyy"]}
    ask(http, max_tokens=9, **fields)
    sampling = generator.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert sampling.max_tokens == 9
    ask(http, temperature=None, stop_sequences=None, tools=None, system=None, thinking=None)
    plain = generator.requests[-1].sampling
    assert (plain.temperature, plain.top_k) == (0.7, 20)


@pytest.mark.parametrize(
    ("script", "fields", "reason", "sequence", "said"),
    [
        (Script(), {}, "end_turn", None, "hello world"),
        (Script(), {"max_tokens": 1}, "max_tokens", None, "he"),
        (Script(), {"stop_sequences": ["no", "wor"]}, "stop_sequence", "wor", "hello "),
        (Script(FOUND), {"tools": [tool(FIND)]}, "tool_use", None, ""),
    ],
    ids=["end", "length", "stop", "call"],
)
def test_how_answers_end(http, generator, script, fields, reason, sequence, said):
    generator.script = script
    message = ask(http, **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert texts_of(message) == said
    assert without_ids(streamed(http, **fields)) == without_ids(message)


@pytest.mark.parametrize("name", ["output_config", "output_format"])
def test_a_schema_is_a_form_of_the_answer(http, generator, name):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    wanted = {"type": "json_schema", "schema": schema}
    generator.script.answer = '{"a": 1}'
    ask(http, **{name: {"format": wanted} if name == "output_config" else wanted})
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    http.post(CHAT_PATH, json={"messages": HELLO, "response_format": form})
    said, expected = (request.sampling.grammar for request in generator.requests[-2:])
    assert said == expected != ""


@pytest.fixture(scope="module")
def the_thinker(tmp_path_factory):
    directory = tmp_path_factory.mktemp("thinker")
    tags = ("<think>", "</think>")
    text = TextModel.load(write_checkpoint(directory, tags, chat_template=THINKING))
    generator = ScriptedGenerator(text)
    with client_of(build_app(generator, text, ApiConfig())) as http:
        yield http, generator, text


@pytest.mark.parametrize("tokens_per_output", [1, 64])
def test_reasoning_is_a_block_before_the_others(the_thinker, tokens_per_output):
    http, generator, _ = the_thinker
    generator.script = Script(
        f"<think>\nHm, 日本.\n</think>\n\nHello. {FOUND}", tokens_per_output=tokens_per_output
    )
    message = ask(http, tools=[tool(FIND)])
    thought, said, used = message["content"]
    assert thought == {"type": "thinking", "thinking": "Hm, 日本.", "signature": ""}
    assert (said, used["type"]) == (text_block("Hello. "), "tool_use")
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 2
    told = streamed(http, tools=[tool(FIND)])
    assert without_ids(told) == without_ids(message)
    hidden = {"thinking": {"type": "adaptive", "display": "omitted"}, "tools": [tool(FIND)]}
    message = ask(http, **hidden)
    assert message["content"][0] == thought | {"thinking": ""}
    assert message["content"][1] == said
    assert without_ids(streamed(http, **hidden)) == without_ids(message)


@pytest.mark.parametrize(
    ("thinking", "begun"),
    [
        ({"type": "enabled", "budget_tokens": 1024}, "assistant\n<think>\n"),
        ({"type": "disabled"}, "</think>\n\n"),
        ({"type": "adaptive"}, "assistant\n"),
        (None, "assistant\n"),
    ],
    ids=str,
)
def test_the_template_is_told_whether_to_reason(the_thinker, thinking, begun):
    http, generator, text = the_thinker
    generator.script = Script()
    thought = {"type": "thinking", "thinking": "I greet.", "signature": "abc"}
    earlier = {"role": "assistant", "content": [thought, text_block("Hi.")]}
    messages = [*HELLO, earlier, *HELLO]
    count = counted(http, messages=messages, thinking=thinking)
    ask(http, messages=messages, thinking=thinking)
    tokens = generator.requests[-1].prompt_tokens
    prompt = text.tokenizer.decode(tokens, skip_special_tokens=False)
    assert "Hi.I greet." in prompt
    assert prompt.endswith(begun)
    assert count == len(tokens)


def refusal_of(response: httpx2.Response, status: int) -> dict:
    """The error, in Anthropic's shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert set(answer) == {"type", "error", "request_id"}
    assert answer["type"] == "error"
    assert answer["request_id"] == response.headers["request-id"]
    assert answer["error"]["message"]
    return answer["error"]


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://x"}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "without text"),
        ({"messages": [{"role": "user", "content": [USED]}]}, "'tool_use'"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [USED]}]}, "tool_result"),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": [{"type": "server_tool_use"}]}]},
            "'server_tool_use'",
        ),
        ({"messages": [result([IMAGE])]}, "'image'"),
        ({"messages": [result([IMAGE], is_error=True)]}, "'image'"),
        ({"messages": [*HELLO, {"role": "system", "content": "late"}, *HELLO]}, "messages"),
        ({"system": [IMAGE]}, "system"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [tool(FIND) | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [tool(FIND) | {"input_examples": [{}]}]}, "tools[0].input_examples"),
        (
            {
                "tools": [tool(NOW), {"name": "f", "input_schema": {"not": {}}}],
                "tool_choice": {"type": "any"},
            },
            "tools[1].input_schema",
        ),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [tool(FIND)], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
        ({"thinking": {"type": "between_tools"}}, "thinking.type"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            "output_config.format.schema",
        ),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{}]}}, "context_management"),
        ({"n": 2}, "'n'"),
    ],
    ids=str,
)
def test_what_cannot_be_is_named(http, generator, fields, named):
    error = refusal_of(http.post(PATH, json=ASKED | fields), 400)
    assert error["type"] == "invalid_request_error"
    assert named in error["message"]
    assert not generator.requests


def test_a_refused_thread_has_the_code_by_which_clients_go_on_without(http):
    error = refusal_of(http.post(PATH, json=ASKED | {"thread": {"type": "create"}}), 400)
    assert error["details"]["error_code"] == "thread_unsupported_request"
    assert "thread" in error["message"]


def test_what_asks_for_nothing_is_accepted(http):
    ask(
        http,
        metadata={"user_id": "u"},
        service_tier="auto",
        cache_control=NOTED,
        mcp_servers=[],
        container=None,
        context_management=None,
        output_config={"effort": "high"},
        tools=[tool(FIND) | {"cache_control": NOTED, "eager_input_streaming": True}],
        stream=False,
    )


def test_errors_have_the_shape_and_the_types_of_the_api(http, generator):
    headers = {"Content-Type": "text/plain"}
    declared = {"Content-Type": "application/json"}
    for path in (PATH, COUNT_PATH):
        asked = {"model": "gpt-9", "messages": HELLO}
        asked |= {"max_tokens": 1} if path == PATH else {}
        error = refusal_of(http.post(path, json=asked), 404)
        assert error["type"] == "not_found_error"
        assert error["details"]["error_code"] == "model_not_found"
        assert refusal_of(http.get(path), 405)["type"] == "invalid_request_error"
        refusal_of(http.post(path, content=b"{}", headers=headers), 415)
        refusal_of(http.post(path, content=b"{", headers=declared), 400)
        large = (b" " * 65536 for _ in range(2 * MAX_BODY_BYTES // 65536))
        error = refusal_of(http.post(path, content=large, headers=declared), 413)
        assert error["type"] == "request_too_large"
    assert refusal_of(http.get(f"{PATH}/batches"), 404)["type"] == "not_found_error"
    assert set(http.get("/v1/messagesque").json()) == {"error"}
    long = [{"role": "user", "content": "the fox jumps " * 400}]
    error = refusal_of(http.post(PATH, json=ASKED | {"messages": long}), 400)
    assert error["details"]["error_code"] == "context_length_exceeded"
    for failure, status, kind in (
        (Overloaded("busy", 2.3), 429, "overloaded_error"),
        (Overloaded("limit", 2.3, Rejection.REQUESTS), 429, "rate_limit_error"),
        (EngineFailed("it died"), 503, "api_error"),
        (ZeroDivisionError("secret"), 500, "api_error"),
    ):
        generator.script.failure = failure
        for stream in (False, True):
            response = http.post(PATH, json=ASKED | {"stream": stream})
            if status == 500:
                assert response.status_code == 500
                assert response.json()["error"] == {
                    "type": "api_error",
                    "message": "internal error",
                    "details": {"error_code": "internal_error"},
                }
                continue
            assert refusal_of(response, status)["type"] == kind
            assert ("retry-after" in response.headers) == (status == 429)
    generator.ready = False
    assert refusal_of(http.post(PATH, json=ASKED), 503)["type"] == "overloaded_error"
    assert counted(http) > 1


def test_an_error_in_mid_stream_is_the_last_event(http, generator):
    generator.script = Script(failure=EngineFailed("it died"), fail_after=1)
    events = events_in(http.post(PATH, json=ASKED | {"stream": True}).text)
    assert [event["type"] for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "error",
    ]
    error = events[-1]["error"]
    assert (error["type"], error["message"]) == ("api_error", "it died")


def test_the_key_may_stand_in_the_header_of_either_api(generator, text):
    config = ApiConfig(api_keys=("key-one",), tenants={"red-key": "red"})
    with client_of(build_app(generator, text, config)) as http:
        for key in ({}, {"x-api-key": "wrong"}, {"x-api-key": ""}, {"Authorization": "key-one"}):
            error = refusal_of(http.post(PATH, json=ASKED, headers=key), 401)
            assert error["type"] == "authentication_error"
            assert "wrong" not in error["message"]
            assert http.get("/v1/models", headers=key).status_code == 401
        for key in ({"x-api-key": "key-one"}, {"Authorization": "Bearer key-one"}):
            for path in (PATH, CHAT_PATH):
                assert http.post(path, json=ASKED, headers=key).status_code == 200
        both = {"Authorization": "Bearer wrong", "x-api-key": "key-one"}
        refusal_of(http.post(PATH, json=ASKED, headers=both), 401)
        assert http.post(PATH, json=ASKED, headers={"x-api-key": "red-key"}).status_code == 200
        assert generator.requests[-1].tenant == "red"


def test_pages_of_others_are_refused_in_the_same_shape(http):
    response = http.post(PATH, json=ASKED, headers={"Origin": "https://other.example"})
    assert refusal_of(response, 403)["type"] == "permission_error"
