"""How does a client want its tokens drawn? Body fields over the model's defaults."""

from collections.abc import Sized
from dataclasses import dataclass, replace

from tandem.api.ambient import fresh_seed
from tandem.api.bodies import SamplingFields
from tandem.api.prompts import check_tokens
from tandem.facts.errors import InvalidRequest, PromptTooLong
from tandem.facts.sampling import (
    LOGIT_BIAS_LIMIT,
    SEED_LIMIT,
    STOP_TOKENS_LIMIT,
    SamplingParameters,
)
from tandem.facts.serving import ModelCard
from tandem.text.model import SamplingDefaults

STOP_STRINGS_LIMIT = 64
STOP_STRING_CHARS_LIMIT = 1024


@dataclass(frozen=True, slots=True)
class Wish:
    """What the two generating calls spell differently."""

    max_tokens: int
    top_logprobs: int | None


def sampling_parameters(
    body: SamplingFields, wish: Wish, defaults: SamplingDefaults, card: ModelCard
) -> SamplingParameters:
    """Raises `InvalidRequest` naming the field."""
    given = {
        name: value
        for name in (
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "presence_penalty",
            "frequency_penalty",
        )
        if (value := getattr(body, name, None)) is not None
    }
    recommended = {name: getattr(defaults, name) for name in SamplingDefaults.__dataclass_fields__}
    values = recommended | given
    # -1 is a common spelling of "no top-k".
    values["top_k"] = 0 if values["top_k"] == -1 else values["top_k"]
    return SamplingParameters(
        **values,
        logit_bias=_logit_bias(body, card),
        seed=_seed(body.seed),
        # No answer is longer than the context, however much is asked for.
        max_tokens=min(wish.max_tokens, card.context_tokens),
        min_tokens=body.min_tokens or 0,
        stop_token_ids=_stop_token_ids(body, card),
        top_logprobs=wish.top_logprobs,
    )


def fitted(sampling: SamplingParameters, prompt_tokens: int, card: ModelCard) -> SamplingParameters:
    """`sampling` with no more tokens than the context has left. Raises `PromptTooLong`."""
    room_tokens = card.context_tokens - prompt_tokens
    if prompt_tokens == 0:
        raise InvalidRequest("prompt", "has no tokens")
    if room_tokens < 1:
        raise PromptTooLong(prompt_tokens, card.context_tokens)
    return replace(sampling, max_tokens=min(sampling.max_tokens, room_tokens))


def stop_strings(body: SamplingFields) -> tuple[str, ...]:
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


def _stop_token_ids(body: SamplingFields, card: ModelCard) -> tuple[int, ...]:
    wanted = body.stop_token_ids or []
    _check_length("stop_token_ids", wanted, STOP_TOKENS_LIMIT)
    check_tokens("stop_token_ids", wanted, card)
    ends = () if body.ignore_eos else card.end_token_ids
    return tuple(dict.fromkeys([*ends, *wanted]))


def _check_length(field: str, entries: Sized, limit: int) -> None:
    """Before anything is done with each of them."""
    if len(entries) > limit:
        raise InvalidRequest(field, f"has more than {limit} entries")


def _logit_bias(body: SamplingFields, card: ModelCard) -> tuple[tuple[int, float], ...]:
    bias = []
    _check_length("logit_bias", body.logit_bias or {}, LOGIT_BIAS_LIMIT)
    for key, value in (body.logit_bias or {}).items():
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise InvalidRequest("logit_bias", f"needs token ids as keys, got {key[:32]!r}")
        bias.append((int(key), value))
    check_tokens("logit_bias", [token for token, _ in bias], card)
    return tuple(bias)
