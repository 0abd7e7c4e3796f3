"""Who is generating for this call? Starts one sequence a choice, merges them, closes every one.

Closing a generator is what frees its blocks in the engine, so it happens on every way out.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from tandem.api.choice import ChoiceDelta, ChoiceReader
from tandem.facts.errors import EngineFailed
from tandem.facts.request import Request
from tandem.facts.serving import ANYBODY, Caller, Generator

Item = TypeVar("Item")


async def choice_deltas(
    generator: Generator, request: Request, reader: ChoiceReader, caller: Caller = ANYBODY
) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of one choice; the last one has a finish reason. Raises `TandemError`."""
    async with aclosing(generator.generate(request, caller)) as outputs:
        async for output in outputs:
            delta = reader.read(output)
            if delta.finish_reason is not None and output.finish_reason is None:
                generator.satisfied(request.request_id)
            yield delta
            if delta.finish_reason is not None:
                return
        raise EngineFailed("the answer broke off")


async def merged(
    streams: Sequence[AsyncGenerator[Item, None]],
) -> AsyncGenerator[Item, None]:
    """Items of all streams as they come; the first failure ends all of them."""
    if len(streams) == 1:
        try:
            async for item in streams[0]:
                yield item
        finally:
            await streams[0].aclose()
        return
    waiting = {place: asyncio.ensure_future(anext(s)) for place, s in enumerate(streams)}
    try:
        while waiting:
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            # In the order of the choices, so that equal timing gives equal streams.
            for place in [place for place, task in waiting.items() if task.done()]:
                try:
                    item = waiting.pop(place).result()
                except StopAsyncIteration:
                    continue
                waiting[place] = asyncio.ensure_future(anext(streams[place]))
                yield item
    finally:
        for task in waiting.values():
            task.cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        for stream in streams:
            await stream.aclose()
