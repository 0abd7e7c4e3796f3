"""How long does one call hold an event loop? Measured from inside of it."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

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
