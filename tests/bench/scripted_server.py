"""A small real server that speaks the OpenAI stream and says what its script tells it to.

It runs in a thread of its own on a free port of the loopback, keeps every body it was sent, and
finds prompt prefixes again as a server with 16-token blocks would.
"""

import asyncio
import json
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

BLOCK_TOKENS = 16
VOCABULARY_TOKENS = 5000
# Ends every answer of which token ids are told.
END_ID = 1

Reply = Callable[[list[dict[str, Any]]], str | dict[str, Any]]


def echo(messages: list[dict[str, Any]]) -> str:
    return "You said: " + str(messages[-1]["content"])


@dataclass
class Script:
    """How the server behaves. `refuse(n)` is the status for the n-th request, 200 to serve it."""

    reply: Reply = echo
    first_token_s: float = 0.0
    token_gap_s: float = 0.0
    slots: int = 1000
    refuse: Callable[[int], int] = lambda _: 200
    break_stream: bool = False
    tells_vocabulary: bool = True
    has_tokenize: bool = True
    has_cache: bool = True
    tells_token_ids: bool = True
    api_key: str | None = None
    crumbs: int | None = None


@dataclass
class ScriptedServer:
    """Use with `with`; `url` is where it listens, `bodies` what it was asked, in order."""

    script: Script = field(default_factory=Script)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    aborted: int = 0

    def __enter__(self) -> "ScriptedServer":
        self._started = threading.Event()
        self._cached: set[tuple[int, ...]] = set()
        self._words_by_id: dict[int, str] = {}
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._slots = asyncio.Semaphore(self.script.slots)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_get("/tokenizer_info", self._tokenizer_info)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._started.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        card: dict[str, Any] = {"id": "scripted", "object": "model", "max_model_len": 4096}
        if self.script.tells_vocabulary:
            card["vocabulary_tokens"] = VOCABULARY_TOKENS
        return web.json_response({"object": "list", "data": [card]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.script.has_tokenize:
            raise web.HTTPNotFound
        ids = token_ids((await request.json())["prompt"])
        return web.json_response({"tokens": ids, "count": len(ids), "max_model_len": 4096})

    async def _detokenize(self, request: web.Request) -> web.Response:
        """Of tokens that answers had; the special one in front is shown."""
        words = {END_ID: "<end>", **self._words_by_id}
        ids = (await request.json())["tokens"]
        return web.json_response({"prompt": "".join(words[each] for each in ids).rstrip()})

    async def _tokenizer_info(self, _: web.Request) -> web.Response:
        return web.json_response({"added_tokens_decoder": {str(END_ID): {"special": True}}})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        key = self.script.api_key
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": {"message": "wrong API key"}}, status=401)
        status = self.script.refuse(len(self.bodies) - 1)
        if status != 200:
            return web.json_response({"error": {"message": "queue full"}}, status=status)
        answer = _Answer(self.script, body, self._cached_tokens(body))
        self._words_by_id |= {word_id(word): word for word in answer.words}
        try:
            async with self._slots:
                if not body.get("stream"):
                    return web.json_response(answer.whole())
                return await self._stream(request, answer)
        except (asyncio.CancelledError, ConnectionResetError):
            self.aborted += 1
            raise

    async def _stream(self, request: web.Request, answer: "_Answer") -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(self.script.first_token_s)
        for number, event in enumerate(answer.events()):
            if number:
                await asyncio.sleep(self.script.token_gap_s)
            if self.script.break_stream and number == 2:
                request.transport.close()
                return response
            payload = b"data: " + json.dumps(event).encode() + b"\n\n"
            step = self.script.crumbs or len(payload)
            for start in range(0, len(payload), step):
                await response.write(payload[start : start + step])
        await response.write(b"data: [DONE]\n\n")
        return response

    def _cached_tokens(self, body: dict[str, Any]) -> int:
        ids = prompt_ids(body)
        full = [tuple(ids[:end]) for end in range(BLOCK_TOKENS, len(ids), BLOCK_TOKENS)]
        hits = 0
        while hits < len(full) and full[hits] in self._cached:
            hits += 1
        self._cached.update(full)
        return hits * BLOCK_TOKENS


class _Answer:
    """What one request gets: its events, or the whole of it."""

    def __init__(self, script: Script, body: dict[str, Any], cached_tokens: int) -> None:
        self._chat = "messages" in body
        self._body = body
        said = script.reply(body["messages"]) if self._chat else _babble(body)
        self._calls: list[dict[str, Any]] = []
        if isinstance(said, dict):
            self._calls, said = said["tool_calls"], said.get("content", "")
        words = [f"{word} " for word in said.split(" ")] if said else []
        self.words = words[: body.get("max_tokens", 16)]
        if self.words:
            self.words[-1] = self.words[-1].rstrip()
        self._tells_ids = script.tells_token_ids and body.get("return_token_ids")
        self._usage = {
            "prompt_tokens": len(prompt_ids(body)),
            "completion_tokens": max(1, len(self.words)) * body.get("n", 1),
        }
        if script.has_cache:
            self._usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}

    def events(self) -> list[dict[str, Any]]:
        events = []
        for index in range(self._body.get("n", 1)):
            if self._chat:
                events.append(_piece(index, delta={"role": "assistant", "content": ""}))
            events += [self._word_event(index, word) for word in self.words]
            if self._calls:
                events.append(_piece(index, delta={"tool_calls": self._calls}))
            ending: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            if self._tells_ids:
                ending["token_ids"] = [END_ID]
            events.append(_piece(index, **ending, finish_reason="length"))
        events.append({"choices": [], "usage": self._usage})
        return events

    def whole(self) -> dict[str, Any]:
        text = "".join(self.words)
        message = {"role": "assistant", "content": text, "tool_calls": self._calls or None}
        said: dict[str, Any] = {"message": message} if self._chat else {"text": text}
        choices = [
            {"index": index, "finish_reason": "stop", **said}
            for index in range(self._body.get("n", 1))
        ]
        return {"choices": choices, "usage": self._usage}

    def _word_event(self, index: int, word: str) -> dict[str, Any]:
        ids = {"token_ids": [word_id(word)]} if self._tells_ids else {}
        if self._chat:
            return _piece(index, delta={"content": word}, **ids)
        logprobs = None
        if self._body.get("logprobs") is not None:
            logprobs = {
                "tokens": [word],
                "token_logprobs": [-0.5],
                "top_logprobs": [{word: -0.5, "other": -1.5}],
                "text_offset": [0],
            }
        return _piece(index, text=word, logprobs=logprobs, **ids)


def _piece(index: int, **fields: Any) -> dict[str, Any]:
    return {"id": "s", "choices": [{"index": index, "finish_reason": None, **fields}]}


def _babble(body: dict[str, Any]) -> str:
    return " ".join(f"w{number}" for number in range(body.get("max_tokens", 16)))


def prompt_ids(body: dict[str, Any]) -> list[int]:
    if "messages" in body:
        return token_ids(" ".join(str(message["content"]) for message in body["messages"]))
    prompt = body["prompt"]
    return prompt if isinstance(prompt, list) else token_ids(prompt)


def word_id(word: str) -> int:
    """Of a piece of an answer, with its space: other words, other ids."""
    return VOCABULARY_TOKENS + zlib.crc32(word.encode()) % (1 << 30)


def token_ids(text: str) -> list[int]:
    return [zlib.crc32(word.encode()) % VOCABULARY_TOKENS for word in text.split()]
