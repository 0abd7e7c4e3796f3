"""The heaviest bodies of each kind that a server of a given context accepts to read, or nearly."""

import json
from collections.abc import Callable

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"
USER = {"role": "user", "content": "hi"}
Body = tuple[str, bytes]


def heavy_bodies(context_tokens: int) -> dict[str, Body]:
    """Path and body by kind, each about as large as the default limit of bodies lets it be."""
    size = (1 << 20) + 16 * context_tokens - (8 << 10)
    return {name: (path, make(size)) for name, (path, make) in _KINDS.items()} | {
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


_KINDS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "text, one letter": (COMPLETE, lambda n: _completion("a" * n)),
    "text, blank": (CHAT, lambda n: _said(content=" " * n)),
    "text, words": (CHAT, lambda n: _said(content=_filled("lorem ipsum ", n))),
    "text, special tokens": (CHAT, lambda n: _said(content=_filled("<|im_end|>", n))),
    "text, angles": (CHAT, lambda n: _said(content="<" * n)),
    "text, escaped": (
        CHAT,
        lambda n: b'{"messages":[{"role":"user","content":"' + b"\\u4e2d" * (n // 6) + b'"}]}',
    ),
    "text, quotes": (
        CHAT,
        lambda n: b'{"messages":[{"role":"user","content":"' + b'\\"' * (n // 2) + b'"}]}',
    ),
    "name": (CHAT, lambda n: _said(name="n" * n)),
    "content parts": (
        CHAT,
        lambda n: _said(content=[{"type": "text", "text": ""}] * min(n // 25, 30_000)),
    ),
    "tiny messages": (CHAT, lambda n: _chat(messages=[USER] * min(n // 32, 38_000))),
    "many tools": (
        CHAT,
        lambda n: _chat(
            tools=[{"type": "function", "function": {"name": "f"}}] * min(n // 48, 24_000)
        ),
    ),
    "tool of many keys": (CHAT, lambda n: _tool(_schema(min(n // 40, 24_000)))),
    "tool of floats": (CHAT, lambda n: _tool({"enum": [1.2345e-7] * min(n // 11, 190_000)})),
    "tool text": (CHAT, lambda n: _tool({"description": "d" * n})),
    "arguments, objects": (CHAT, lambda n: _called('{"a":' + _list("{}", n) + "}")),
    "arguments, too many": (CHAT, lambda n: _called('{"a":' + _list("{}", n, 1 << 30) + "}")),
    "arguments, text": (CHAT, lambda n: _called('{"a":"' + "b" * n + '"}')),
    "many calls": (CHAT, lambda n: _called('{"a":[1,2,3]}', min(n // 90, 18_000))),
    "template arguments": (
        CHAT,
        lambda n: _chat(chat_template_kwargs={"x": [1] * min(n // 2, 190_000)}),
    ),
    "unknown field": (CHAT, lambda n: _chat(metadata=[{}] * min(n // 3, 90_000))),
    "too many values": (CHAT, lambda n: _chat(metadata=[[]] * (n // 3))),
    "an unknown name": (CHAT, lambda n: _chat(**{"x" * n: 1})),
    "large integers": (
        CHAT,
        lambda n: (
            b'{"metadata":['
            + b",".join([b"9" * 380] * (n // 381))
            + b'],"messages":[{"role":"user","content":"x"}]}'
        ),
    ),
    "stop strings": (
        CHAT,
        lambda n: _chat(stop=["a" * 1000 + chr(0x4E00 + i) for i in range(64)], n=64),
    ),
    "stop list too long": (CHAT, lambda n: _chat(stop=["a"] * min(n // 4, 180_000))),
    "logit bias": (
        CHAT,
        lambda n: _chat(logit_bias={str(i): 1 for i in range(min(n // 9, 60_000))}),
    ),
    "stop tokens": (CHAT, lambda n: _chat(stop_token_ids=[5] * min(n // 2, 190_000))),
    "short prompts": (COMPLETE, lambda n: _completion(["hi"] * 64, n=1)),
    "prompts of ids": (COMPLETE, lambda n: _completion([[7] * 2900] * 64)),
    "mixed prompt": (COMPLETE, lambda n: _completion([7] * min(n // 2, 190_000) + ["x"])),
    "too many prompts": (COMPLETE, lambda n: _completion(["x"] * min(n // 4, 190_000))),
    "tokenize words": (TOKENIZE, lambda n: _json({"prompt": _filled("cat ", n)})),
    "tokenize token_strs": (
        TOKENIZE,
        lambda n: _json({"prompt": _filled("q z ", min(n, 200_000)), "return_token_strs": True}),
    ),
    "tokenize messages": (TOKENIZE, lambda n: _json({"messages": [USER] * min(n // 32, 38_000)})),
    "detokenize": (DETOKENIZE, lambda n: _json({"tokens": [2000] * min(n // 5, 190_000)})),
    "brackets": (CHAT, lambda n: b"[" * n),
    "quotes": (CHAT, lambda n: b'"' * n),
}
