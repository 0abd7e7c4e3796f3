"""Log-probabilities of a prompt's tokens: which a call asks for, and how they are written. In the
older completions form they open the lists of the answer (`echo` with `logprobs`); `prompt_logprobs`
has vLLM's form.

The first token of a prompt follows nothing, so it has none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import msgspec

from tandem.api.logprobs import completion_logprobs, finite, token_name, token_text
from tandem.api.prompts import Tokens
from tandem.api.requests import CompletionBody, GenerationBody
from tandem.api.responses import CompletionLogprobs, PromptLogprob
from tandem.facts.errors import InvalidRequest
from tandem.facts.request import Request, TokenLogprobs
from tandem.facts.sampling import SamplingParameters
from tandem.text.detokenize import TokenBytes

# Of one prompt: they travel in one message, and are written at one go.
PROMPT_VALUES_LIMIT: Final = 1 << 17

_encoder = msgspec.json.Encoder()


def scores_echo(body: CompletionBody) -> bool:
    """Whether the prompt is shown with its log-probabilities."""
    return bool(body.echo) and body.logprobs is not None


def prompt_alternatives(body: GenerationBody) -> int | None:
    """How many alternatives to each token of the prompt are wanted; None without
    log-probabilities. Raises `InvalidRequest` for what cannot go with them."""
    wanted = [] if body.prompt_logprobs is None else [body.prompt_logprobs]
    field = "prompt_logprobs"
    if isinstance(body, CompletionBody) and scores_echo(body):
        wanted.append(body.logprobs or 0)
        field = "echo" if body.prompt_logprobs is None else field
    if not wanted:
        return None
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs", "cannot be streamed")
    for name in ("scaling", "use_beam_search"):
        if getattr(body, name):
            raise InvalidRequest(field, f"has no log-probabilities of prompts with {name}")
    return max(wanted)


def check_prompts(prompts: Sequence[Tokens], alternatives: int | None) -> None:
    """Raises `InvalidRequest` for a prompt that is too long to be scored."""
    if alternatives is None:
        return
    for prompt in prompts:
        if len(prompt) * (1 + alternatives) > PROMPT_VALUES_LIMIT:
            most = PROMPT_VALUES_LIMIT // (1 + alternatives)
            raise InvalidRequest(
                "prompt",
                f"has {len(prompt)} tokens, of which at most {most} can be scored with "
                f"{alternatives} alternatives to each",
            )


def scored_once(requests: Sequence[Request]) -> list[Request]:
    """Only the first choice scores the prompt, which is the same for all: the others may take its
    KV from the prefix cache."""
    return [
        each if each.choice == 0 else replace(each, sampling=_unscored(each.sampling))
        for each in requests
    ]


def echoed_logprobs(
    prompt: Tokens,
    scores: Sequence[TokenLogprobs],
    token_bytes: TokenBytes,
    alternatives: int,
    *,
    by_id: bool = False,
) -> CompletionLogprobs:
    """What the prompt puts before the lists of an answer."""
    first = prompt[0]
    offset_chars = len(token_text(first, token_bytes))
    shown = list(zip(prompt[1:], _cut(scores, alternatives), strict=True))
    rest = completion_logprobs(shown, token_bytes, offset_chars, by_id=by_id)
    return CompletionLogprobs(
        tokens=[token_name(first, token_bytes, by_id=by_id), *rest.tokens],
        token_logprobs=[None, *rest.token_logprobs],
        top_logprobs=[None, *rest.top_logprobs],
        text_offset=[0, *rest.text_offset],
    )


def prompt_logprobs_json(
    prompt: Tokens, scores: Sequence[TokenLogprobs], token_bytes: TokenBytes, alternatives: int
) -> bytes:
    """As vLLM has it: null for the first token; for each other by its id, and then the
    alternatives, with rank and text."""
    entries: list[dict[int, PromptLogprob] | None] = [None]
    for token, score in zip(prompt[1:], _cut(scores, alternatives), strict=True):
        ranked = [(token, score.logprob, score.rank)]
        ranked += [(other, value, rank) for rank, (other, value) in enumerate(score.top, 1)]
        entries.append(
            {
                each: PromptLogprob(
                    logprob=finite(value), rank=rank, decoded_token=token_text(each, token_bytes)
                )
                for each, value, rank in ranked
            }
        )
    return _encoder.encode(entries)


def _unscored(sampling: SamplingParameters) -> SamplingParameters:
    return replace(sampling, prompt_logprobs=None)


def _cut(scores: Sequence[TokenLogprobs], alternatives: int) -> list[TokenLogprobs]:
    return [replace(each, top=each.top[:alternatives]) for each in scores]
