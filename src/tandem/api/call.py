"""One generating call from its plan to its last byte, whichever of the two forms it answers in."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tandem.api.ambient import fresh_id, unix_time_s
from tandem.api.answer_budget import HeldAnswer
from tandem.api.answers import Usage
from tandem.api.bodies import SamplingFields
from tandem.api.choice import NO_STOPS, ChoiceDelta, ChoiceReader, Presentation
from tandem.api.door import FrontDoor
from tandem.api.parameters import fitted
from tandem.api.prompts import Tokens
from tandem.api.sse import DONE, EventStream
from tandem.api.streams import choice_deltas, merged
from tandem.api.transcript import Transcript
from tandem.api.usage import UsageMeter
from tandem.api.whole_answer import TURN_BYTES, WholeAnswer
from tandem.facts.errors import InvalidRequest
from tandem.facts.request import Request
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import ANYBODY, Caller, ModelCard
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.tools import ToolFormat

StreamUsage = Usage | UnsetType | None

# After so many tokens and alternatives of all choices, a few milliseconds of work, the loop goes
# round. Mostly it has long done so: each step of the engine brings some.
_TURN_VALUES = 1 << 10
_LARGE_EVENT_BYTES = 128 << 10


@dataclass(frozen=True, slots=True)
class Call:
    """A call ready to run: choice c is `requests[c]`, for prompt c // choices_per_prompt."""

    body: SamplingFields
    answer_id: str
    created_s: int
    model: str
    prompts: Sequence[Tokens]
    choices_per_prompt: int
    requests: Sequence[Request]
    presentation: Presentation
    caller: Caller

    @property
    def returns_token_ids(self) -> bool:
        return bool(self.body.return_token_ids)

    def prompt_of(self, choice: int) -> Tokens:
        return self.prompts[choice // self.choices_per_prompt]


class Writer(Protocol):
    """Puts deltas into the words of one API."""

    def event(self, delta: ChoiceDelta, usage: StreamUsage) -> bytes | None:
        """One stream event, or None when there is nothing to tell yet."""
        ...

    def usage_event(self, usage: Usage) -> bytes: ...

    @property
    def logprobs_lists(self) -> int:
        """How many parallel lists log-probabilities are."""
        ...

    @property
    def shared_bytes(self) -> int:
        """What the pieces of several choices have in common, in memory once."""
        ...

    def logprobs(self, delta: ChoiceDelta) -> Sequence[bytes]:
        """What the delta adds to each of the lists, as JSON without brackets."""
        ...

    def choice(self, transcript: Transcript) -> list[bytes]:
        """A choice of an answer that does not stream, in pieces."""
        ...

    def frame(self, usage: Usage) -> tuple[bytes, bytes]:
        """What stands before the choices of that answer, and after them."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a call before it becomes sequences."""

    id_prefix: str
    prompts: Sequence[Tokens]
    sampling: SamplingParameters
    tool_format: ToolFormat | None = None
    caller: Caller = ANYBODY
    stops: AhoCorasick = NO_STOPS


def plan_call(body: SamplingFields, plan: Plan, door: FrontDoor) -> Call:
    """Raises `InvalidRequest` for what can never run."""
    card = door.generator.card
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options", "needs stream to be true")
    choices_per_prompt = body.n or 1
    answer_id = fresh_id(plan.id_prefix)
    requests: list[Request] = []
    for prompt in plan.prompts:
        sampling = fitted(plan.sampling, len(prompt), card)
        for choice in range(choices_per_prompt):
            requests.append(
                Request(
                    request_id=f"{answer_id}-{len(requests)}",
                    prompt_tokens=prompt,
                    sampling=_for_choice(sampling, choice),
                    priority=body.priority or 0,
                    cache_salt=body.cache_salt or "",
                    tenant=plan.caller.tenant,
                )
            )
    return Call(
        body=body,
        answer_id=answer_id,
        created_s=unix_time_s(),
        model=card.names[0],
        prompts=plan.prompts,
        choices_per_prompt=choices_per_prompt,
        requests=requests,
        presentation=_presentation(body, plan, card),
        caller=plan.caller,
    )


def check_choices(body: SamplingFields, prompts: int, door: FrontDoor) -> None:
    """Raises `InvalidRequest` for too many sequences, before any of them costs anything."""
    limit = door.config.max_choices
    if prompts * (body.n or 1) > limit:
        raise InvalidRequest("n", f"asks for more than {limit} choices over all prompts")


def _presentation(body: SamplingFields, plan: Plan, card: ModelCard) -> Presentation:
    return Presentation(
        stops=plan.stops,
        include_stop=bool(body.include_stop_str_in_output),
        skip_special_tokens=body.skip_special_tokens is not False,
        tool_format=plan.tool_format,
        min_tokens=plan.sampling.min_tokens,
        end_token_ids=frozenset(card.end_token_ids),
    )


def respond(call: Call, writer: Writer, door: FrontDoor) -> Response:
    """Runs the call while the client listens, and answers as a stream or at once."""
    if call.body.stream:
        return EventStream(_events(call, writer, door))
    return WholeAnswer(door.answers, lambda held: _whole(call, writer, door, held))


async def _deltas(call: Call, door: FrontDoor) -> AsyncGenerator[ChoiceDelta, None]:
    streams = [
        choice_deltas(
            door.generator,
            request,
            ChoiceReader(choice, door.text, call.presentation),
            call.caller,
        )
        for choice, request in enumerate(call.requests)
    ]
    alternatives = call.requests[0].sampling.top_logprobs or 0
    values = 0
    async with aclosing(merged(streams)) as deltas:
        async for delta in deltas:
            yield delta
            values += len(delta.tokens) + len(delta.shown) * (1 + alternatives)
            if values > _TURN_VALUES:
                values = 0
                await asyncio.sleep(0)


async def _events(call: Call, writer: Writer, door: FrontDoor) -> AsyncGenerator[bytes, None]:
    options = call.body.stream_options
    includes_usage = options is not None and bool(options.include_usage)
    continuous = options is not None and bool(options.continuous_usage_stats)
    meter = _meter(call)
    async with aclosing(_deltas(call, door)) as deltas:
        async for delta in deltas:
            meter.count(delta)
            usage: StreamUsage = None if includes_usage else UNSET
            data = writer.event(delta, meter.usage() if continuous else usage)
            if data is not None:
                yield data
                if len(data) > _LARGE_EVENT_BYTES:
                    await asyncio.sleep(0)
    if includes_usage:
        yield writer.usage_event(meter.usage())
    yield DONE


async def _whole(call: Call, writer: Writer, door: FrontDoor, held: HeldAnswer) -> list[bytes]:
    """The answer in pieces."""
    meter = _meter(call)
    held.grow(writer.shared_bytes)
    transcripts = [
        Transcript(
            choice, logprobs_lists=writer.logprobs_lists, keeps_tokens=call.returns_token_ids
        )
        for choice in range(len(call.requests))
    ]
    async with aclosing(_deltas(call, door)) as deltas:
        async for delta in deltas:
            meter.count(delta)
            logprobs = writer.logprobs(delta) if delta.shown else ()
            held.grow(transcripts[delta.choice].add(delta, logprobs))
    head, tail = writer.frame(meter.usage())
    pieces = [head]
    encoded_bytes = 0
    for transcript in transcripts:
        if transcript.choice:
            pieces.append(b",")
        written = writer.choice(transcript)
        pieces += written
        encoded_bytes += sum(map(len, written))
        if encoded_bytes > TURN_BYTES:
            encoded_bytes = 0
            await asyncio.sleep(0)
    pieces.append(tail)
    return pieces


def _meter(call: Call) -> UsageMeter:
    return UsageMeter([len(prompt) for prompt in call.prompts], call.choices_per_prompt)


def _for_choice(sampling: SamplingParameters, choice: int) -> SamplingParameters:
    return replace(sampling, seed=sampling.seed_of_choice(choice))
