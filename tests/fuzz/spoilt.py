"""Bodies that are valid but for one thing: values that a schema's generator never thinks of."""

import json
import random
from typing import Any

SMALL = {"max_tokens": 4, "temperature": 0.5}
MESSAGE = {"role": "user", "content": "Hello"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {}}}},
}
CALL = {"id": "call-1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Look!"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call-1", "content": "nothing"},
            MESSAGE,
        ],
        "tools": [TOOL],
        "tool_choice": "auto",
        "stop": ["\n\n"],
        "n": 2,
        "seed": 1,
        "top_p": 0.9,
        "top_k": 20,
        "logprobs": True,
        "top_logprobs": 2,
        "min_tokens": 1,
        "logit_bias": {"5": 1.5},
        "stop_token_ids": [2],
        "stream": True,
        "stream_options": {"include_usage": True},
        "priority": 0,
        "cache_salt": "a",
        "user": "somebody",
        "metadata": {"a": "b"},
        "ignore_eos": False,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.1,
        **SMALL,
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Look!"}]},
            {"type": "reasoning", "summary": [], "content": []},
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "nothing"},
        ],
        "instructions": "Be brief.",
        "tools": [{"type": "function", **TOOL["function"]}],
        "tool_choice": "auto",
        "text": {"format": {"type": "text"}},
        "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "metadata": {"a": "b"},
        "truncation": "auto",
        "store": True,
        "stream": True,
        "max_output_tokens": 4,
        "temperature": 0.5,
    },
    "/v1/completions": {
        "prompt": "Once upon a time",
        "n": 1,
        "logprobs": 1,
        "echo": False,
        "seed": 3,
        "stop": "end",
        "top_k": 5,
        "min_tokens": 1,
        "stream": False,
        "cache_salt": "",
        **SMALL,
    },
    "/v2/models/tandem-mini/infer": {
        "id": "7",
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [2, 1], "data": [["a"], ["b"]]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [4]},
            {"name": "top_p", "datatype": "FP32", "shape": [1], "data": [0.9]},
            {
                "name": "sampling_parameters",
                "datatype": "BYTES",
                "shape": [1],
                "data": ['{"seed": "5"}'],
            },
            {"name": "stop", "datatype": "BYTES", "shape": [1], "data": ["end"]},
        ],
        "outputs": [{"name": "text_output", "parameters": {"binary_data": True}}],
        "parameters": {"binary_data_output": False, "temperature": 0.5, "stream": False},
    },
    "/v2/models/tandem-mini/generate_stream": {
        "text_input": "Once upon a time",
        "id": "8",
        "parameters": {"bad_words": [""], "stop_words": ["end"], "return_log_probs": False},
        "random_seed": 3,
        "exclude_input_in_output": True,
        "stream": True,
        **SMALL,
    },
    "/v1/batches": {
        "input_file_id": "file-abc",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"a": "b"},
        "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    },
    "/tokenize": {"prompt": "Hello", "add_special_tokens": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}


def nested(depth: int, kind: str) -> str:
    opening, closing = ("[", "]") if kind == "list" else ('{"a":', "}")
    return opening * depth + "1" + closing * depth


# As JSON, so that what no value of Python becomes can stand here too.
VALUES = (
    *("null", "true", "0", "-0", "-1", "1e400", "-1e400", "1e-400", "NaN", "-Infinity", "0.1"),
    *("9" * digits for digits in (10, 20, 309, 310, 4000, 5000)),
    *("-" + "9" * digits for digits in (19, 309, 4300)),
    *("2147483648", "-2147483649", "9223372036854775808", "18446744073709551616", "1.5e308"),
    *('""', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"<|im_end|>"', '"{{ 7 * 7 }}"'),
    *('"' + "a" * 100_000 + '"', '"' + " " * 50_000 + '"', '"\\u202e\\ufeff\\uffff"'),
    *("[]", "{}", "[null]", "[[]]", '{"": null}', "[1, [2, [3]]]", '["a", 1, null]'),
    "[" + ",".join(["1"] * 20_000) + "]",
    "[" + ",".join(['"x"'] * 5_000) + "]",
    *(nested(depth, kind) for depth in (100, 1_100, 20_000) for kind in ("list", "object")),
    '{"5": 1e400}',
    '{"999999999999999999999": 1}',
)
# Of the whole body, or of what stands around it.
WHOLE = (
    *("", "null", "[]", '"text"', "{", '{"a": 1,}', "\ufeff{}", "{}{}", "\x00", *VALUES[-4:-2]),
)
HEADERS = (
    {},
    {"Content-Type": "application/json; charset=latin-9"},
    {"Content-Type": "text/plain"},
    {"Content-Encoding": "gzip"},
    {"X-Request-Id": "a" * 300},
    {"X-Tenant": "\u00e4", "X-Tandem-Pin": "9" * 400},
    {"X-Tandem-Priority": "9" * 400, "Accept": "nothing/at-all"},
    {"Authorization": "Bearer"},
    {"Traceparent": "00-zz", "Expect": "200-ok"},
)


def spoilt(chance: random.Random) -> tuple[str, dict[str, str], bytes]:
    """A path, headers and a body."""
    path = chance.choice(tuple(BODIES))
    headers = {"Content-Type": "application/json"} | chance.choice(HEADERS)
    if chance.random() < 0.05:
        return path, headers, chance.choice(WHOLE).encode("utf-8", "surrogatepass")
    body = json.loads(json.dumps(BODIES[path]))
    # A mark in the place of one value; what it stands for is put into the text.
    holder, key = chance.choice(tuple(places(body)))
    holder[key] = "@here@"
    if chance.random() < 0.1:
        body[chance.choice(("unknown", "model", "response_format", "a" * 70_000))] = None
    text = json.dumps(body).replace('"@here@"', chance.choice(VALUES))
    sent = text.encode()
    if chance.random() < 0.03:
        # Cut anywhere, or with a byte that is no text.
        cut = chance.randrange(len(sent))
        sent = sent[:cut] if chance.random() < 0.5 else sent[:cut] + b"\xff\xfe" + sent[cut:]
    return path, {name: value.encode().decode("latin-1") for name, value in headers.items()}, sent


def places(value: Any) -> list[tuple[Any, Any]]:
    """Where in a body a value stands, at whatever depth."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found: list[tuple[Any, Any]] = []
    for key in keys:
        found.append((value, key))
        if isinstance(value[key], dict | list):
            found += places(value[key])
    return found
