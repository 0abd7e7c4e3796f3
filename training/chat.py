"""Chats as weighted text: what the template writes, and how much each part counts in the loss.

The same markup as `chat_template.jinja`, written twice because training has to know which tokens
the model is to learn; `check.py` compares the two.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.bench.tasks.tool_call import NO_TOOL_REPLY

Message = dict[str, Any]

# What opens each of the assistant's turns, always a part of its own.
ASSISTANT = "<|im_start|>assistant\n"
# And what opens a call.
CALL = "<tool_call>"

# Whether to call at all is decided by one token, and only the list of tools says how.
DECISION_WEIGHT = 6.0
# Tools and parameters go by other names in each prompt and have to be read there.
NAME_WEIGHT = 4.0
_CALL_NAMES = re.compile(r'(?<=")((?<={"name": ")\w+|(?!name|arguments)\w+(?=": ))')


@dataclass(frozen=True)
class Part:
    """A piece of text and the weight of its tokens in the loss (0: given, not learnt)."""

    text: str
    weight: float = 0.0


def user(content: str) -> Part:
    return Part(f"<|im_start|>user\n{content}<|im_end|>\n")


def system(content: str) -> Part:
    return Part(f"<|im_start|>system\n{content}<|im_end|>\n")


def assistant(reply: Iterable[Part]) -> list[Part]:
    """The assistant's turn; its end is learnt like its words."""
    return [Part(ASSISTANT), *reply, Part("<|im_end|>", 1.0), Part("\n")]


def tool_header(tools: Sequence[dict[str, Any]]) -> Part:
    """The system turn that lists the tools."""
    listed = "".join(f"\n{json.dumps(tool)}" for tool in tools)
    how = "To call one, reply with its name and arguments as JSON."
    return system(f"# Tools\n<tools>{listed}\n</tools>\n{how}")


def turns(messages: Iterable[Message], weight: float = 1.0) -> list[Part]:
    """Messages of a chat, with everything the assistant says learnt."""
    parts: list[Part] = []
    for message in messages:
        if message["role"] == "user":
            parts.append(user(message["content"]))
        elif message["role"] == "tool":
            parts.append(user(f"<tool_response>\n{message['content']}\n</tool_response>"))
        else:
            parts += assistant(_spoken(message, weight))
    return parts


def _spoken(message: Message, weight: float) -> list[Part]:
    if message["content"] == NO_TOOL_REPLY:
        return [Part(NO_TOOL_REPLY[:1], DECISION_WEIGHT), Part(NO_TOOL_REPLY[1:], weight)]
    written = [message["content"]] if message["content"] else []
    for entry in message.get("tool_calls", ()):
        name, arguments = entry["function"]["name"], json.dumps(entry["function"]["arguments"])
        body = f'{{"name": "{name}", "arguments": {arguments}}}'
        written.append(f"<tool_call>\n{body}\n</tool_call>")
    # The captured pieces, every second one, are the name of the tool and of its parameters.
    pieces = _CALL_NAMES.split("\n".join(written))
    parts = [Part(piece, NAME_WEIGHT if i % 2 else weight) for i, piece in enumerate(pieces)]
    if parts[0].text.startswith(CALL):
        rest = Part(parts[0].text.removeprefix(CALL), weight)
        return [Part(CALL, DECISION_WEIGHT), rest, *parts[1:]]
    return parts
