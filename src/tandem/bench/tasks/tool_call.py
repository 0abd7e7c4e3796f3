"""Tool calls: tools in the prompt, a request, and the one call (or the plain words) it needs.

Calls copy their arguments from the request; a hash decides which requests are asked in training,
the others are held out.
"""

import json
from dataclasses import dataclass
from random import Random
from typing import Any

from tandem.bench.tasks.task import (
    Message,
    Task,
    canonical_call,
    expected_values,
    is_held_out,
    read_data,
)

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
_AFTER_RESULT_SHARE = 0.25
_CONVERSED_RESULT_SHARE = 0.6
_MOST_TOOLS = 4
_RESULT_FORMS: tuple[dict[str, Any], ...] = ({}, {"separators": (",", ":")}, {"indent": 2})


@dataclass(frozen=True)
class Intent:
    """Something a user wants that one tool does. The tool goes by one of several names and so do
    its parameters: the model has to read the prompt rather than remember the tool.

    `parameters` maps a slot to (JSON type, names it may have, description); `asks` and `reply` are
    templates over slots, `result` over slots and "made", a fresh number.
    """

    names: tuple[str, ...]
    description: str
    parameters: dict[str, tuple[str, tuple[str, ...], str]]
    asks: tuple[str, ...]
    result: dict[str, str]
    reply: str


def _intent(entry: dict[str, Any]) -> Intent:
    """One of `tools.toml`."""
    parameters = {
        slot: (told["type"], tuple(told["names"]), told["description"])
        for slot, told in entry["parameters"].items()
    }
    return Intent(
        names=tuple(entry["names"]),
        description=entry["description"],
        parameters=parameters,
        asks=tuple(entry["asks"]),
        result=entry["result"],
        reply=entry["reply"],
    )


_TOOLS = read_data("tools.toml")
INTENTS: tuple[Intent, ...] = tuple(_intent(entry) for entry in _TOOLS["intents"])
_NUMBERS: dict[str, tuple[int, int, int]] = {
    slot: (low, below, step) for slot, (low, below, step) in _TOOLS["numbers"].items()
}


def draw_slot(rng: Random, slot: str) -> str | int:
    """A value for a slot, of the slot's JSON type."""
    if slot in _NUMBERS:
        low, below, step = _NUMBERS[slot]
        return rng.randrange(low, below, step)
    if slot == "time":
        return f"{rng.randrange(6, 23):02d}:{rng.choice(('00', '15', '30', '45'))}"
    if slot == "expression":
        return f"{rng.randrange(10, 1000)} {rng.choice('+-*')} {rng.randrange(10, 1000)}"
    pool: list[str] = _TOOLS["pools"][_TOOLS["same_pool"].get(slot, slot)]
    return rng.choice(pool)


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


@dataclass(frozen=True)
class Request:
    """What a user asks for, and the offered tool that does it."""

    text: str
    chosen: Offer
    slots: dict[str, str | int]

    @property
    def call(self) -> dict[str, Any]:
        names = self.chosen.parameter_of
        arguments = {names[slot]: self.slots[slot] for slot in self.chosen.intent.parameters}
        return {"name": self.chosen.name, "arguments": arguments}

    @property
    def spoken_result(self) -> str:
        """What the assistant says once the tool has answered."""
        return self.chosen.intent.reply.format(**self.slots)

    @property
    def told(self) -> list[str]:
        """The values that `spoken_result` has to name."""
        reply = self.chosen.intent.reply
        return [str(value) for slot, value in self.slots.items() if f"{{{slot}}}" in reply]


def tool_call(rng: Random, *, held_out: bool = True, missing_share: float = 0.0) -> Task:
    """A task with one to four tools; most need a call, some a plain reply.

    What is held out is the pair of a request's words and the tool that answers it. Of the
    requests, `missing_share` are for a tool that is not there.
    """
    # Drawn once: the loop below would otherwise favour kinds that are never refused.
    kind = rng.random()
    while True:
        intents = rng.sample(INTENTS, rng.randint(1, _MOST_TOOLS))
        offers = [offer(rng, intent) for intent in intents]
        if kind < _PLAIN_SHARE:
            asked, reply = rng.choice(PLAIN_CHATS)
            return _task(offers, [_user(asked)], "", _assistant(reply))
        request = _draw_request(rng, rng.choice(offers))
        if is_held_out(f"tool {request.chosen.name} {request.text}") == held_out:
            if len(offers) > 1 and rng.random() < missing_share:
                return _missing(offers, request)
            return _requested(offers, request, answered=kind < _PLAIN_SHARE + _AFTER_RESULT_SHARE)


def tool_conversation(
    rng: Random, exchanges: int, missing_share: float = 0.0
) -> tuple[list[dict[str, Any]], list[Message]]:
    """Tools and several requests in a row, all from the training half, with the results; so many of
    them for tools that are not there.

    One header for many calls: a training text of which more than a tenth is worth learning.
    """
    intents = rng.sample(INTENTS, rng.randint(1, _MOST_TOOLS))
    offers = [offer(rng, intent) for intent in intents]
    others = [intent for intent in INTENTS if intent not in intents]
    messages: list[Message] = []
    while exchanges:
        missing = missing_share > 0 and rng.random() < missing_share
        chosen = offer(rng, rng.choice(others)) if missing else rng.choice(offers)
        request = _draw_request(rng, chosen)
        if is_held_out(f"tool {request.chosen.name} {request.text}"):
            continue
        exchanges -= 1
        if missing:
            messages += [_user(request.text), _assistant(NO_TOOL_REPLY)]
            continue
        messages += [_user(request.text), calling(request.call)]
        if rng.random() < _CONVERSED_RESULT_SHARE:
            messages += [result(request), _assistant(request.spoken_result)]
    return [entry.signature for entry in offers], messages


def _draw_request(rng: Random, chosen: Offer) -> Request:
    slots = {slot: draw_slot(rng, slot) for slot in (*chosen.intent.parameters, "made")}
    return Request(rng.choice(chosen.intent.asks).format(**slots), chosen, slots)


def _missing(offers: list[Offer], request: Request) -> Task:
    """The task of a request whose tool is not there."""
    others = [entry for entry in offers if entry is not request.chosen]
    return _task(others, [_user(request.text)], "", _assistant(NO_TOOL_REPLY))


def _requested(offers: list[Offer], request: Request, *, answered: bool) -> Task:
    """The task of a request: to make the call, or to tell what the tool has answered."""
    messages, call = [_user(request.text)], request.call
    if answered:
        messages += [calling(call), result(request)]
        return _task(
            offers, messages, expected_values(request.told), _assistant(request.spoken_result)
        )
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


def result(request: Request) -> Message:
    """The tool's turn: JSON as programs write it in Python, in JavaScript, or for people. Which of
    them, the request's fresh number decides."""
    reported = request.chosen.intent.result.items()
    content = {key: _plain(text.format(**request.slots)) for key, text in reported}
    form = _RESULT_FORMS[int(request.slots["made"]) % len(_RESULT_FORMS)]
    return {"role": "tool", "content": json.dumps(content, **form)}


def _plain(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def _task(offers: list[Offer], messages: list[Message], answer: str, reference: Message) -> Task:
    signatures = tuple(entry.signature for entry in offers)
    return Task("tool_call", tuple(messages), answer, reference, signatures)
