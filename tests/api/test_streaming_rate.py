"""What does the front door cost a token? In process, without sockets: `pytest -s` prints it."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.facts.request import FinishReason, Request, TokenLogprobs, TokenOutput
from tandem.facts.serving import ANYBODY, Caller, ModelCard

# Far below what any machine does; a stall or quadratic work would fall under it.
LEAST_EVENTS_PER_S = 1000
TOKENS = 4000


class FastFakeGenerator:
    """Says the same token at once, as often as asked."""

    ready = True
    failed = False
    card = ModelCard(("fake",), TOKENS * 2, 343, (2,), 0)

    async def generate(
        self, request: Request, caller: Caller = ANYBODY
    ) -> AsyncGenerator[TokenOutput, None]:
        logprobs = ()
        if request.sampling.top_logprobs is not None:
            logprobs = (TokenLogprobs(-1.0, 1, ((260, -1.0), (261, -2.0))),)
        for place in range(request.sampling.max_tokens):
            last = place + 1 == request.sampling.max_tokens
            yield TokenOutput((300,), logprobs, FinishReason.LENGTH if last else None)
            # One turn of the loop, as a real engine's queue would take.
            await asyncio.sleep(0)

    def allowance(self, account: str) -> None:
        pass

    def tools_called(self, caller, tools) -> None: ...

    def satisfied(self, request_id: str) -> None:
        pass

    @property
    def model_identity(self) -> str | None:
        return None

    def metric_families(self) -> tuple[()]:
        return ()


async def stream(app, body: dict) -> int:
    """Calls the application as a server would; counts the events."""
    sent = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    events = 0

    async def receive():
        if sent:
            return sent.pop()
        return await asyncio.Event().wait()

    async def send(message):
        nonlocal events
        events += message.get("body", b"").startswith(b"data: {")

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "headers": [(b"content-type", b"application/json")],
        "query_string": b"",
    }
    await app(scope, receive, send)
    return events


def test_events_a_second(text):
    app = build_app(FastFakeGenerator(), text, ApiConfig())
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "max_tokens": TOKENS,
    }
    variants = {
        "plain": {},
        "stop strings": {"stop": ["zebra", "\n\n"]},
        "tools": {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "top_logprobs 2": {"logprobs": True, "top_logprobs": 2},
        "n = 4": {"n": 4, "max_tokens": TOKENS // 4},
    }
    for name, fields in variants.items():
        began_s = time.perf_counter()
        events = asyncio.run(stream(app, body | fields))
        rate = events / (time.perf_counter() - began_s)
        print(f"{name}: {rate:.0f} events/s")
        assert events == TOKENS
        assert rate > LEAST_EVENTS_PER_S
