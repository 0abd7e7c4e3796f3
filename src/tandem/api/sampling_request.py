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
from tandem.api.search_request import sequences_of
from tandem.facts.adapter import Adapter
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
DRY_BREAKERS_COUNT_LIMIT = 64
DRY_BREAKER_CHARS_LIMIT = 40
# Those of llama.cpp and text-generation-webui.
DRY_BREAKERS = ("\n", ":", '"', "*")
# What is stored as a client sets it.
_PARAMETERS = client_fields(SamplingParameters)
_ATTRIBUTES = client_fields(Request)


def check_choices(body: GenerationBody, prompts: int, context: AppContext) -> None:
    """Raises `InvalidRequest` for too many sequences, or prompts of which nothing would be left,
    before any of them costs anything."""
    if body.truncate_prompt_tokens == 0:
        raise InvalidRequest("truncate_prompt_tokens", "must be 1 or more, or -1")
    limit = context.config.max_choices
    if prompts * sequences_of(body) > limit:
        name = "n" if prompts * (body.n or 1) > limit else "best_of"
        raise InvalidRequest(name, f"asks for more than {limit} choices over all prompts")


def requests_of(
    body: GenerationBody,
    answer_id: str,
    prompts: Sequence[Tokens],
    sampling: SamplingParameters,
    tenant: str,
    card: ModelCard,
    sequences: int,
    adapter: Adapter | None = None,
) -> list[Request]:
    """The requests of a call, `sequences` for each prompt. Raises `InvalidRequest` for what can
    never run."""
    attributes = client_values(body, _ATTRIBUTES)
    attributes |= hinted_attributes(body, attributes)
    requests: list[Request] = []
    for prompt in prompts:
        fitting = fitted(sampling, len(prompt), card)
        for choice in range(sequences):
            requests.append(
                Request(
                    request_id=f"{answer_id}-{len(requests)}",
                    prompt_tokens=prompt,
                    sampling=replace(fitting, seed=fitting.seed_of_choice(choice)),
                    tenant=tenant,
                    choice=choice,
                    adapter=adapter,
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
    biases, never = _logit_bias(body, text.tokenizer, card)
    return SamplingParameters(
        **values,
        logit_bias=biases,
        seed=_seed(body.seed),
        # No answer is longer than the context, however much is asked for.
        max_tokens=min(max_tokens, card.context_tokens),
        min_tokens=body.min_tokens or 0,
        stop_token_ids=_stop_token_ids(body, card),
        top_logprobs=top_logprobs,
        allowed_token_ids=_allowed_token_ids(body, card),
        bad_words=tuple(dict.fromkeys((*_bad_words(body, text.tokenizer), *never))),
        dry_sequence_breakers=_dry_breakers(body, values["dry_multiplier"], text.tokenizer),
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
    words = body.bad_words or []
    _check_length("bad_words", words, BAD_WORDS_COUNT_LIMIT)
    return tuple(each for word in words for each in _spellings("bad_words", word, tokenizer))


def _spellings(field: str, word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """As it is and after a space: in the middle of a text most tokenizers spell a word so, and
    then with other tokens."""
    if not 0 < len(word.strip()) <= len(word) <= BAD_WORD_CHARS_LIMIT:
        raise InvalidRequest(
            field, f"needs words of 1 to {BAD_WORD_CHARS_LIMIT} characters, not spaces"
        )
    spelled = (word, f" {word.lstrip()}")
    return [tokenizer.encode(each, add_special_tokens=False) for each in dict.fromkeys(spelled)]


def _dry_breakers(
    body: GenerationBody, dry_multiplier: float, tokenizer: Tokenizer
) -> tuple[int, ...]:
    """The tokens with which these texts end, alone and after a letter or a space."""
    breakers = DRY_BREAKERS if body.dry_sequence_breakers is None else body.dry_sequence_breakers
    field = "dry_sequence_breakers"
    _check_length(field, breakers, DRY_BREAKERS_COUNT_LIMIT)
    if not all(0 < len(each) <= DRY_BREAKER_CHARS_LIMIT for each in breakers):
        raise InvalidRequest(field, f"needs texts of 1 to {DRY_BREAKER_CHARS_LIMIT} characters")
    if not dry_multiplier:
        return ()
    spelled = [before + each for each in breakers for before in ("", "a", " ")]
    ends = (tokenizer.encode(each, add_special_tokens=False)[-1:] for each in spelled)
    return tuple(dict.fromkeys(token for end in ends for token in end))


def _check_length(field: str, entries: Sized, limit: int) -> None:
    """Before anything is done with each of them."""
    if len(entries) > limit:
        raise InvalidRequest(field, f"has more than {limit} entries")


def _logit_bias(
    body: GenerationBody, tokenizer: Tokenizer, card: ModelCard
) -> tuple[tuple[tuple[int, float], ...], tuple[tuple[int, ...], ...]]:
    """Biases of tokens, and what must never be drawn, as bad words. A word's bias is that of each
    token that it is spelled with, as llama.cpp has it."""
    asked = body.logit_bias or {}
    _check_length("logit_bias", asked, LOGIT_BIAS_LIMIT)
    biases: list[tuple[int, float]] = []
    never: list[tuple[int, ...]] = []
    words = 0
    for key, value in asked.items() if isinstance(asked, dict) else asked:
        if value is True:
            raise InvalidRequest("logit_bias", "needs numbers, or false for what is never drawn")
        token = _token_id(key)
        words += token is None
        if words > BAD_WORDS_COUNT_LIMIT:
            raise InvalidRequest("logit_bias", f"has more than {BAD_WORDS_COUNT_LIMIT} words")
        spelled = _spellings("logit_bias", str(key), tokenizer) if token is None else [(token,)]
        if value is False:
            never += spelled
        else:
            tokens = dict.fromkeys(each for spelling in spelled for each in spelling)
            biases += [(each, float(value)) for each in tokens]
    check_tokens("logit_bias", [token for token, _ in biases], card)
    check_tokens("logit_bias", [token for spelling in never for token in spelling], card)
    return tuple(biases), tuple(never)


def _token_id(key: int | str) -> int | None:
    """The id that a key of `logit_bias` is; None for a word."""
    if isinstance(key, int):
        return key
    return int(key) if key.isascii() and key.isdecimal() and len(key) < 12 else None
