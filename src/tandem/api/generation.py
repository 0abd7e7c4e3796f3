"""A generating call, from its body to its answer: its requests go through the port `Generator`,
their outputs come back as deltas, and leave as a stream of events or as one JSON answer.

Closing a generator is what frees its blocks in the engine, so it happens on every way out.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tandem.api.access_log import RECORD, AnswerRecord, CallRecord
from tandem.api.app_context import SYSTEM_FINGERPRINT, AppContext
from tandem.api.choice import ChoiceDelta, ChoiceReader, Presentation, UsageMeter
from tandem.api.clock_and_entropy import fresh_id, unix_time_s
from tandem.api.prompts import Tokens
from tandem.api.request_body import read_body
from tandem.api.requests import GenerationBody
from tandem.api.response_cache import CacheUse
from tandem.api.responses import Usage
from tandem.api.sampling_request import requests_of, sampling_parameters, stop_strings
from tandem.api.streaming import DONE, EventStream
from tandem.api.whole_response import TURN_BYTES, HeldResponse, Transcript, WholeResponse
from tandem.facts.errors import EngineFailed, InvalidRequest
from tandem.facts.rate_limits import CallSize
from tandem.facts.request import Request
from tandem.facts.serving import Caller, ServedBy
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.tools import ToolFormat

Item = TypeVar("Item")
Body = TypeVar("Body", bound=GenerationBody)
StreamUsage = Usage | UnsetType | None

# After so many tokens and alternatives of all choices, a few milliseconds of work, the loop goes
# round. Mostly it has long done so: each step of the engine brings some.
_TURN_VALUES = 1 << 10
_LARGE_EVENT_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Call:
    """A call ready to run: choice c is `requests[c]`, for prompt c // choices_per_prompt."""

    body: GenerationBody
    answer_id: str
    created_s: int
    model: str
    prompts: Sequence[Tokens]
    choices_per_prompt: int
    requests: Sequence[Request]
    presentation: Presentation
    caller: Caller
    cache_use: CacheUse
    record: AnswerRecord | None = None

    @property
    def returns_token_ids(self) -> bool:
        return bool(self.body.return_token_ids)

    @property
    def head_fields(self) -> dict[str, Any]:
        """What each of its answers and events opens with."""
        return {
            "id": self.answer_id,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }

    def prompt_number(self, choice: int) -> int:
        return choice // self.choices_per_prompt

    def token_ids(self, tokens: Tokens) -> list[int] | UnsetType:
        """The ids where the client wants them."""
        return list(tokens) if self.returns_token_ids else UNSET

    def is_silent(self, delta: ChoiceDelta) -> bool:
        """Whether the delta holds nothing that a client would see."""
        return not (
            delta.text
            or delta.tool_calls
            or delta.shown
            or delta.finish_reason
            or (delta.tokens and self.returns_token_ids)
        )


class ResponseWriter(Protocol):
    """Puts deltas into the words of one API: `ChatWriter` or `CompletionWriter`."""

    def delta_event(self, delta: ChoiceDelta, usage: StreamUsage) -> bytes | None:
        """One stream event, or None when there is nothing to tell yet."""
        ...

    def usage_event(self, usage: Usage) -> bytes: ...

    @property
    def logprobs_lists(self) -> Sequence[str]:
        """The parallel lists that log-probabilities are, by name."""
        ...

    @property
    def shared_bytes(self) -> int:
        """What the pieces of several choices have in common, in memory once."""
        ...

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        """What the delta adds to each of `logprobs_lists`, as JSON without brackets."""
        ...

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        """A choice of an answer that does not stream, in pieces."""
        ...

    def answer_frame(self, usage: Usage) -> tuple[bytes, bytes]:
        """What stands before the choices of that answer, and after them."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What chat and completions each read in their own way from the body of a call.

    `read` gives the prompts as token ids, and makes the writer of the call. An answer has at most
    `max_tokens`; its client named `named_tokens` of them, or no limit. `top_logprobs` are the
    alternatives to each token, None without log-probabilities; `choices` those of all prompts.
    """

    id_prefix: str
    read: Callable[[], tuple[Sequence[Tokens], Callable[[Call], ResponseWriter]]]
    max_tokens: int
    named_tokens: int | None
    top_logprobs: int | None
    choices: int
    tool_format: ToolFormat | None = None


async def create_answer(
    request: HttpRequest,
    context: AppContext,
    body_type: type[Body],
    spec_of: Callable[[Body], GenerationSpec],
) -> Response:
    """Reads and checks a call, and answers it as a stream or at once. Raises `Refused` and
    `TandemError` for what cannot run."""
    card = context.generator.card
    with context.holding_body(request) as held:
        body = await read_body(request, body_type, context.config, held)
        context.check_ready(body.model)
        spec = spec_of(body)
        sampling = sampling_parameters(
            body, spec.max_tokens, spec.top_logprobs, context.text.defaults, card
        )
        if not body.stream:
            context.response_budget.check_request(spec.named_tokens, sampling, spec.choices)
        strings = stop_strings(body)
        (prompts, writer_of), stops = await held.run_off_loop(
            request, lambda: (spec.read(), AhoCorasick(strings))
        )
    caller = context.caller_of(request)
    context.add_limit_headers(request, caller)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "needs stream to be true")
    answer_id = fresh_id(spec.id_prefix)
    requests = requests_of(body, answer_id, prompts, sampling, caller.tenant, card)
    record = _begin_record(request, body, prompts, len(requests), card.names[0])
    caller = replace(
        caller,
        call=_size_of(answer_id, prompts, len(requests)),
        served_by=None if record is None else record.served_by,
    )
    call = Call(
        body=body,
        answer_id=answer_id,
        created_s=unix_time_s(),
        model=card.names[0],
        prompts=prompts,
        choices_per_prompt=body.n or 1,
        requests=requests,
        presentation=Presentation(
            stops=stops,
            include_stop=bool(body.include_stop_str_in_output),
            skip_special_tokens=body.skip_special_tokens is not False,
            tool_format=spec.tool_format,
            min_tokens=sampling.min_tokens,
            end_token_ids=frozenset(card.end_token_ids),
        ),
        caller=caller,
        cache_use=replace(
            context.cache_use(request, caller, sampling, named_seed=body.seed is not None),
            stop_strings=strings,
        ),
        record=record,
    )
    return _respond(call, writer_of(call), context)


def _size_of(answer_id: str, prompts: Sequence[Tokens], requests: int) -> CallSize | None:
    """Of a call that is several requests."""
    if requests == 1:
        return None
    return CallSize(answer_id, requests, sum(map(len, prompts)))


def _begin_record(
    request: HttpRequest,
    body: GenerationBody,
    prompts: Sequence[Tokens],
    answers: int,
    model: str,
) -> AnswerRecord | None:
    """What the access log is to know of the call; None where there is no log."""
    record: CallRecord | None = request.scope.get(RECORD)
    if record is None:
        return None
    meter = UsageMeter([len(prompt) for prompt in prompts], body.n or 1)
    record.answer = AnswerRecord(body.model or model, bool(body.stream), answers, ServedBy(), meter)
    return record.answer


def _respond(call: Call, writer: ResponseWriter, context: AppContext) -> Response:
    if call.body.stream:
        return EventStream(_stream_events(call, writer, context))
    return WholeResponse(
        context.response_budget, lambda held: _whole_answer(call, writer, context, held)
    )


async def _stream_events(
    call: Call, writer: ResponseWriter, context: AppContext
) -> AsyncGenerator[bytes, None]:
    options = call.body.stream_options
    includes_usage = options is not None and bool(options.include_usage)
    continuous = options is not None and bool(options.continuous_usage_stats)
    meter = _meter(call)
    async with aclosing(_call_deltas(call, context)) as deltas:
        async for delta in deltas:
            meter.count_delta(delta)
            usage: StreamUsage = None if includes_usage else UNSET
            data = writer.delta_event(delta, meter.usage() if continuous else usage)
            if data is not None:
                yield data
                if len(data) > _LARGE_EVENT_BYTES:
                    await asyncio.sleep(0)
    if includes_usage:
        yield writer.usage_event(meter.usage())
    yield DONE


async def _whole_answer(
    call: Call, writer: ResponseWriter, context: AppContext, held: HeldResponse
) -> list[bytes]:
    """The answer in pieces."""
    meter = _meter(call)
    held.grow(writer.shared_bytes)
    transcripts = [
        Transcript(
            choice, logprobs_lists=writer.logprobs_lists, keeps_tokens=call.returns_token_ids
        )
        for choice in range(len(call.requests))
    ]
    async with aclosing(_call_deltas(call, context)) as deltas:
        async for delta in deltas:
            meter.count_delta(delta)
            logprobs = writer.logprobs_items(delta) if delta.shown else ()
            held.grow(transcripts[delta.choice].add_delta(delta, logprobs))
    head, tail = writer.answer_frame(meter.usage())
    pieces = [head]
    encoded_bytes = 0
    for transcript in transcripts:
        if transcript.choice:
            pieces.append(b",")
        written = writer.choice_pieces(transcript)
        pieces += written
        encoded_bytes += sum(map(len, written))
        if encoded_bytes > TURN_BYTES:
            encoded_bytes = 0
            await asyncio.sleep(0)
    pieces.append(tail)
    return pieces


def _meter(call: Call) -> UsageMeter:
    if call.record is not None:
        return call.record.meter
    return UsageMeter([len(prompt) for prompt in call.prompts], call.choices_per_prompt)


async def _call_deltas(call: Call, context: AppContext) -> AsyncGenerator[ChoiceDelta, None]:
    """The deltas of all choices, as they come."""
    streams = [
        choice_deltas(
            call.cache_use,
            request,
            ChoiceReader(choice, context.text, call.presentation),
            call.caller,
        )
        for choice, request in enumerate(call.requests)
    ]
    alternatives = call.requests[0].sampling.top_logprobs or 0
    values = 0
    async with aclosing(merged(streams)) as deltas:
        async for delta in deltas:
            if call.record is not None:
                call.record.note_delta(delta)
            yield delta
            values += len(delta.tokens) + len(delta.shown) * (1 + alternatives)
            if values > _TURN_VALUES:
                values = 0
                await asyncio.sleep(0)


async def choice_deltas(
    cache_use: CacheUse, request: Request, reader: ChoiceReader, caller: Caller
) -> AsyncGenerator[ChoiceDelta, None]:
    """Generates one choice: the request goes to the engine here, unless its answer is known, and
    its tokens come back. The last delta has a finish reason. Raises `TandemError`."""
    lookup = cache_use.look_up(request)
    async with aclosing(lookup.outputs(caller)) as outputs:
        async for output in outputs:
            delta = reader.delta_of(output)
            lookup.add(output)
            if delta.finish_reason is not None:
                lookup.complete(output)
                if output.finish_reason is None and lookup.found is None:
                    cache_use.generator.satisfied(request.request_id)
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
