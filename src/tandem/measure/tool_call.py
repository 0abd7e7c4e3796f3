"""Tool calls: tools in the prompt, a request, and the one call (or the plain words) it needs.

Calls copy their arguments from the request; a hash decides which requests are asked in training,
the others are held out.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from tandem.measure.intents import INTENTS, Intent, draw_slot
from tandem.measure.task import Message, Task, canonical_call, is_held_out

PLAIN_CHATS: tuple[tuple[str, str], ...] = (
    ("Hello!", "Hello! How can I help you today?"),
    ("Good morning!", "Good morning! What can I do for you?"),
    ("Thank you!", "You are welcome!"),
    ("Thanks for your help.", "You are welcome! Let me know if you need anything else."),
    ("Who are you?", "I am Tandem Mini, a small language model."),
    ("How are you?", "I am fine, thank you. How are you?"),
    ("Goodbye!", "Goodbye! Have a nice day."),
    ("Hi there", "Hi! How can I help you?"),
)
NO_TOOL_REPLY = "I am sorry, I do not have a tool for that."

_PLAIN_SHARE = 0.12
_MISSING_SHARE = 0.08
_AFTER_RESULT_SHARE = 0.25
_MOST_TOOLS = 4


@dataclass(frozen=True)
class Offer:
    """An intent as one prompt shows it: a tool name and a parameter name for each slot."""

    intent: Intent
    name: str
    parameter_of: dict[str, str]

    @property
    def signature(self) -> dict[str, Any]:
        """The tool as JSON, in the OpenAI shape."""
        described = {
            self.parameter_of[slot]: {"type": kind, "description": about}
            for slot, (kind, _, about) in self.intent.parameters.items()
        }
        parameters = {"type": "object", "properties": described, "required": list(described)}
        function = {
            "name": self.name,
            "description": self.intent.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}

    def call(self, slots: dict[str, str | int]) -> dict[str, Any]:
        arguments = {self.parameter_of[slot]: slots[slot] for slot in self.intent.parameters}
        return {"name": self.name, "arguments": arguments}


def tool_call(rng: Random, *, held_out: bool = True) -> Task:
    """A task with one to four tools; most need a call, some a plain reply.

    What is held out is the pair of a request's words and the tool that answers it.
    """
    while True:
        intents = rng.sample(INTENTS, rng.randint(1, _MOST_TOOLS))
        offers = [offer(rng, intent) for intent in intents]
        kind = rng.random()
        if kind < _PLAIN_SHARE:
            asked, reply = rng.choice(PLAIN_CHATS)
            return _task(offers, [_user(asked)], "", _assistant(reply))
        chosen = rng.choice(offers)
        slots = {slot: draw_slot(rng, slot) for slot in (*chosen.intent.parameters, "made")}
        request = rng.choice(chosen.intent.asks).format(**slots)
        if is_held_out(f"tool {chosen.name} {request}") == held_out:
            return _requested(kind - _PLAIN_SHARE, offers, chosen, slots, request)


def _requested(
    kind: float, offers: list[Offer], chosen: Offer, slots: dict[str, str | int], request: str
) -> Task:
    """The task of a request: its tool may be missing, or may have answered already."""
    messages, call = [_user(request)], chosen.call(slots)
    if kind < _MISSING_SHARE and len(offers) > 1:
        others = [entry for entry in offers if entry is not chosen]
        return _task(others, messages, "", _assistant(NO_TOOL_REPLY))
    if kind < _MISSING_SHARE + _AFTER_RESULT_SHARE:
        messages += [calling(call), result(chosen, slots)]
        return _task(offers, messages, "", _assistant(chosen.intent.reply.format(**slots)))
    return _task(offers, messages, canonical_call(call), calling(call))


def offer(rng: Random, intent: Intent) -> Offer:
    """An intent under one of its names."""
    names: dict[str, str] = {}
    for slot, (_, choices, _) in intent.parameters.items():
        names[slot] = rng.choice([name for name in choices if name not in names.values()])
    return Offer(intent, rng.choice(intent.names), names)


def calling(call: dict[str, Any]) -> Message:
    """The assistant's turn that makes a call."""
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": call}],
    }


def result(chosen: Offer, slots: dict[str, str | int]) -> Message:
    """The tool's turn."""
    content = {key: _plain(text.format(**slots)) for key, text in chosen.intent.result.items()}
    return {"role": "tool", "content": json.dumps(content)}


def _plain(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _task(offers: list[Offer], messages: list[Message], answer: str, reference: Message) -> Task:
    signatures = tuple(entry.signature for entry in offers)
    return Task("tool_call", tuple(messages), answer, reference, signatures)
