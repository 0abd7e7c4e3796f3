"""Sampling request: from the fields of a body to the requests that run, one a choice.

Body fields go over the checkpoint's defaults, and every check that needs the model is made here.
"""

from collections.abc import Sequence, Sized
from dataclasses import replace

from tandem.api.agent_hints import hinted_attributes
from tandem.api.app_context import AppContext
from tandem.api.clock_and_entropy import fresh_seed
from tandem.api.prompts import Tokens, check_tokens
from tandem.api.requests import GenerationBody
from tandem.facts.client_fields import client_fields, client_values
from tandem.facts.errors import InvalidRequest, PromptTooLong
from tandem.facts.request import Request
from tandem.facts.sampling import (
    ALLOWED_TOKENS_LIMIT,
    LOGIT_BIAS_LIMIT,
    SEED_LIMIT,
    STOP_TOKENS_LIMIT,
    SamplingParameters,
)
from tandem.facts.serving import ModelCard
from tandem.text.model import TextModel
from tandem.text.tokenizer import Tokenizer

STOP_STRINGS_LIMIT = 64
STOP_STRING_CHARS_LIMIT = 1024
BAD_WORDS_COUNT_LIMIT = 64
BAD_WORD_CHARS_LIMIT = 256
# What is stored as a client sets it.
_PARAMETERS = client_fields(SamplingParameters)
_ATTRIBUTES = client_fields(Request)


def check_choices(body: GenerationBody, prompts: int, context: AppContext) -> None:
    """Raises `InvalidRequest` for too many sequences, before any of them costs anything."""
    limit = context.config.max_choices
    if prompts * (body.n or 1) > limit:
        raise InvalidRequest("n", f"asks for more than {limit} choices over all prompts")


def requests_of(
    body: GenerationBody,
    answer_id: str,
    prompts: Sequence[Tokens],
    sampling: SamplingParameters,
    tenant: str,
    card: ModelCard,
) -> list[Request]:
    """The requests of a call, one for each choice. Raises `InvalidRequest` for what can never
    run."""
    attributes = client_values(body, _ATTRIBUTES)
    attributes |= hinted_attributes(body, attributes)
    requests: list[Request] = []
    for prompt in prompts:
        fitting = fitted(sampling, len(prompt), card)
        for choice in range(body.n or 1):
            requests.append(
                Request(
                    request_id=f"{answer_id}-{len(requests)}",
                    prompt_tokens=prompt,
                    sampling=replace(fitting, seed=fitting.seed_of_choice(choice)),
                    tenant=tenant,
                    choice=choice,
                    **attributes,
                )
            )
    return requests


def sampling_parameters(
    body: GenerationBody,
    max_tokens: int,
    top_logprobs: int | None,
    text: TextModel,
    card: ModelCard,
) -> SamplingParameters:
    """Raises `InvalidRequest` naming the field."""
    recommended = {each.name: getattr(text.defaults, each.name) for each in _PARAMETERS}
    values = recommended | client_values(body, _PARAMETERS)
    # -1 is a common spelling of "no top-k".
    values["top_k"] = 0 if values["top_k"] == -1 else values["top_k"]
    return SamplingParameters(
        **values,
        logit_bias=_logit_bias(body, card),
        seed=_seed(body.seed),
        # No answer is longer than the context, however much is asked for.
        max_tokens=min(max_tokens, card.context_tokens),
        min_tokens=body.min_tokens or 0,
        stop_token_ids=_stop_token_ids(body, card),
        top_logprobs=top_logprobs,
        allowed_token_ids=_allowed_token_ids(body, card),
        bad_words=_bad_words(body, text.tokenizer),
    )


def fitted(sampling: SamplingParameters, prompt_tokens: int, card: ModelCard) -> SamplingParameters:
    """`sampling` with no more tokens than the context has left. Raises `PromptTooLong`."""
    room_tokens = card.context_tokens - prompt_tokens
    if prompt_tokens == 0:
        raise InvalidRequest("prompt", "has no tokens")
    if room_tokens < 1:
        raise PromptTooLong(prompt_tokens, card.context_tokens)
    return replace(sampling, max_tokens=min(sampling.max_tokens, room_tokens))


def stop_strings(body: GenerationBody) -> tuple[str, ...]:
    """The stop strings of a call, each once."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stops) > STOP_STRINGS_LIMIT:
        raise InvalidRequest("stop", f"has more than {STOP_STRINGS_LIMIT} strings")
    if not all(0 < len(stop) <= STOP_STRING_CHARS_LIMIT for stop in stops):
        raise InvalidRequest("stop", f"needs strings of 1 to {STOP_STRING_CHARS_LIMIT} characters")
    return tuple(dict.fromkeys(stops))


def _seed(seed: int | None) -> int:
    if seed is None:
        return fresh_seed()
    if not -(SEED_LIMIT // 2) <= seed < SEED_LIMIT:
        raise InvalidRequest("seed", "must fit into 64 bits")
    # Negative seeds are legal in OpenAI's signed numbers.
    return seed % SEED_LIMIT


def _stop_token_ids(body: GenerationBody, card: ModelCard) -> tuple[int, ...]:
    wanted = body.stop_token_ids or []
    _check_length("stop_token_ids", wanted, STOP_TOKENS_LIMIT)
    check_tokens("stop_token_ids", wanted, card)
    ends = () if body.ignore_eos else card.end_token_ids
    return tuple(dict.fromkeys([*ends, *wanted]))


def _allowed_token_ids(body: GenerationBody, card: ModelCard) -> tuple[int, ...]:
    allowed = body.allowed_token_ids
    if allowed is None:
        return ()
    _check_length("allowed_token_ids", allowed, ALLOWED_TOKENS_LIMIT)
    check_tokens("allowed_token_ids", allowed, card)
    if not allowed:
        raise InvalidRequest("allowed_token_ids", "is empty: then nothing could be drawn")
    if body.min_tokens and set(allowed) <= set(_stop_token_ids(body, card)):
        raise InvalidRequest(
            "allowed_token_ids", "all of them end the answer, which min_tokens keeps from ending"
        )
    return tuple(dict.fromkeys(allowed))


def _bad_words(body: GenerationBody, tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """As they are and after a space: in the middle of a text most tokenizers spell a word so, and
    then with other tokens."""
    words = body.bad_words or []
    _check_length("bad_words", words, BAD_WORDS_COUNT_LIMIT)
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        if not 0 < len(word.strip()) <= len(word) <= BAD_WORD_CHARS_LIMIT:
            raise InvalidRequest(
                "bad_words", f"needs words of 1 to {BAD_WORD_CHARS_LIMIT} characters, not spaces"
            )
        for spelled in (word, f" {word.lstrip()}"):
            found[tokenizer.encode(spelled, add_special_tokens=False)] = None
    return tuple(found)


def _check_length(field: str, entries: Sized, limit: int) -> None:
    """Before anything is done with each of them."""
    if len(entries) > limit:
        raise InvalidRequest(field, f"has more than {limit} entries")


def _logit_bias(body: GenerationBody, card: ModelCard) -> tuple[tuple[int, float], ...]:
    bias = []
    _check_length("logit_bias", body.logit_bias or {}, LOGIT_BIAS_LIMIT)
    for key, value in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise InvalidRequest("logit_bias", f"needs token ids as keys, got {key[:32]!r}")
        bias.append((int(key), value))
    check_tokens("logit_bias", [token for token, _ in bias], card)
    return tuple(bias)
