"""POST /v1/completions: text or token ids in, their continuation out."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from msgspec import UNSET
from msgspec.json import encode
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import AppContext
from tandem.api.call import Call, ResponseWriter, Scaled, StreamUsage
from tandem.api.choice import ChoiceDelta
from tandem.api.errors import Refusal
from tandem.api.generation import GenerationSpec, create_answer
from tandem.api.logprobs import (
    COMPLETION_LISTS,
    Shown,
    completion_items,
    completion_logprobs,
    token_text,
)
from tandem.api.openapi import ApiEndpoint
from tandem.api.prompt_scores import (
    echoed_logprobs,
    prompt_alternatives,
    prompt_logprobs_json,
    scores_echo,
)
from tandem.api.prompts import (
    Tokens,
    completion_follow_up,
    completion_prompts,
    kept_end,
    prompt_count,
)
from tandem.api.requests import CompletionBody
from tandem.api.responses import CompletionAnswer, CompletionChoice, CompletionLogprobs, Usage
from tandem.api.sampling_request import check_choices
from tandem.api.scaling_request import asks_again, check_scaling
from tandem.api.search_request import sequences_of
from tandem.api.streaming import DONE, encoded_event, error_event
from tandem.api.whole_response import (
    CHAR_BYTES,
    ID_BYTES,
    AnswerFrame,
    Transcript,
    filled_choice,
    split_at_choices,
)
from tandem.facts.errors import InvalidRequest
from tandem.text.detokenize import TokenBytes

_DEFAULT_MAX_TOKENS = 16
# Makes the writer of a call, given what opens the text of each prompt's choices.
WriterOf: TypeAlias = Callable[[Call, Sequence[str]], ResponseWriter]


def completion_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """The completions endpoint over `context`."""

    def spec_of(body: CompletionBody) -> GenerationSpec:
        names = context.text.token_bytes
        return completion_spec(
            body, context, lambda call, echoes: CompletionWriter(call, body, names, echoes)
        )

    async def create_completion(request: Request) -> Response:
        """Continues plain text or token ids, without a chat template."""
        return await create_answer(request, context, CompletionBody, spec_of)

    return [
        ApiEndpoint(
            "POST",
            "/v1/completions",
            create_completion,
            "Generating",
            body=CompletionBody,
            answer=CompletionAnswer,
            events=(CompletionAnswer,),
        )
    ]


def completion_spec(
    body: CompletionBody, context: AppContext, writer_of: WriterOf, *, id_prefix: str = "cmpl-"
) -> GenerationSpec:
    """What a completion call comes to, whichever API it came by: its answer is written by what
    `writer_of` makes. Raises `InvalidRequest`."""
    _check(body)
    prompt_number = prompt_count(body.prompt)
    check_choices(body, prompt_number, context)
    check_scaling(body, prompt_number, context)
    max_tokens = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    # Where nothing is to follow the prompt, one token is drawn and not shown.
    shows_answer, max_tokens = max_tokens > 0, max(1, max_tokens)
    follow_up = None
    if asks_again(body):
        question = body.prompt if isinstance(body.prompt, str) else ""
        follow_up = completion_follow_up(question, context.text, context.generator.card)

    def read() -> tuple[list[Tokens], Callable[[Call], ResponseWriter]]:
        card = context.generator.card
        whole = completion_prompts(body, context.text, card)
        prompts = [kept_end(each, body, max_tokens, card.context_tokens) for each in whole]
        echoes = _echoes(body, prompts, context)
        # What was read is not kept beside the prompts while the answer is written.
        body.prompt, body.stop = "", None
        return prompts, lambda call: writer_of(call, echoes)

    return GenerationSpec(
        body,
        id_prefix,
        read,
        max_tokens=max_tokens,
        named_tokens=max_tokens,
        top_logprobs=body.logprobs,
        choices=prompt_number * sequences_of(body),
        follow_up=follow_up,
        prompt_logprobs=prompt_alternatives(body),
        scores_end=scores_echo(body),
        shows_answer=shows_answer,
    )


class CompletionWriter:
    """Writes deltas and answers in the completions form. `echoes` open the text of each prompt's
    choices."""

    def __init__(
        self, call: Call, body: CompletionBody, token_bytes: TokenBytes, echoes: Sequence[str]
    ) -> None:
        self._call = call
        self._head = call.head_fields
        self._token_bytes = token_bytes
        self._echoes = echoes
        self._names_by_id = bool(call.body.return_tokens_as_token_ids)
        self._begun: set[int] = set()
        # As JSON, by choice.
        self._prompt_logprobs: dict[int, bytes] = {}
        self._echo_scored = scores_echo(body)
        self._alternatives = body.logprobs or 0
        self._offset_chars = [len(self._echo_of(choice)) for choice in range(len(call.lookups))]
        # As JSON, once for all choices of a prompt; of the echoes without quotes.
        self._prompt_json = cache(lambda prompt: encode(list(call.prompts[prompt])))
        self._echo_json = cache(lambda prompt: encode(echoes[prompt])[1:-1])

    def delta_event(
        self, delta: ChoiceDelta, usage: StreamUsage, scaling: Scaled = UNSET
    ) -> bytes | None:
        call, index = self._call, delta.choice
        is_first = index not in self._begun
        text = self._echo_of(index) + delta.text if is_first else delta.text
        if not text and call.is_silent(delta):
            return None
        self._begun.add(index)
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=self._logprobs(delta),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
            token_ids=call.token_ids(delta.tokens),
            token_sources=call.token_sources(delta),
        )
        if is_first:
            choice.prompt_token_ids = call.token_ids(call.prompts[call.prompt_number(index)])
        answer = CompletionAnswer(**self._head, choices=[choice], usage=usage, scaling=scaling)
        return encoded_event(answer)

    def stream_end(self, usage: Usage, *, includes_usage: bool) -> bytes:
        if not includes_usage:
            return DONE
        return encoded_event(CompletionAnswer(**self._head, choices=[], usage=usage)) + DONE

    def error_event(self, refusal: Refusal) -> bytes:
        return error_event(refusal)

    @property
    def logprobs_lists(self) -> Sequence[str]:
        return COMPLETION_LISTS

    @property
    def shared_bytes(self) -> int:
        ids = sum(map(len, self._call.prompts)) if self._call.returns_token_ids else 0
        return ID_BYTES * ids + CHAR_BYTES * sum(map(len, self._echoes))

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        logprobs = self._logprobs(delta)
        return () if logprobs is None else completion_items(logprobs)

    def keep_prompt_scores(self, delta: ChoiceDelta) -> int:
        alternatives = self._call.body.prompt_logprobs
        if delta.prompt_scores is None or alternatives is None:
            return 0
        prompt = self._call.prompts[self._call.prompt_number(delta.choice)]
        written = prompt_logprobs_json(prompt, delta.prompt_scores, self._token_bytes, alternatives)
        self._prompt_logprobs[delta.choice] = written
        return len(written)

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        call, prompt = self._call, self._call.prompt_number(transcript.choice)
        choice = CompletionChoice(
            index=transcript.index,
            text="",
            logprobs=None,
            finish_reason=transcript.finish_reason,
            stop_reason=transcript.stop_reason,
            token_ids=call.token_ids(transcript.tokens),
        )
        text = [self._echo_json(prompt), *transcript.text.pieces()]
        logprobs = transcript.logprobs if transcript.has_logprobs else None
        pieces = filled_choice(choice, {b"text": text}, logprobs)
        if call.returns_token_ids:
            # The last field of a choice.
            pieces[-1] = pieces[-1][:-1]
            pieces += [b',"prompt_token_ids":', self._prompt_json(prompt), b"}"]
        if (prompt_logprobs := self._prompt_logprobs.get(transcript.choice)) is not None:
            pieces[-1] = pieces[-1][:-1]
            pieces += [b',"prompt_logprobs":', prompt_logprobs, b"}"]
        return pieces

    def answer_frame(self, usage: Usage, scaling: Scaled = UNSET) -> AnswerFrame:
        answer = CompletionAnswer(**self._head, choices=[], usage=usage, scaling=scaling)
        return split_at_choices(answer)

    def _echo_of(self, index: int) -> str:
        return self._echoes[self._call.prompt_number(index)]

    def _logprobs(self, delta: ChoiceDelta) -> CompletionLogprobs | None:
        """Of what the delta shows, behind those of the prompt where it brings them."""
        index, shown, token_bytes = delta.choice, delta.shown, self._token_bytes
        echoed = self._echo_scored and delta.prompt_scores is not None
        if not (shown or echoed):
            return None
        begin_chars, by_id = self._offset_of(index, shown), self._names_by_id
        logprobs = completion_logprobs(shown, token_bytes, begin_chars, by_id=by_id)
        if delta.prompt_scores is None or not echoed:
            return logprobs
        prompt, scores = self._call.prompts[self._call.prompt_number(index)], delta.prompt_scores
        before = echoed_logprobs(prompt, scores, token_bytes, self._alternatives, by_id=by_id)
        return CompletionLogprobs(
            tokens=before.tokens + logprobs.tokens,
            token_logprobs=before.token_logprobs + logprobs.token_logprobs,
            top_logprobs=before.top_logprobs + logprobs.top_logprobs,
            text_offset=before.text_offset + logprobs.text_offset,
        )

    def _offset_of(self, index: int, shown: Shown) -> int:
        """Where these begin in the text of the choice, in characters; the next begin after them."""
        begin_chars = self._offset_chars[index]
        for token, _ in shown:
            self._offset_chars[index] += len(token_text(token, self._token_bytes))
        return begin_chars


def _check(body: CompletionBody) -> None:
    """Raises `InvalidRequest` for a call without an answer that would not even show its prompt."""
    if body.max_tokens == 0:
        if not body.echo:
            raise InvalidRequest("max_tokens", "must be 1 or more, or 0 with echo")
        for name in ("scaling", "use_beam_search"):
            if getattr(body, name):
                raise InvalidRequest("max_tokens", f"must be 1 or more with {name}")


def _echoes(body: CompletionBody, prompts: Sequence[Tokens], context: AppContext) -> list[str]:
    """What opens the text of each prompt's choices."""
    if not body.echo:
        return [""] * len(prompts)
    if isinstance(body.prompt, str) and body.truncate_prompt_tokens is None:
        return [body.prompt]
    skips = body.skip_special_tokens is not False
    return [context.text.tokenizer.decode(p, skip_special_tokens=skips) for p in prompts]
