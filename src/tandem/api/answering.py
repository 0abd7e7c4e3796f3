"""From a call to its answer: its requests go through the port `Generator`, their outputs come back
as deltas, and leave as a stream of events or as one JSON answer.

Closing a generator is what frees its blocks in the engine, so it happens on every way out.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec import UNSET
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.beam_search import BeamSearcher
from tandem.api.call import Call, ResponseWriter, Scaled, StreamUsage
from tandem.api.choice import ChoiceDelta, ChoiceReader
from tandem.api.choice_deltas import choice_deltas, merged
from tandem.api.gang import Gang, GangResult
from tandem.api.ranking import Ranking
from tandem.api.responses import Usage
from tandem.api.search_request import beam_plan
from tandem.api.streaming import EventStream
from tandem.api.whole_response import TURN_BYTES, HeldResponse, Transcript, WholeResponse

# After so many tokens and alternatives of all choices, a few milliseconds of work, the loop goes
# round. Mostly it has long done so: each step of the engine brings some.
_TURN_VALUES = 1 << 10
_LARGE_EVENT_BYTES = 128 << 10


def respond(call: Call, writer: ResponseWriter, context: AppContext) -> Response:
    """The answer, as a stream or whole; nothing is computed before it is sent."""
    if call.scaling is not None:
        # Nothing can be sent before the winner is known, so a stream is made whole as well.
        media_type = EventStream.media_type if call.body.stream else "application/json"
        return WholeResponse(
            context.response_budget,
            lambda held: _scaled_answer(call, writer, context, held),
            call.late_headers,
            media_type,
        )
    if call.body.stream:
        events = _stream_events(call, writer, context)
        return EventStream(events, call.late_headers, writer.error_event)
    return WholeResponse(
        context.response_budget,
        lambda held: _whole_answer(call, writer, context, held),
        call.late_headers,
    )


async def _stream_events(
    call: Call, writer: ResponseWriter, context: AppContext
) -> AsyncGenerator[bytes, None]:
    includes_usage, continuous = _streamed_usage(call)
    meter = call.meter()
    async with aclosing(_call_deltas(call, context)) as deltas:
        async for delta in deltas:
            meter.count_delta(delta)
            usage: StreamUsage = None if includes_usage else UNSET
            data = writer.delta_event(delta, meter.usage() if continuous else usage)
            if data is not None:
                yield data
                if len(data) > _LARGE_EVENT_BYTES:
                    await asyncio.sleep(0)
    yield writer.stream_end(meter.usage(), includes_usage=includes_usage)


async def _whole_answer(
    call: Call, writer: ResponseWriter, context: AppContext, held: HeldResponse
) -> list[bytes]:
    """The answer in pieces."""
    meter = call.meter()
    held.grow(writer.shared_bytes)
    transcripts = _transcripts(call, writer)
    ranking = Ranking(call.search)
    computed = _call_deltas(call, context)
    if call.search.beams:
        computed = _beam_deltas(call, context, held)
    async with aclosing(computed) as deltas:
        async for delta in deltas:
            meter.count_delta(delta)
            ranking.add_delta(delta)
            scored = delta.prompt_scores is not None
            if scored:
                held.grow(writer.keep_prompt_scores(delta))
            logprobs = writer.logprobs_items(delta) if scored or delta.shown else ()
            held.grow(transcripts[delta.choice].add_delta(delta, logprobs))
    given = [each for each in transcripts if each.choice not in call.degradation.left_out]
    return await _answer_pieces(writer, ranking.best_of(given), meter.usage())


async def _scaled_answer(
    call: Call, writer: ResponseWriter, context: AppContext, held: HeldResponse
) -> list[bytes]:
    """The answer that a gang of samples comes to, in pieces: events where the client streams."""
    assert call.scaling is not None
    held.grow(writer.shared_bytes)
    request = call.lookups[0].request
    gang = Gang(
        context,
        call.scaling,
        request,
        call.presentation,
        call.caller,
        held,
        call.degradation,
        call.record,
    )
    result = await gang.run()
    if call.body.stream:
        return await _scaled_events(call, writer, result, held)
    transcripts = _transcripts(call, writer)
    for delta in result.deltas:
        logprobs = writer.logprobs_items(delta) if delta.shown else ()
        held.grow(transcripts[0].add_delta(delta, logprobs))
        await asyncio.sleep(0)
    return await _answer_pieces(writer, transcripts, result.usage, result.report)


async def _scaled_events(
    call: Call, writer: ResponseWriter, result: GangResult, held: HeldResponse
) -> list[bytes]:
    """The events of a gang's answer, of which the last but usage has the report."""
    includes_usage, continuous = _streamed_usage(call)
    usage: StreamUsage = None if includes_usage else UNSET
    last, events = result.deltas[-1], []
    for delta in result.deltas:
        scaling = result.report if delta is last else UNSET
        data = writer.delta_event(delta, result.usage if continuous else usage, scaling)
        if data is not None:
            events.append(data)
            held.grow(len(data))
        await asyncio.sleep(0)
    return [*events, writer.stream_end(result.usage, includes_usage=includes_usage)]


def _streamed_usage(call: Call) -> tuple[bool, bool]:
    """Whether a last event counts the tokens, and whether every event does."""
    options = call.body.stream_options
    if options is None:
        return False, False
    return bool(options.include_usage), bool(options.continuous_usage_stats)


def _transcripts(call: Call, writer: ResponseWriter) -> list[Transcript]:
    return [
        Transcript(
            choice, logprobs_lists=writer.logprobs_lists, keeps_tokens=call.returns_token_ids
        )
        for choice in range(len(call.lookups))
    ]


async def _answer_pieces(
    writer: ResponseWriter,
    transcripts: Sequence[Transcript],
    usage: Usage,
    scaling: Scaled = UNSET,
) -> list[bytes]:
    pieces: list[bytes] = []
    encoded_bytes = 0
    for transcript in transcripts:
        if pieces:
            pieces.append(b",")
        written = writer.choice_pieces(transcript)
        pieces += written
        encoded_bytes += sum(map(len, written))
        if encoded_bytes > TURN_BYTES:
            encoded_bytes = 0
            await asyncio.sleep(0)
    head, tail = writer.answer_frame(usage, scaling)
    return [*head, *pieces, *tail]


async def _call_deltas(call: Call, context: AppContext) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of all choices, as they come."""
    readers = [
        ChoiceReader(choice, context.text, call.presentation) for choice in range(len(call.lookups))
    ]
    streams = [
        choice_deltas(lookup, reader, call.caller, call.degradation)
        for lookup, reader in zip(call.lookups, readers, strict=True)
    ]
    alternatives = call.lookups[0].request.sampling.top_logprobs or 0
    values = 0
    async with aclosing(merged(streams)) as deltas:
        async for delta in deltas:
            if call.record is not None:
                call.record.note_delta(delta)
            if delta.finish_reason == "tool_calls":
                tools = readers[delta.choice].called_tools
                context.generator.tools_called(call.caller, tools)
            yield delta
            values += len(delta.tokens) + len(delta.shown) * (1 + alternatives)
            if values > _TURN_VALUES:
                values = 0
                await asyncio.sleep(0)


async def _beam_deltas(
    call: Call, context: AppContext, held: HeldResponse
) -> AsyncGenerator[ChoiceDelta, None]:
    """The answers of a beam search, prompt by prompt, each in one delta."""
    shown = call.search.shown
    for first in range(0, len(call.lookups), shown):
        request = call.lookups[first].request
        plan = beam_plan(call.body, request.sampling, call.search.beams)
        searcher = BeamSearcher(context.generator, plan, request, call.caller, held)
        outputs = (await searcher.run())[:shown]
        # A deadline may leave fewer than are wanted.
        call.degradation.left_out.update(range(first + len(outputs), first + shown))
        for choice, output in enumerate(outputs, first):
            reader = ChoiceReader(choice, context.text, call.presentation)
            delta = reader.delta_of(output)
            if not call.search.shows_logprobs:
                delta.shown = ()
            if call.record is not None:
                call.record.note_delta(delta)
            if delta.finish_reason == "tool_calls":
                context.generator.tools_called(call.caller, reader.called_tools)
            yield delta
            await asyncio.sleep(0)
