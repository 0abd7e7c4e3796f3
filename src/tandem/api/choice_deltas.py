"""Deltas of choices, as streams: one choice from its request on (`choice_deltas`), and several
together (`merged`).

Closing a stream is what frees its blocks in the engine, so it happens on every way out.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeVar

from tandem.api.choice import ChoiceDelta, ChoiceReader
from tandem.api.degradation import Degradation
from tandem.api.response_cache import ResponseLookup
from tandem.facts.errors import EngineFailed, LeftOut
from tandem.facts.serving import Caller

Item = TypeVar("Item")


async def choice_deltas(
    lookup: ResponseLookup,
    reader: ChoiceReader,
    caller: Caller,
    degradation: Degradation,
) -> AsyncGenerator[ChoiceDelta, None]:
    """Generates one choice: the request of `lookup` goes to the engine here, unless its answer was
    found, and its tokens come back. The last delta has a finish reason; there is none of a choice
    that is left out, which the `degradation` of the call then has. Raises `TandemError`."""
    asking = replace(caller, end_finder=reader.end_finder) if reader.has_stops else caller
    try:
        async with aclosing(lookup.outputs(asking)) as outputs:
            async for output in outputs:
                if output.degraded:
                    degradation.cut(output.degraded)
                if output.cascade is not None:
                    degradation.answered_by(reader.choice, output.cascade.model)
                delta = reader.delta_of(output)
                lookup.add(output)
                if delta.finish_reason is not None:
                    lookup.complete(output)
                    if output.finish_reason is None and lookup.found is None:
                        lookup.generator.satisfied(lookup.request.request_id)
                yield delta
                if delta.finish_reason is not None:
                    return
            raise EngineFailed("the answer broke off")
    except LeftOut:
        degradation.left_out.add(reader.choice)


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
