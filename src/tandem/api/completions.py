"""POST /v1/completions: text or token ids in, their continuation out."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from tandem.api.app_context import SYSTEM_FINGERPRINT, AppContext
from tandem.api.choice import ChoiceDelta
from tandem.api.generation import AskedAnswer, Call, StreamUsage, create_answer
from tandem.api.logprobs import (
    COMPLETION_LISTS,
    Shown,
    completion_items,
    completion_logprobs,
    token_text,
)
from tandem.api.openapi import ApiEndpoint
from tandem.api.prompts import Tokens, completion_prompts, prompt_count
from tandem.api.requests import CompletionBody
from tandem.api.responses import CompletionAnswer, CompletionChoice, CompletionLogprobs, Usage
from tandem.api.sampling_request import check_choices
from tandem.api.streaming import encoded_event
from tandem.api.whole_response import CHAR_BYTES, ID_BYTES, Transcript, framed, parted
from tandem.facts.errors import InvalidRequest
from tandem.text.detokenize import TokenBytes

_DEFAULT_MAX_TOKENS = 16


def completion_endpoints(context: AppContext) -> list[ApiEndpoint]:
    """The completions endpoint over `context`."""

    def asked_of(body: CompletionBody) -> AskedAnswer:
        _check(body)
        prompt_number = prompt_count(body.prompt)
        check_choices(body, prompt_number, context)
        max_tokens = body.max_tokens or _DEFAULT_MAX_TOKENS

        def read() -> tuple[list[Tokens], Callable[[Call], CompletionWriter]]:
            prompts = completion_prompts(body, context.text, context.generator.card)
            echoes = _echoes(body, prompts, context)
            # What was read is not kept beside the prompts while the answer is written.
            body.prompt, body.stop = "", None
            return prompts, lambda call: CompletionWriter(call, context.text.token_bytes, echoes)

        return AskedAnswer(
            "cmpl-",
            read,
            max_tokens=max_tokens,
            named_tokens=max_tokens,
            top_logprobs=body.logprobs,
            choices=prompt_number * (body.n or 1),
        )

    async def create_completion(request: Request) -> Response:
        """Continues plain text or token ids, without a chat template."""
        return await create_answer(request, context, CompletionBody, asked_of)

    return [
        ApiEndpoint(
            "POST",
            "/v1/completions",
            create_completion,
            "Generating",
            body=CompletionBody,
            answer=CompletionAnswer,
            event=CompletionAnswer,
        )
    ]


class CompletionWriter:
    """Writes deltas and answers in the completions form. `echoes` open the text of each prompt's
    choices."""

    def __init__(self, call: Call, token_bytes: TokenBytes, echoes: Sequence[str]) -> None:
        self._call = call
        self._token_bytes = token_bytes
        self._echoes = [echoes[c // call.choices_per_prompt] for c in range(len(call.requests))]
        self._begun: set[int] = set()
        self._offset_chars = [len(echo) for echo in self._echoes]
        self._prompt_jsons: dict[int, bytes] = {}
        self._echo_jsons: dict[int, bytes] = {}

    def delta_event(self, delta: ChoiceDelta, usage: StreamUsage) -> bytes | None:
        call, index = self._call, delta.choice
        is_first = index not in self._begun
        text = self._echoes[index] + delta.text if is_first else delta.text
        sends_ids = call.returns_token_ids and bool(delta.tokens)
        if not (text or delta.shown or delta.finish_reason or sends_ids):
            return None
        self._begun.add(index)
        choice = CompletionChoice(
            index=index,
            text=text,
            logprobs=self._logprobs(index, delta.shown),
            finish_reason=delta.finish_reason,
            stop_reason=delta.stop_reason,
        )
        if call.returns_token_ids:
            choice.token_ids = list(delta.tokens)
            choice.prompt_token_ids = list(call.prompt_of(index)) if is_first else UNSET
        return encoded_event(self._answer([choice], usage))

    def usage_event(self, usage: Usage) -> bytes:
        return encoded_event(self._answer([], usage))

    @property
    def logprobs_lists(self) -> int:
        return len(COMPLETION_LISTS)

    @property
    def shared_bytes(self) -> int:
        ids = sum(map(len, self._call.prompts)) if self._call.returns_token_ids else 0
        echoes = sum(map(len, self._echoes[:: self._call.choices_per_prompt]))
        return ID_BYTES * ids + CHAR_BYTES * echoes

    def logprobs_items(self, delta: ChoiceDelta) -> Sequence[bytes]:
        begin_chars = self._offset_of(delta.choice, delta.shown)
        return completion_items(delta.shown, self._token_bytes, begin_chars)

    def choice_pieces(self, transcript: Transcript) -> list[bytes]:
        returns_ids, index = self._call.returns_token_ids, transcript.choice
        choice = CompletionChoice(
            index=index,
            text="",
            logprobs=None,
            finish_reason=transcript.finish_reason,
            stop_reason=transcript.stop_reason,
            token_ids=list(transcript.tokens) if returns_ids else UNSET,
        )
        before, rest = parted(msgspec.json.encode(choice), b"text", b'"')
        pieces = [before, b'"', self._echo(index), *transcript.text.pieces()]
        if transcript.has_logprobs:
            before, rest = parted(rest, b"logprobs", b"null")
            pieces.append(before)
            for opening, name, entries in zip(
                b"{,,,", COMPLETION_LISTS, transcript.logprobs, strict=True
            ):
                pieces += [b'%c"%s":' % (opening, name.encode()), *entries.pieces()]
            pieces.append(b"}")
        if returns_ids:
            # The last field of a choice.
            return [*pieces, rest[:-1], b',"prompt_token_ids":', self._prompt_ids(index), b"}"]
        return [*pieces, rest]

    def answer_frame(self, usage: Usage) -> tuple[bytes, bytes]:
        return framed(self._answer([], usage))

    def _answer(self, choices: list[CompletionChoice], usage: StreamUsage) -> CompletionAnswer:
        return CompletionAnswer(
            id=self._call.answer_id,
            created=self._call.created_s,
            model=self._call.model,
            choices=choices,
            system_fingerprint=SYSTEM_FINGERPRINT,
            usage=usage,
        )

    def _logprobs(self, index: int, shown: Shown) -> CompletionLogprobs | None:
        if not shown:
            return None
        return completion_logprobs(shown, self._token_bytes, self._offset_of(index, shown))

    def _offset_of(self, index: int, shown: Shown) -> int:
        """Where these begin in the text of the choice, in characters; the next begin after them."""
        begin_chars = self._offset_chars[index]
        for token, _ in shown:
            self._offset_chars[index] += len(token_text(token, self._token_bytes))
        return begin_chars

    def _prompt_ids(self, index: int) -> bytes:
        """As JSON, once for all choices of a prompt."""
        prompt = index // self._call.choices_per_prompt
        if prompt not in self._prompt_jsons:
            ids = list(self._call.prompt_of(index))
            self._prompt_jsons[prompt] = msgspec.json.encode(ids)
        return self._prompt_jsons[prompt]

    def _echo(self, index: int) -> bytes:
        """As JSON without quotes, once for all choices of a prompt."""
        prompt = index // self._call.choices_per_prompt
        if prompt not in self._echo_jsons:
            self._echo_jsons[prompt] = msgspec.json.encode(self._echoes[index])[1:-1]
        return self._echo_jsons[prompt]


def _check(body: CompletionBody) -> None:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("best_of", "must equal n: this server returns every choice it makes")
    if body.echo and body.logprobs is not None:
        raise InvalidRequest("echo", "cannot be combined with logprobs: prompts have none here")


def _echoes(body: CompletionBody, prompts: Sequence[Tokens], context: AppContext) -> list[str]:
    """What opens the text of each prompt's choices."""
    if not body.echo:
        return [""] * len(prompts)
    if isinstance(body.prompt, str):
        return [body.prompt]
    skips = body.skip_special_tokens is not False
    return [context.text.tokenizer.decode(p, skip_special_tokens=skips) for p in prompts]
