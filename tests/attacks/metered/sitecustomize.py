"""Python loads this in every process that has its folder on PYTHONPATH: how long is the event loop
held? Each process keeps the longest time in a file of its own, whatever version it runs.

The file, `$TANDEM_METERED/<process id>`: the longest seconds as a double, which whoever reads may
set back to 0, then the command line.
"""

import asyncio
import mmap
import os
import struct
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

TICK_S = 0.001
HEAD = struct.Struct("d")


async def stalls_s() -> AsyncIterator[float]:
    """For how long this loop was held, again and again: how late its timers are.

    A gap counts as the lesser of its wall and its processor time: the first counts what other
    programs of the machine do, the second what threads do beside the loop.
    """
    while True:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        await asyncio.sleep(TICK_S)
        yield min(time.perf_counter() - wall_s, time.process_time() - cpu_s) - TICK_S


async def tick(page: mmap.mmap) -> None:
    async for stall_s in stalls_s():
        if stall_s > HEAD.unpack_from(page)[0]:
            HEAD.pack_into(page, 0, stall_s)


def metered_page(folder: Path) -> mmap.mmap:
    file = folder / str(os.getpid())
    file.write_bytes(HEAD.pack(0.0) + " ".join(sys.orig_argv).encode())
    with file.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), HEAD.size)


class MeteredRunner(asyncio.Runner):
    def run(self, coro: Coroutine[Any, Any, Any], **options: Any) -> Any:
        async def metered() -> Any:
            ticking = asyncio.create_task(tick(metered_page(Path(os.environ["TANDEM_METERED"]))))
            try:
                return await coro
            finally:
                ticking.cancel()

        return super().run(metered(), **options)


if "TANDEM_METERED" in os.environ:
    asyncio.Runner = asyncio.runners.Runner = MeteredRunner  # type: ignore[misc]
