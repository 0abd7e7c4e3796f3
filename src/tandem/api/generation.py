"""A generating call, read and checked: from its body to a `Call` that is ready to run.

What cannot run is refused here, before anything is computed; `answering.py` makes the answer.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from tandem.api.access_log import RECORD, AnswerRecord, CallContent, CallRecord
from tandem.api.agent_hints import with_hints
from tandem.api.answering import respond
from tandem.api.app_context import AppContext
from tandem.api.body_fields import ModelBody
from tandem.api.call import Call, ResponseWriter
from tandem.api.choice import Presentation, UsageMeter
from tandem.api.clock_and_entropy import fresh_id, unix_time_s
from tandem.api.degradation import Degradation
from tandem.api.intake import HeldBytes
from tandem.api.prompt_scores import check_prompts, scored_once
from tandem.api.prompts import Tokens
from tandem.api.request_body import read_body
from tandem.api.requests import GenerationBody
from tandem.api.response_cache import ResponseLookup
from tandem.api.sampling_request import requests_of, sampling_parameters, stop_strings
from tandem.api.scaling_request import FollowUp, scaled_sampling, scaling_of
from tandem.api.search_request import check_beam_cost, search_of
from tandem.api.structured_output import (
    answer_grammar,
    constrained,
    grammar_after_reasoning,
    wants_form,
)
from tandem.facts.errors import InvalidRequest
from tandem.facts.rate_limits import CallSize
from tandem.facts.sampling import SamplingParameters
from tandem.facts.serving import Caller, ModelCard, ServedBy
from tandem.text.aho_corasick import AhoCorasick
from tandem.text.reasoning import ReasoningStart
from tandem.text.tool_calls import ToolFormat
from tandem.text.tools import CallsInAnswer
from tandem.text.xml_calls import Parameter

Body = TypeVar("Body", bound=ModelBody)


class NamesModel(Protocol):
    """A call as it was sent: the model is known before the rest means anything."""

    @property
    def model(self) -> str | None: ...


Sent = TypeVar("Sent", bound=NamesModel)


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What each API reads in its own way from the body of a call.

    `body` is that body in our own words; `read` gives the prompts as token ids, and makes the
    writer of the call. An answer has at most `max_tokens`; its client named `named_tokens` of them,
    or no limit. `top_logprobs` are the alternatives to each token, None without log-probabilities,
    `prompt_logprobs` those to each of the prompt, which only the first choice computes with
    `scores_once`; `choices` are those of all prompts. With `scores_end` and without `shows_answer`
    see `Presentation`.
    `follow_up` makes the prompts that go on from answers, for calls that need some; `tool_grammar`
    what an answer must be because of its tools, and `calls` which calls that makes well-formed;
    `text_parameters` are those of tools that are texts, and `reasoning_start` says how the answer
    to a prompt begins. `history_bytes` of earlier calls are read with the body, and count with it.
    """

    body: GenerationBody
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
    scores_once: bool = False
    scores_end: bool = False
    shows_answer: bool = True
    history_bytes: int = 0


async def create_answer(
    request: HttpRequest,
    context: AppContext,
    body_type: type[Body],
    spec_of: Callable[[Body], GenerationSpec],
    *,
    remembers: bool = False,
) -> Response:
    """Reads and checks a call, and answers it as a stream or at once; `remembers` where `spec_of`
    looks at what was kept of earlier calls, which only the event loop may. Raises `Refused` and
    `TandemError` for what cannot run."""
    return await answer_sent(
        request,
        context,
        lambda held: read_body(request, body_type, context.config, held),
        spec_of,
        remembers=remembers,
    )


async def answer_sent(
    request: HttpRequest,
    context: AppContext,
    read: Callable[[HeldBytes], Awaitable[Sent]],
    spec_of: Callable[[Sent], GenerationSpec],
    *,
    remembers: bool = False,
) -> Response:
    """`create_answer` to a call whose body `read` reads in its own way."""
    card = context.generator.card
    with context.holding_body(request) as held:
        sent = await read(held)
        context.check_ready(sent.model)
        adapter = context.adapter_of(sent.model)
        if remembers:
            spec = spec_of(sent)
        else:
            # Some translate the whole body.
            spec = await held.run_off_loop(request, lambda: spec_of(sent))
        held.hold_bytes(spec.history_bytes)
        body = spec.body
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
    context.calls.call_began(len(prompts), body.n or 1)
    if spec.scores_once and spec.prompt_logprobs is not None:
        requests = scored_once(requests)
    for each in requests if search.beams else ():
        check_beam_cost(len(each.prompt_tokens), each.sampling.max_tokens, search.beams)
    presentation = _presentation(body, spec, stops, reasoning, sampling, card)
    # The tokens of a gang are not: some depend on which sample ends first. A beam search draws
    # others than these requests ask for.
    computes_alone = scaling is None and not search.beams
    is_certain = computes_alone and (sampling.temperature == 0 or body.seed is not None)
    cache_use = context.cache_use(request, caller, presentation.endings, is_certain=is_certain)
    lookups = [cache_use.look_up(each) for each in requests]
    degradation = Degradation(len(requests))
    record = _begin_record(request, body, lookups, degradation, context, caller, search.sequences)
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
    return respond(call, writer_of(call), context)


def _presentation(
    body: GenerationBody,
    spec: GenerationSpec,
    stops: AhoCorasick,
    reasoning: ReasoningStart,
    sampling: SamplingParameters,
    card: ModelCard,
) -> Presentation:
    return Presentation(
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
    context: AppContext,
    caller: Caller,
    choices_per_prompt: int,
) -> AnswerRecord | None:
    """What is to be known of the call at its end; None where nobody wants to."""
    record: CallRecord | None = request.scope.get(RECORD)
    if record is None:
        return None
    prompt_tokens = [len(each.request.prompt_tokens) for each in lookups[::choices_per_prompt]]
    record.answer = AnswerRecord(
        body.model or context.generator.card.names[0],
        context.generator.service_class(caller),
        bool(body.stream),
        len(lookups),
        ServedBy(),
        UsageMeter(prompt_tokens, choices_per_prompt, degradation),
        degradation,
        is_cached=all(each.found for each in lookups),
        is_timed=record.is_logged,
    )
    if limit_bytes := record.content_bytes:
        # Of what cannot be kept, nothing need be held.
        prompts = [each.request.prompt_tokens for each in lookups[::choices_per_prompt]]
        asked = [prompt[: limit_bytes + 1] for prompt in prompts]
        record.answer.content = CallContent(limit_bytes, asked, context.text.spelled)
    return record.answer
