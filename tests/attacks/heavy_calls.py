"""The heaviest calls that a server of a given context takes: bodies of each kind that it accepts to
read, or nearly, and answers that a client may ask for."""

import json
from collections.abc import Callable

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
RESPOND, MESSAGES = "/v1/responses", "/v1/messages"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
USER = {"role": "user", "content": "hi"}
Body = tuple[str, bytes]


def huge_bodies(path: str) -> list[Body]:
    """Larger than what is read at all."""
    return [(path, _json({"prompt": "a" * size})) for size in (8 << 20, 31 << 20)]


def heavy_bodies(context_tokens: int) -> dict[str, Body]:
    """Path and body by kind, each about as large as the default limit of bodies lets it be."""
    size = (1 << 20) + 16 * context_tokens - (8 << 10)
    made = {
        name: (path, make(size)) for path, kinds in _KINDS.items() for name, make in kinds.items()
    }
    return made | {
        "a prompt of ids": (
            COMPLETE,
            _completion([2000 + i % 500 for i in range(context_tokens - 8)]),
        ),
        "n=64 over ids": (COMPLETE, _completion([7] * (context_tokens - 8), n=64)),
        "text of a full context": (COMPLETE, _completion("the cat " * (context_tokens // 2 - 8))),
        "echoed text and ids": (
            COMPLETE,
            _completion([300 + i % 2000 for i in range(context_tokens - 8)], echo=True),
        ),
    }


def long_answers(context_tokens: int, **everywhere: object) -> dict[str, Body]:
    """Path and body by kind: each asks for about the heaviest answer of it that is allowed, and has
    such fields besides."""
    longest = context_tokens - 32
    ids, names = [2000 + i % 500 for i in range(context_tokens - 128)], "q z " * 12_000
    repeated = {"n": 64, "return_token_ids": True, "echo": True}
    alternatives: dict[str, object] = {"logprobs": True, "top_logprobs": 20}

    def chat(max_tokens: int, **fields: object) -> Body:
        return CHAT, _chat(max_tokens=max_tokens, min_tokens=1, **fields, **everywhere)

    def completion(prompt: object, max_tokens: int, **fields: object) -> Body:
        asked = {"max_tokens": max_tokens, "min_tokens": 1, **fields, **everywhere}
        return COMPLETE, _completion(prompt, **asked)

    return {
        "20 alternatives": chat(longest, **alternatives),
        "20 alternatives, streamed": chat(longest, stream=True, **alternatives),
        "20 alternatives, n=64": chat(60, n=64, return_token_ids=True, **alternatives),
        "20 alternatives, completion": completion("x", longest, logprobs=20),
        "no alternatives, n=64": chat(longest // 8, n=64, logprobs=True),
        "text and ids, n=64": chat(longest, n=64, return_token_ids=True),
        "prompt repeated": completion(ids, 16, **repeated),
        "prompt repeated, streamed": completion(ids, 16, stream=True, **repeated),
        "20 alternatives, response": (
            RESPOND,
            _json({"input": "hi", "max_output_tokens": longest, "top_logprobs": 20, **everywhere}),
        ),
        "20 alternatives, streamed response": (
            RESPOND,
            _json(
                {"input": "hi", "max_output_tokens": longest, "top_logprobs": 20, "stream": True}
                | everywhere
            ),
        ),
        "usage all the time": chat(
            128, n=64, stream=True, stream_options={"continuous_usage_stats": True}
        ),
        # Kept while it grows, four of these are more than all answers together may hold.
        "as much as is kept": chat(longest, n=9, **alternatives),
        "names of tokens": (TOKENIZE, _json({"prompt": names, "return_token_strs": True})),
    }


def _json(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def _completion(prompt: object, **fields: object) -> bytes:
    return _json({"prompt": prompt, "max_tokens": 1, **fields})


def _chat(**fields: object) -> bytes:
    return _json({"messages": [USER], "max_tokens": 1, **fields})


def _said(**fields: object) -> bytes:
    return _chat(messages=[{"role": "user", "content": "x", **fields}])


def _tool(parameters: object) -> bytes:
    function = {"name": "f", "parameters": parameters}
    return _chat(tools=[{"type": "function", "function": function}])


def _called(arguments: str, times: int = 1) -> bytes:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    said = {"role": "assistant", "content": "", "tool_calls": [call] * times}
    return _chat(messages=[USER, said, USER])


def _filled(part: str, size: int) -> str:
    return part * (size // len(part.encode()))


def _list(part: str, size: int, most: int = 60_000) -> str:
    return "[" + ",".join([part] * min(most, size // (len(part) + 1))) + "]"


def _schema(keys: int) -> dict[str, object]:
    return {f"k{i}": {"type": "number", "minimum": 0.1} for i in range(keys)}


# Path, kind, and what makes a body of about so many bytes.
_KINDS: dict[str, dict[str, Callable[[int], bytes]]] = {
    CHAT: {
        "text, blank": lambda n: _said(content=" " * n),
        "text, words": lambda n: _said(content=_filled("lorem ipsum ", n)),
        "text, special tokens": lambda n: _said(content=_filled("<|im_end|>", n)),
        "text, angles": lambda n: _said(content="<" * n),
        "text, escaped": lambda n: (
            b'{"messages":[{"role":"user","content":"' + b"\\u4e2d" * (n // 6) + b'"}]}'
        ),
        "text, quotes": lambda n: (
            b'{"messages":[{"role":"user","content":"' + b'\\"' * (n // 2) + b'"}]}'
        ),
        "name": lambda n: _said(name="n" * n),
        "content parts": lambda n: _said(
            content=[{"type": "text", "text": ""}] * min(n // 25, 30_000)
        ),
        "tiny messages": lambda n: _chat(messages=[USER] * min(n // 32, 38_000)),
        "many tools": lambda n: _chat(
            tools=[{"type": "function", "function": {"name": "f"}}] * min(n // 48, 24_000)
        ),
        "tool of many keys": lambda n: _tool(_schema(min(n // 40, 24_000))),
        "tool of floats": lambda n: _tool({"enum": [1.2345e-7] * min(n // 11, 190_000)}),
        "tool text": lambda n: _tool({"description": "d" * n}),
        "arguments, objects": lambda n: _called('{"a":' + _list("{}", n) + "}"),
        "arguments, too many": lambda n: _called('{"a":' + _list("{}", n, 1 << 30) + "}"),
        "arguments, text": lambda n: _called('{"a":"' + "b" * n + '"}'),
        "many calls": lambda n: _called('{"a":[1,2,3]}', min(n // 90, 18_000)),
        "template arguments": lambda n: _chat(
            chat_template_kwargs={"x": [1] * min(n // 2, 190_000)}
        ),
        "unknown field": lambda n: _chat(metadata=[{}] * min(n // 3, 90_000)),
        "too many values": lambda n: _chat(metadata=[[]] * (n // 3)),
        "an unknown name": lambda n: _chat(**{"x" * n: 1}),
        "large integers": lambda n: (
            b'{"metadata":['
            + b",".join([b"9" * 380] * (n // 381))
            + b'],"messages":[{"role":"user","content":"x"}]}'
        ),
        "stop strings": lambda n: _chat(
            stop=["a" * 1000 + chr(0x4E00 + i) for i in range(64)], n=64
        ),
        "stop list too long": lambda n: _chat(stop=["a"] * min(n // 4, 180_000)),
        "logit bias": lambda n: _chat(logit_bias={str(i): 1 for i in range(min(n // 9, 60_000))}),
        "stop tokens": lambda n: _chat(stop_token_ids=[5] * min(n // 2, 190_000)),
        "brackets": lambda n: b"[" * n,
        "quotes": lambda n: b'"' * n,
    },
    COMPLETE: {
        "text, one letter": lambda n: _completion("a" * n),
        "short prompts": lambda n: _completion(["hi"] * 64, n=1),
        "prompts of ids": lambda n: _completion([[7] * 2900] * 64),
        "mixed prompt": lambda n: _completion([7] * min(n // 2, 190_000) + ["x"]),
        "too many prompts": lambda n: _completion(["x"] * min(n // 4, 190_000)),
    },
    MESSAGES: {
        "tiny turns": lambda n: _chat(
            messages=[USER, {"role": "assistant", "content": ""}] * min(n // 70, 16_000)
        ),
        "tiny blocks": lambda n: _said(
            content=[
                {"type": "text", "text": ""},
                {"type": "tool_result", "tool_use_id": "", "content": ""},
            ]
            * min(n // 85, 12_000)
        ),
        "tools of Anthropic's": lambda n: _chat(
            tools=[{"name": "f", "input_schema": {}}] * min(n // 32, 30_000)
        ),
    },
    RESPOND: {
        "tiny items": lambda n: _json({"input": [USER] * min(n // 32, 38_000)}),
        "results of calls": lambda n: _json(
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}] * (n // 64)}
        ),
        "references": lambda n: _json({"input": [{"id": "msg_0"}] * min(n // 14, 60_000)}),
        "many response tools": lambda n: _json(
            {"input": "x", "tools": [{"type": "function", "name": "f"}] * min(n // 34, 24_000)}
        ),
        "words, cut": lambda n: _json({"input": _filled("lorem ipsum ", n), "truncation": "auto"}),
        "turns, cut": lambda n: _json(
            {"input": [USER | {"content": "cat " * 250}] * (n // 1032), "truncation": "auto"}
        ),
    },
    TOKENIZE: {
        "tokenize words": lambda n: _json({"prompt": _filled("cat ", n)}),
        "tokenize token_strs": lambda n: _json(
            {"prompt": _filled("q z ", min(n, 200_000)), "return_token_strs": True}
        ),
        "tokenize messages": lambda n: _json({"messages": [USER] * min(n // 32, 38_000)}),
    },
    DETOKENIZE: {
        "detokenize": lambda n: _json({"tokens": [2000] * min(n // 5, 190_000)}),
    },
}
