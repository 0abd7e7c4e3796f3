"""Whatever a client sends, it gets a clear error in OpenAI's shape, and the server lives on."""

import json
import socket

import pytest

from tests.api.conftest import MAX_BODY_BYTES

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
PROMPT = {"model": "tiny", "prompt": "hello"}
CHAT_PATH, PROMPT_PATH = "/v1/chat/completions", "/v1/completions"


def error_of(response, status: int) -> dict:
    assert response.status_code == status, response.text
    assert response.headers["x-request-id"]
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def raw(port: int, data: bytes, *, half_close: bool = True) -> bytes:
    """Sends bytes as they are; returns everything until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(data)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        return b"".join(parts)


def post(body: bytes, *headers: str, path: str = CHAT_PATH) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    return "\r\n".join(lines).encode() + b"\r\nConnection: close\r\n\r\n" + body


def post_with_length(body: bytes) -> bytes:
    return post(body, f"Content-Length: {len(body)}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"seed": 1 << 70}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 65}, "stop"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"typical_p": 0}, "typical_p"),
        ({"xtc_probability": 2}, "xtc_probability"),
        ({"xtc_threshold": -1}, "xtc_threshold"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["a" * 41]}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["a"] * 65}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": "a"}, "dry_sequence_breakers"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"logit_bias": {" ": 1}}, "logit_bias"),
        ({"logit_bias": {"a" * 257: 1}}, "logit_bias"),
        ({"logit_bias": {"fox": True}}, "logit_bias"),
        ({"logit_bias": {f"a{n}": 1 for n in range(65)}}, "logit_bias"),
        ({"logit_bias": [[10**6, False]]}, "logit_bias"),
        ({"logit_bias": [[5]]}, "logit_bias[0]"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [10**6]}, "allowed_token_ids"),
        ({"allowed_token_ids": list(range(4097))}, "allowed_token_ids"),
        ({"allowed_token_ids": [2], "min_tokens": 1}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [" "]}, "bad_words"),
        ({"bad_words": ["a"] * 65}, "bad_words"),
        ({"bad_words": ["a" * 257]}, "bad_words"),
        ({"bad_words": "a"}, "bad_words"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"what": 1}, "stream": True}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        ({"messages": [*CHAT["messages"], {"role": "system", "content": "late"}]}, "messages"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
        ),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template": "x"}, "chat_template"),
        ({"audio": {}}, "audio"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_bad_chat_fields_are_named(http, fields, param):
    assert error_of(http.post(CHAT_PATH, json=CHAT | fields), 400)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [[1], [-1]]}, "prompt[1][0]"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": ["a"] * 9}, "n"),
        ({"best_of": 9}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 2, "stream": True}, "stream"),
        ({"best_of": 2, "scaling": {"method": "best-of-n"}}, "scaling"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
        ({"use_beam_search": True, "stream": True}, "stream"),
        ({"use_beam_search": True, "stop": "x"}, "stop"),
        ({"use_beam_search": True, "temperature": 0.5}, "temperature"),
        ({"use_beam_search": True, "presence_penalty": 0.5}, "presence_penalty"),
        ({"use_beam_search": True, "typical_p": 0.5}, "typical_p"),
        ({"use_beam_search": True, "min_tokens": 2}, "min_tokens"),
        ({"use_beam_search": True, "guided_regex": "a"}, "response_format"),
        ({"use_beam_search": True, "length_penalty": 11}, "length_penalty"),
        ({"use_beam_search": True, "best_of": 9}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"echo": True, "logprobs": 1, "use_beam_search": True}, "echo"),
        ({"echo": True, "logprobs": 21}, "top_logprobs"),
        ({"logprobs": 21}, "top_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "scaling": {"method": "re-query"}}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "echo": True, "use_beam_search": True}, "max_tokens"),
    ],
)
def test_bad_completion_fields_are_named(http, fields, param):
    assert error_of(http.post(PROMPT_PATH, json=PROMPT | fields), 400)["param"] == param


def test_unknown_fields_are_named_with_a_remedy(http):
    error = error_of(http.post(CHAT_PATH, json=CHAT | {"temprature": 1}), 400)
    assert error["param"] == "temprature"
    assert "'temperature'" in error["message"]
    error_of(http.post(CHAT_PATH, json=CHAT | {"x" * 100_000: 1}), 400)
    error_of(http.post(CHAT_PATH, json=CHAT | {"x": None}), 400)


def test_fields_that_ask_for_nothing_are_accepted(http):
    nothing = {
        "response_format": {"type": "text"},
        "audio": None,
        "logit_bias": {},
        "tools": [],
        "stop": None,
        "service_tier": "auto",
        "store": False,
        "parallel_tool_calls": True,
    }
    assert http.post(CHAT_PATH, json=CHAT | nothing).status_code == 200
    assert http.post(PROMPT_PATH, json=PROMPT | {"suffix": None, "best_of": 1}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe{}",
        b'{"model": "\xff"}',
        b'{"model": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"n": 1, "n": 2}',
        b'{"model": "\\ud800"}',
        b'{"\\uDfff": 1}',
        b"\xef\xbb\xbf{}",
        b'{"messages": ' + b"[" * 65 + b"]" * 65 + b"}",
        b"[" * 500_000,
        b'{"a":' * 100_000,
        b'{"x": "' + b'\\"' * 200_000,
        "{}".encode("utf-16"),
    ],
    ids=range(20),
)
def test_broken_json(http, body):
    response = http.post(CHAT_PATH, content=body, headers={"Content-Type": "application/json"})
    assert error_of(response, 400)["code"] in ("invalid_json", "invalid_value")


def test_other_content_types(http):
    headers = {"Content-Type": "text/plain"}
    error_of(http.post(CHAT_PATH, content=b"{}", headers=headers), 415)
    headers = {"Content-Type": "application/json; charset=utf-8"}
    response = http.post(CHAT_PATH, content=json.dumps(CHAT), headers=headers)
    assert response.status_code == 200


def test_brackets_inside_texts_are_no_nesting(http):
    prompt = '[{"' * 100 + "\\"
    response = http.post("/tokenize", json={"prompt": prompt})
    assert response.status_code == 200


def test_too_large(http, port):
    def chunks():
        for _ in range(2 * MAX_BODY_BYTES // 65536):
            yield b" " * 65536

    headers = {"Content-Type": "application/json"}
    error_of(http.post(CHAT_PATH, content=chunks(), headers=headers), 413)
    huge = raw(port, post(b"", "Content-Length: 99999999999"), half_close=False)
    assert b" 413 " in huge.splitlines()[0]


def test_a_body_that_stops_coming(port, http):
    slow = raw(port, post(b'{"mod', "Content-Length: 500"), half_close=False)
    assert b" 408 " in slow.splitlines()[0]
    raw(port, post(b'{"mod', "Content-Length: 500"))
    raw(port, post(b"zz\r\n", "Transfer-Encoding: chunked"))
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\n\r\n",
        b"POST " + CHAT_PATH.encode() + b" HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        post_with_length(b"{}")[:40],
        post(b"{}", "Content-Length: 2", "Authorization: Bearer \xe9"),
        b"GET /%ff%fe/\xc3\xa9 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    ],
    ids=range(6),
)
def test_bytes_that_are_hardly_http(port, http, data):
    answer = raw(port, data)
    assert not answer or b" 500 " not in answer.splitlines()[0]
    assert http.get("/health").status_code == 200


def test_a_client_that_leaves_before_the_answer(port, generator):
    generator.script.hold_after = 1
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(post_with_length(json.dumps(CHAT).encode()))
        generator.wait_until_running(1)
    generator.wait_until_running(0)


def test_unknown_places_and_methods(http):
    error_of(http.get("/v1/nothing"), 404)
    error_of(http.get("/v1/chat/completions/"), 404)
    response = http.get(CHAT_PATH)
    error_of(response, 405)
    assert response.headers["allow"] == "POST"
    error = error_of(http.post(CHAT_PATH, json=CHAT | {"model": "gpt-9"}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    error_of(http.get("/v1/models/none"), 404)


def test_token_endpoints_refuse_nonsense(http):
    error_of(http.post("/tokenize", json={}), 400)
    error_of(http.post("/tokenize", json={"prompt": "a", "messages": CHAT["messages"]}), 400)
    error_of(http.post("/detokenize", json={"tokens": [10**9]}), 400)
    error_of(http.post("/detokenize", json={"tokens": [-1]}), 400)
    error_of(http.post("/detokenize", json={"tokens": "a"}), 400)


def test_a_fault_of_ours_is_told_without_details(http, generator):
    generator.script.failure = ZeroDivisionError("secret")
    error = error_of(http.post(CHAT_PATH, json=CHAT), 500)
    assert "secret" not in error["message"]
    assert error["type"] == "internal_server_error"
