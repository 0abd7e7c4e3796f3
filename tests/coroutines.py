"""Tests that are coroutines: each runs on an event loop of its own, as processes do."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

# What a test waits for has its own, shorter patience.
LONGEST_S = 150.0

# Of the test that runs: what it leaves open when it fails would keep the process from ending.
_to_close: list[Callable[[], Awaitable[object]]] = []


def close_at_end(close: Callable[[], Awaitable[object]]) -> None:
    """Have it called on the loop of this test, whatever becomes of the test."""
    _to_close.append(close)


async def close_all() -> None:
    """What is still open, the last first."""
    while _to_close:
        await _to_close.pop()()


def run_coroutine(test: Coroutine[Any, Any, None]) -> None:
    """Within its time, and without a failure in any callback."""
    failures: list[dict[str, Any]] = []

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: failures.append(each))
        try:
            async with asyncio.timeout(LONGEST_S):
                await test
        finally:
            await close_all()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
    assert not failures
