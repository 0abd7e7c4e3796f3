"""Tests here may be coroutines: each runs on an event loop of its own, as processes do."""

import asyncio
import inspect
from typing import Any

import pytest
import uvloop

from tests.live.ends import PATIENCE_S, close_ends


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Within its time, and without a failure in any callback."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    failures: list[dict[str, Any]] = []
    arguments = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters
    }

    async def bounded() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, each: failures.append(each))
        try:
            async with asyncio.timeout(PATIENCE_S):
                await pyfuncitem.obj(**arguments)
        finally:
            await close_ends()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())
    assert not failures
    return True
