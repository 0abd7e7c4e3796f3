"""Drawn conversations give the same tokens through every door: chat, Responses and Anthropic's
Messages, whole and streamed, and completions of the prompt that /tokenize renders.

The engine and the bundled model are real. TANDEM_SEEDS=all draws a thousand conversations.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import httpx2
import pytest

from tandem.api.app import build_app
from tandem.bench.tasks.tool_call import tool_call
from tandem.config.options import ServeOptions
from tandem.facts.request import Request
from tandem.live.processes.server import assemble
from tests.api.test_messages_api import calls_of, events_in, put_together, texts_of
from tests.api.test_two_doors import chat_streamed, chat_whole
from tests.api.test_two_doors import streamed as response_streamed
from tests.api.test_two_doors import whole as response_whole
from tests.seeds import seeds

CONVERSATIONS = 25
CHUNKS = seeds(1, 40)
AT_ONCE = 4
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS = "/v1/completions"
SAYINGS = (
    "Hello!", "Tell me a story.", "What is 17 + 25?", "Who are you?", "日本 🎉 naïve", "two\nlines",
    " blank ", "<|im_end|>", "Once upon a time there was a fox.", "Ω≈ç√ — “so”", "Thank you!",
)  # fmt: skip
STOPS = ("the", " a", ".", "o", "\n", "nothing stops here", "é")


class Recording:
    """A generator that remembers of each request what was asked and what was drawn."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator, name)

    async def generate(self, request: Request, *caller: Any) -> AsyncIterator[Any]:
        call = request.request_id.rpartition("-")[0]
        assert call not in self.requests
        self.requests[call], tokens = request, []
        self.tokens[call] = tokens
        outputs = self._generator.generate(request, *caller)
        try:
            async for output in outputs:
                tokens += output.tokens
                yield output
        finally:
            await outputs.aclose()


@dataclass
class Drawn:
    """The same conversation in the words of each API, and how it is to be answered."""

    messages: list[dict] = field(default_factory=list)
    items: list[dict] = field(default_factory=list)
    turns: list[dict] = field(default_factory=list)
    system: str = ""
    tools: list[dict] = field(default_factory=list)
    max_tokens: int = 16
    sampling: dict = field(default_factory=dict)
    stops: list[str] = field(default_factory=list)

    @property
    def greedy(self) -> bool:
        return self.sampling["temperature"] == 0

    def ask(self, texts: list[str], results: list[str]) -> None:
        """What the user says, after the results of tools that were called."""
        blocks = []
        for number, result in enumerate(results):
            self.messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
            output = {"call_id": f"c{number}", "output": result}
            self.items.append({"type": "function_call_output", **output})
            block = {"tool_use_id": f"c{number}", "content": result}
            blocks.append({"type": "tool_result", **block})
        parts = [{"type": "text", "text": text} for text in texts]
        self.turns.append({"role": "user", "content": blocks + parts})
        content: Any = texts[0] if len(texts) == 1 else parts
        self.messages.append({"role": "user", "content": content})
        parts = [{"type": "input_text", "text": text} for text in texts]
        self.items.append({"role": "user", "content": parts})

    def answer(self, text: str, calls: list[tuple[str, dict]]) -> None:
        """What the model has said, and called."""
        made, blocks = [], [{"type": "text", "text": text}]
        part = {"type": "output_text", "text": text, "annotations": []}
        self.items.append({"type": "message", "role": "assistant", "content": [part]})
        for number, (name, arguments) in enumerate(calls):
            function = {"name": name, "arguments": json.dumps(arguments)}
            made.append({"id": f"c{number}", "type": "function", "function": function})
            self.items.append({"type": "function_call", "call_id": f"c{number}", **function})
            call = {"id": f"c{number}", "name": name, "input": arguments}
            blocks.append({"type": "tool_use", **call})
        self.turns.append({"role": "assistant", "content": blocks})
        message = {"role": "assistant", "content": text}
        self.messages.append(message | ({"tool_calls": made} if made else {}))

    @property
    def chat_messages(self) -> list[dict]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.messages]

    @property
    def chat_tools(self) -> dict:
        tools = [{"type": "function", "function": tool} for tool in self.tools]
        return {"tools": tools} if tools else {}


def drawn(number: int) -> Drawn:
    """Some have tools and a request for one of them, as the model was trained for; some are
    sampled, and some have stop strings."""
    rng = Random(f"doors {number}")
    made = Drawn(system=rng.choice(("", "", "Be kind.", "Answer in one sentence. 日本")))
    asked = [rng.choice(SAYINGS)]
    if rng.random() < 0.5:
        task = tool_call(rng)
        asked = [task.messages[-1]["content"]] if task.messages[-1]["role"] == "user" else asked
        made.tools = [tool["function"] for tool in task.tools]
    results: list[str] = []
    for _ in range(rng.choice((0, 0, 1, 2))):
        made.ask([rng.choice(SAYINGS) for _ in range(rng.choice((1, 1, 2)))], results)
        names = [tool["name"] for tool in made.tools]
        calls = [(name, {"q": rng.choice(SAYINGS)}) for name in names if rng.random() < 0.3]
        made.answer(rng.choice(SAYINGS), calls)
        results = [rng.choice(("42", '{"ok": true}', "日本")) for _ in calls]
    made.ask(asked, results)
    made.max_tokens = rng.randint(1, 28)
    made.sampling = {"temperature": rng.choice((0, 0, 0.7, 1.3)), "top_p": rng.choice((1, 0.9))}
    made.stops = rng.sample(STOPS, rng.randint(1, 3)) if rng.random() < 0.3 else []
    return made


@dataclass(frozen=True)
class Answer:
    """What a client sees: text, calls, and whether the answer was cut at its longest. `call` names
    what was drawn for it."""

    call: str
    text: str
    calls: list[tuple[str, Any]]
    is_cut: bool

    @property
    def seen(self) -> tuple:
        return self.text, self.calls, self.is_cut


@dataclass(frozen=True)
class Doors:
    """An application over the bundled model, and what its engine draws."""

    http: httpx2.AsyncClient
    recording: Recording

    async def post(self, path: str, body: dict) -> httpx2.Response:
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, (path, response.text)
        return response

    async def answers(self, asked: Drawn, seed: int) -> dict[str, Answer]:
        """Through every door that has all of what is asked for."""
        found = {}
        for stream in (False, True):
            name = "streamed" if stream else "whole"
            found[f"chat {name}"] = await self.chat(asked, seed, stream)
            found[f"completion {name}"] = await self.completion(asked, seed, stream)
            found[f"message {name}"] = await self.message(asked, stream)
            # It knows no stop strings.
            if not asked.stops:
                found[f"response {name}"] = await self.response(asked, seed, stream)
        return found

    async def chat(self, asked: Drawn, seed: int, stream: bool) -> Answer:
        body = {"messages": asked.chat_messages, **asked.chat_tools, **asked.sampling}
        body |= {"max_completion_tokens": asked.max_tokens, "seed": seed, "stream": stream}
        answer = await self.post(CHAT, body | ({"stop": asked.stops} if asked.stops else {}))
        told = (chat_streamed if stream else chat_whole)(answer)
        return _openai_answer(_id_in(answer, stream), told)

    async def response(self, asked: Drawn, seed: int, stream: bool) -> Answer:
        body = {"input": asked.items, "instructions": asked.system, **asked.sampling}
        body["tools"] = [{"type": "function", **tool} for tool in asked.tools]
        body |= {"max_output_tokens": asked.max_tokens, "seed": seed, "stream": stream}
        answer = await self.post(RESPONSES, body)
        if not stream:
            return _openai_answer(answer.json()["id"], response_whole(answer))
        begun = json.loads(answer.text.partition("\ndata: ")[2].partition("\n\n")[0])
        return _openai_answer(begun["response"]["id"], response_streamed(answer))

    async def message(self, asked: Drawn, stream: bool) -> Answer:
        body = {"messages": asked.turns, "max_tokens": asked.max_tokens, **asked.sampling}
        body |= {"system": asked.system} if asked.system else {}
        body["tools"] = [
            {
                "name": tool["name"],
                "description": tool.get("description"),
                "input_schema": tool["parameters"],
            }
            for tool in asked.tools
        ]
        body |= {"stop_sequences": asked.stops, "stream": stream}
        answer = await self.post(MESSAGES, body)
        told = put_together(events_in(answer.text)) if stream else answer.json()
        is_cut = told["stop_reason"] == "max_tokens"
        return Answer(told["id"], texts_of(told), calls_of(told), is_cut)

    async def completion(self, asked: Drawn, seed: int, stream: bool) -> Answer:
        rendered = {"messages": asked.chat_messages, **asked.chat_tools}
        prompt = (await self.post("/tokenize", rendered)).json()["tokens"]
        body = {"prompt": prompt, "max_tokens": asked.max_tokens, "seed": seed, **asked.sampling}
        body |= {"stop": asked.stops, "stream": stream}
        answer = await self.post(COMPLETIONS, body)
        choices = [each["choices"][0] for each in _events_of(answer, stream)]
        text = "".join(each["text"] for each in choices)
        return Answer(_id_in(answer, stream), text, [], choices[-1]["finish_reason"] == "length")


def _events_of(answer: httpx2.Response, stream: bool) -> list[dict]:
    if not stream:
        return [answer.json()]
    return [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n")[:-2]]


def _id_in(answer: httpx2.Response, stream: bool) -> str:
    return _events_of(answer, stream)[0]["id"]


def _openai_answer(call: str, told: tuple) -> Answer:
    _, text, calls, is_cut = told
    return Answer(call, text, [(name, json.loads(made)) for name, made in calls], is_cut)


@asynccontextmanager
async def open_doors() -> AsyncIterator[Doors]:
    options = ServeOptions(max_num_seqs=32, threads=1, kv_cache_memory="64MiB")
    server = assemble(None, options)
    recording = Recording(server.worker)
    transport = httpx2.ASGITransport(app=build_app(recording, server.text, server.api))
    await server.worker.start()
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            yield Doors(http, recording)
    finally:
        await server.worker.stop()


async def compare(doors: Doors, number: int) -> None:
    asked = drawn(number)
    answers = await doors.answers(asked, seed=number)
    recording, chat = doors.recording, answers["chat whole"]
    request, tokens = recording.requests[chat.call], recording.tokens[chat.call]
    for name, answer in answers.items():
        theirs, place = recording.requests[answer.call], (number, name)
        assert theirs.prompt_tokens == request.prompt_tokens, place
        is_message = name.startswith("message")
        sampling = replace(theirs.sampling, seed=number) if is_message else theirs.sampling
        assert sampling == request.sampling, place
        if is_message and not asked.greedy:
            # Anthropic's API knows no seed.
            continue
        others = recording.tokens[answer.call]
        # Some tokens more may be drawn before a reader has found the string that ends an answer.
        most = min(len(tokens), len(others)) if asked.stops else len(tokens)
        assert list(others[:most]) == list(tokens[:most]), place
        assert asked.stops or len(others) == most, place
        if not name.startswith("completion"):
            assert answer.seen == chat.seen, place
        elif not asked.tools:
            assert (answer.text, answer.is_cut) == (chat.text, chat.is_cut), place


@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_drawn_conversations_are_the_same_through_every_door(chunk):
    places = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with places:
            await compare(doors, number)

    async with open_doors() as doors, asyncio.TaskGroup() as group:
        for number in range(chunk * CONVERSATIONS, (chunk + 1) * CONVERSATIONS):
            group.create_task(one(number))
