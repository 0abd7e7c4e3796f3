"""A generating call, from its body to its answer: its requests go through the port `Generator`,
their outputs come back as deltas, and leave as a stream of events or as one JSON answer.

Closing a generator is what frees its blocks in the engine, so it happens on every way out.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tandem.api.access_log import RECORD, AnswerRecord, CallRecord
from tandem.api.agent_hints import with_hints
from tandem.api.app_context import SYSTEM_FINGERPRINT, AppContext
from tandem.api.beam_search import BeamSearcher
from tandem.api.choice import ChoiceDelta, ChoiceReader, Presentation, UsageMeter
from tandem.api.choice_deltas import choice_deltas, merged
from tandem.api.clock_and_entropy import fresh_id, unix_time_s
from tandem.api.degradation import Degradation
from tandem.api.gang import Gang, GangResult
from tandem.api.prompt_scores import check_prompts
from tandem.api.prompts import Tokens
from tandem.api.ranking import Ranking
from tandem.api.request_body import read_body
from tandem.api.requests import GenerationBody
from tandem.api.response_cache import ResponseLookup, cache_headers
from tandem.api.responses import ScalingReport, Usage
from tandem.api.sampling_request import requests_of, sampling_parameters, stop_strings
from tandem.api.scaling_request import FollowUp, Scaling, scaled_sampling, scaling_of
from tandem.api.search_request import (
    ONE_SEQUENCE,
    Search,
    beam_plan,
    check_beam_cost,
    search_of,
)
from tandem.api.streaming import DONE, EventStream
from tandem.api.structured_output import (
    answer_grammar,
    constrained,
    grammar_after_reasoning,
    wants_form,
)
from tandem.api.whole_response import TURN_BYTES, HeldResponse, Transcript, WholeResponse
from tandem.facts.errors import InvalidRequest
from tandem.facts.rate_limits import CallSize
from tandem.facts.serving import Caller, Generator, ServedBy
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.reasoning import ReasoningStart
from tandem.text.tool_calls import ToolFormat
from tandem.text.tools import CallsInAnswer
from tandem.text.xml_calls import Parameter

Body = TypeVar("Body", bound=GenerationBody)
StreamUsage = Usage | UnsetType | None
Scaled = ScalingReport | UnsetType

# After so many tokens and alternatives of all choices, a few milliseconds of work, the loop goes
# round. Mostly it has long done so: each step of the engine brings some.
_TURN_VALUES = 1 << 10
_LARGE_EVENT_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Call:
    """A call ready to run: choice c is the request of `lookups[c]`, for prompt
    c // choices_per_prompt. With `scaling` there is one choice, and its request is that of the
    first sample."""

    body: GenerationBody
    answer_id: str
    created_s: int
    model: str
    prompts: Sequence[Tokens]
    choices_per_prompt: int
    lookups: Sequence[ResponseLookup]
    presentation: Presentation
    caller: Caller
    degradation: Degradation
    record: AnswerRecord | None = None
    scaling: Scaling | None = None
    search: Search = ONE_SEQUENCE

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

    def late_headers(self) -> dict[str, str]:
        """What is known of it once its answer begins."""
        return self.degradation.headers() | cache_headers(self.lookups)

    def prompt_number(self, choice: int) -> int:
        return choice // self.choices_per_prompt

    def token_ids(self, tokens: Tokens) -> list[int] | UnsetType:
        """The ids where the client wants them."""
        return list(tokens) if self.returns_token_ids else UNSET

    def is_silent(self, delta: ChoiceDelta) -> bool:
        """Whether the delta holds nothing that a client would see."""
        return not (
            delta.text
            or delta.reasoning
            or delta.tool_calls
            or delta.shown
            or delta.prompt_scores
            or delta.finish_reason
            or (delta.tokens and self.returns_token_ids)
        )


class ResponseWriter(Protocol):
    """Puts deltas into the words of one API: `ChatWriter` or `CompletionWriter`."""

    def delta_event(
        self, delta: ChoiceDelta, usage: StreamUsage, scaling: Scaled = UNSET
    ) -> bytes | None:
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

    def keep_prompt_scores(self, delta: ChoiceDelta) -> int:
        """Those of the delta, for the end of an answer that does not stream. Gives how many bytes
        they take."""
        ...

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        """A choice of an answer that does not stream, in pieces."""
        ...

    def answer_frame(self, usage: Usage, scaling: Scaled = UNSET) -> tuple[bytes, bytes]:
        """What stands before the choices of that answer, and after them."""
        ...


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What chat and completions each read in their own way from the body of a call.

    `read` gives the prompts as token ids, and makes the writer of the call. An answer has at most
    `max_tokens`; its client named `named_tokens` of them, or no limit. `top_logprobs` are the
    alternatives to each token, None without log-probabilities, `prompt_logprobs` those to each of
    the prompt; `choices` are those of all prompts. With `scores_end` and without `shows_answer` see
    `Presentation`.
    `follow_up` makes the prompts that go on from answers, for calls that need some; `tool_grammar`
    what an answer must be because of its tools, and `calls` which calls that makes well-formed;
    `text_parameters` are those of tools that are texts, and `reasoning_start` says how the answer
    to a prompt begins.
    """

    id_prefix: str
    read: Callable[[], tuple[Sequence[Tokens], Callable[[Call], ResponseWriter]]]
    max_tokens: int
    named_tokens: int | None
    top_logprobs: int | None
    choices: int
    tool_format: ToolFormat | None = None
    calls: CallsInAnswer = CallsInAnswer.UNCERTAIN
    text_parameters: frozenset[Parameter] = frozenset()
    tool_grammar: Callable[[], str] | None = None
    reasoning_start: Callable[[Tokens], ReasoningStart] = lambda _: ReasoningStart.NONE
    follow_up: FollowUp | None = None
    prompt_logprobs: int | None = None
    scores_end: bool = False
    shows_answer: bool = True


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
        adapter = context.adapter_of(body.model)
        spec = spec_of(body)
        sampling = sampling_parameters(body, spec.max_tokens, spec.top_logprobs, context.text, card)
        sampling = replace(sampling, prompt_logprobs=spec.prompt_logprobs)
        scaling = scaling_of(
            body,
            context,
            spec.follow_up,
            body_bytes=held.count,
            shows_logprobs=spec.top_logprobs is not None,
        )
        search = search_of(body, shows_logprobs=spec.top_logprobs is not None)
        if not body.stream or scaling is not None:
            sequences = spec.choices if scaling is None else scaling.plan.samples
            context.response_budget.check_request(spec.named_tokens, sampling, sequences)
        if scaling is not None:
            sampling = scaled_sampling(sampling, body, scaling)
        if search.ranks and sampling.top_logprobs is None:
            sampling = replace(sampling, top_logprobs=0)
        strings = stop_strings(body)
        (prompts, writer_of), stops = await held.run_off_loop(
            request, lambda: (spec.read(), AhoCorasick(strings))
        )
        check_prompts(prompts, spec.prompt_logprobs)
        make_grammar = spec.tool_grammar
        if make_grammar is None and wants_form(body):
            make_grammar = partial(answer_grammar, body, context.text.grammars)
        reasoning = spec.reasoning_start(prompts[0])
        if make_grammar is not None:
            if search.beams:
                raise InvalidRequest("tools", "cannot be held to by use_beam_search")
            make = partial(grammar_after_reasoning, make_grammar, reasoning, context.text)
            grammar = await held.compile_off_loop(request, make)
            sampling = constrained(sampling, grammar, card)
    caller = with_hints(context.caller_of(request), body)
    context.add_limit_headers(request, caller)
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "needs stream to be true")
    answer_id = fresh_id(spec.id_prefix)
    requests = requests_of(
        body, answer_id, prompts, sampling, caller.tenant, card, search.sequences, adapter
    )
    for each in requests if search.beams else ():
        check_beam_cost(len(each.prompt_tokens), each.sampling.max_tokens, search.beams)
    presentation = Presentation(
        stops=stops,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        tool_format=spec.tool_format,
        calls=spec.calls,
        text_parameters=spec.text_parameters,
        reasoning=reasoning,
        min_tokens=sampling.min_tokens,
        end_token_ids=frozenset(card.end_token_ids),
        scores_end=spec.scores_end,
        shows_answer=spec.shows_answer,
    )
    # The tokens of a gang are not: some depend on which sample ends first. A beam search draws
    # others than these requests ask for.
    computes_alone = scaling is None and not search.beams
    is_certain = computes_alone and (sampling.temperature == 0 or body.seed is not None)
    cache_use = context.cache_use(request, caller, presentation.endings, is_certain=is_certain)
    lookups = [cache_use.look_up(each) for each in requests]
    degradation = Degradation(len(requests))
    record = _begin_record(
        request, body, lookups, degradation, context.generator, caller, search.sequences
    )
    caller = replace(
        caller,
        call=_size_of(answer_id, lookups, search.sequences),
        served_by=None if record is None else record.served_by,
    )
    call = Call(
        body=body,
        answer_id=answer_id,
        created_s=unix_time_s(),
        model=card.names[0] if adapter is None or body.model is None else body.model,
        prompts=prompts,
        choices_per_prompt=search.sequences,
        lookups=lookups,
        presentation=presentation,
        caller=caller,
        degradation=degradation,
        record=record,
        scaling=scaling,
        search=search,
    )
    return _respond(call, writer_of(call), context)


def _size_of(
    answer_id: str, lookups: Sequence[ResponseLookup], choices_per_prompt: int
) -> CallSize | None:
    """Of a call of which several answers are computed."""
    computed = [choice for choice, each in enumerate(lookups) if each.found is None]
    if len(computed) <= 1:
        return None
    prompts = {
        choice // choices_per_prompt: len(lookups[choice].request.prompt_tokens)
        for choice in computed
    }
    return CallSize(answer_id, len(computed), sum(prompts.values()))


def _begin_record(
    request: HttpRequest,
    body: GenerationBody,
    lookups: Sequence[ResponseLookup],
    degradation: Degradation,
    generator: Generator,
    caller: Caller,
    choices_per_prompt: int,
) -> AnswerRecord | None:
    """What the access log is to know of the call; None where there is no log."""
    record: CallRecord | None = request.scope.get(RECORD)
    if record is None:
        return None
    prompt_tokens = [len(each.request.prompt_tokens) for each in lookups[::choices_per_prompt]]
    record.answer = AnswerRecord(
        body.model or generator.card.names[0],
        generator.service_class(caller),
        bool(body.stream),
        len(lookups),
        ServedBy(),
        UsageMeter(prompt_tokens, choices_per_prompt, degradation),
        degradation,
        is_cached=all(each.found for each in lookups),
    )
    return record.answer


def _respond(call: Call, writer: ResponseWriter, context: AppContext) -> Response:
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
        return EventStream(_stream_events(call, writer, context), call.late_headers)
    return WholeResponse(
        context.response_budget,
        lambda held: _whole_answer(call, writer, context, held),
        call.late_headers,
    )


async def _stream_events(
    call: Call, writer: ResponseWriter, context: AppContext
) -> AsyncGenerator[bytes, None]:
    includes_usage, continuous = _streamed_usage(call)
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
    frame = writer.answer_frame(meter.usage())
    given = [each for each in transcripts if each.choice not in call.degradation.left_out]
    return await _answer_pieces(writer, ranking.best_of(given), frame)


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
    frame = writer.answer_frame(result.usage, result.report)
    return await _answer_pieces(writer, transcripts, frame)


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
    if includes_usage:
        events.append(writer.usage_event(result.usage))
    return [*events, DONE]


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
    frame: tuple[bytes, bytes],
) -> list[bytes]:
    head, tail = frame
    pieces = [head]
    encoded_bytes = 0
    for transcript in transcripts:
        if len(pieces) > 1:
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
    prompt_tokens = [len(prompt) for prompt in call.prompts]
    return UsageMeter(prompt_tokens, call.choices_per_prompt, call.degradation)


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
