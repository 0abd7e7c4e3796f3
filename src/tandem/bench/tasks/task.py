"""One task of the bundled suites: what to ask, what is right, and whether a reply is.

Here are also the data files that tasks are made of.

A task is made from a `random.Random` and judged from text alone, so the same seed asks the same
questions of any server, and the same generators feed the training of the bundled model.
"""

import json
import re
import tomllib
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent / "data"


def read_data(name: str) -> Mapping[str, Any]:
    """One of the TOML files of `data`. Lists keep their order: seeded tasks rest on it."""
    return tomllib.loads((_DATA / name).read_text(encoding="utf-8"))


_WORDS = read_data("words.toml")
# What the names and values of the recall task are made of; the pools do not overlap.
ADJECTIVES: tuple[str, ...] = tuple(_WORDS["adjectives"].split())
NOUNS: tuple[str, ...] = tuple(_WORDS["nouns"].split())
VALUES: tuple[str, ...] = tuple(_WORDS["values"].split())


Message = dict[str, Any]
"""A chat message in the OpenAI shape: role, content, and tool_calls where there are some."""

HELD_OUT_SHARE = 0.1
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_TOLD, _AND = "says ", " and "
_ANSWER = re.compile(r"Answer:\s*(-?\d+)")


@dataclass(frozen=True)
class Task:
    """A question with a known answer.

    `answer` is the value, the number, or the canonical JSON of the call. Where the right reply is
    text without a call it is empty, or lists what the text has to name (`expected_values`).
    `reference` is one full reply that scores.
    """

    kind: str
    messages: tuple[Message, ...]
    answer: str
    reference: Message
    tools: tuple[dict[str, Any], ...] = field(default=())


def is_held_out(key: str) -> bool:
    """Whether examples with this key are kept from training, by a hash stable across processes."""
    return zlib.crc32(key.encode()) % 1000 < HELD_OUT_SHARE * 1000


def score(task: Task, text: str, tool_calls: Sequence[Mapping[str, Any]] = ()) -> bool:
    """Whether a reply is right; `tool_calls` are `{"name", "arguments"}`, parsed by the server.

    Where a server leaves the calls inside the text, they are read from there. Arguments may be a
    mapping or, as in the OpenAI shape, a JSON string.
    """
    if task.kind == "recall":
        return recalled_value(text) == task.answer.lower()
    if task.kind == "arithmetic":
        return last_answer(text) == task.answer
    calls = [canonical_call(call) for call in tool_calls] or calls_in(text)
    if not task.answer or task.answer.startswith(_TOLD):
        values = task.answer.removeprefix(_TOLD).split(_AND) if task.answer else []
        spoken = not calls and bool(text.strip()) and "<tool_call>" not in text
        return spoken and all(value.lower() in text.lower() for value in values)
    return calls == [task.answer]


def last_answer(text: str) -> str | None:
    """The number of a reply's last "Answer: N"; None without one."""
    found = _ANSWER.findall(text)
    return found[-1] if found else None


def expected_values(values: Sequence[str]) -> str:
    """The answer of a task whose reply has to name these values, as after a tool's result."""
    return _TOLD + _AND.join(values)


def recalled_value(text: str) -> str:
    """The value a reply to a recall question names: the words after its last "is"."""
    return re.split(r"\bis\b|:", text.strip().lower())[-1].strip(" .\n")


def calls_in(text: str) -> list[str]:
    """The calls written in a reply, in canonical JSON; an empty string for what does not parse."""
    return [_canonical_text(body) for body in _CALL.findall(text)]


def canonical_call(call: Mapping[str, Any]) -> str:
    """A call as JSON with sorted keys, so that equal calls are equal strings."""
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            return ""
    return json.dumps({"name": call.get("name"), "arguments": arguments}, sort_keys=True)


def _canonical_text(body: str) -> str:
    try:
        call = json.loads(body)
    except json.JSONDecodeError:
        return ""
    return canonical_call(call)
