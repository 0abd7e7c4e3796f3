"""A client sends the heaviest bodies of each kind, or asks for the heaviest answers: the event loop
serves others meanwhile."""

import asyncio
import gc
import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from tandem.api.app import build_app
from tandem.api.config import ApiConfig
from tandem.text.model import TextModel
from tests.api.server import serving
from tests.attacks.heavy_bodies import heavy_bodies
from tests.attacks.long_answers import LongWinded, long_answers

TICK_S = 0.001


class StallMeter:
    """An application around another that looks, all the while, how late its loop's timers are.

    A gap counts as the lesser of its wall and its processor time: the first counts what other
    programs of the machine do, the second what threads do beside the loop.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ticking: asyncio.Task[None] | None = None
        self.longest_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._tick())
        await self._app(scope, receive, send)

    async def _tick(self) -> None:
        while True:
            wall_s, cpu_s = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_S)
            gap_s = min(time.perf_counter() - wall_s, time.process_time() - cpu_s)
            self.longest_s = max(self.longest_s, gap_s - TICK_S)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """`longest_s` is of this block then."""
        self.longest_s = 0.0
        yield


# 20 ms is what a quiet machine keeps; tokenising anything of these on the loop takes seconds.
BAR_S = 0.06
TRIES = 3
# The kinds that cost most, of each way through the code; the longer context alone has them all.
KINDS = (
    *("text, special tokens", "text, words", "tiny messages", "many tools", "tool of many keys"),
    *("many calls", "arguments, objects", "stop strings", "logit bias", "mixed prompt"),
    *("tokenize messages", "detokenize", "n=64 over ids", "echoed text and ids", "quotes"),
    *("20 alternatives", "20 alternatives, completion", "no alternatives, n=64"),
    *("prompt repeated", "prompt repeated, streamed"),
)


@pytest.fixture(scope="module")
def server(text: TextModel) -> Iterator[tuple[StallMeter, int, dict]]:
    context_tokens = 32_768
    generator = LongWinded(text)
    generator.tokens_per_output = 32
    generator._card = replace(generator.card, context_tokens=context_tokens)
    meter = StallMeter(build_app(generator, text, ApiConfig()))
    # As the server does at its start: the collector need not go through what was made before.
    gc.freeze()
    with serving(meter) as port:
        yield meter, port, heavy_bodies(context_tokens) | long_answers(context_tokens // 2)
    gc.unfreeze()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_holds_the_loop(server, kind):
    meter, port, bodies = server
    path, body = bodies[kind]
    stalls_s = []
    # A neighbour's processes may take both cores at a bad moment, though never thrice.
    for _ in range(TRIES):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with meter.watching():
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
        connection.close()
        assert response.status in (200, 400, 413), kind
        stalls_s.append(meter.longest_s)
        if meter.longest_s < BAR_S:
            return
    pytest.fail(f"{kind}: the loop was held {stalls_s} s")
