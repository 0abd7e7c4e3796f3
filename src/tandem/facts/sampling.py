"""Sampling parameters of a request: how its tokens are drawn; checked once, never edited.

Together with the prompt, the seed makes an answer a pure function: token i of a sequence is drawn
with noise keyed by (seed, position, token id), so batching or moving a request changes nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tandem.facts.client_fields import client_field, client_fields
from tandem.facts.errors import InvalidRequest

SEED_LIMIT = 1 << 64
INT32_LIMIT = 1 << 31
TOP_LOGPROBS_LIMIT = 20
LOGIT_BIAS_LIMIT = 1024
STOP_TOKENS_LIMIT = 64
ALLOWED_TOKENS_LIMIT = 4096
# Of words, as token ids, and of all their tokens.
BAD_WORDS_LIMIT = 256
BAD_WORD_TOKENS_LIMIT = 4096
GRAMMAR_CHARS_LIMIT = 1 << 16
DRY_BREAKERS_LIMIT = 256


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """Everything that decides which token follows, given the logits.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1, `min_p` 0, `typical_p` 1, `xtc_probability` 0
    and `dry_multiplier` 0 switch those off. `dry_sequence_breakers` are tokens.
    `stop_token_ids` already holds the model's end-of-sequence ids unless the client ignores them.
    `top_logprobs` is None when no logprobs are wanted, else how many alternatives beside the
    chosen token; `prompt_logprobs` is the same of the prompt's tokens. Where there are
    `allowed_token_ids`, no other token is drawn; the last token of one of the `bad_words` is not
    drawn after the tokens before it, of the answer. The answer is a text of the `grammar` (as
    `text/grammars.py` writes it; empty: any text). What a client sets as it is stored is a
    `client_field`, declared here alone; the others are made of a request in
    `api/sampling_request.py`. Raises `InvalidRequest` naming the field.
    """

    temperature: float = client_field(
        1.0,
        "0 to 100; 0 is greedy. Default: what the checkpoint recommends, else 1.",
        between=(0.0, 100.0),
        recommended=True,
    )
    top_p: float = client_field(
        1.0,
        "Above 0, up to 1. Default: what the checkpoint recommends, else 1.",
        between=(0.0, 1.0),
        recommended=True,
    )
    top_k: int = client_field(
        0,
        "0 or -1 switches it off. Default: what the checkpoint recommends, else off.",
        between=(0, INT32_LIMIT - 1),
        recommended=True,
    )
    min_p: float = client_field(
        0.0,
        "0 to 1. Default: what the checkpoint recommends, else 0.",
        between=(0.0, 1.0),
        recommended=True,
    )
    typical_p: float = client_field(
        1.0,
        "Above 0, up to 1: locally typical sampling. Default: 1, which is off.",
        between=(0.0, 1.0),
    )
    xtc_probability: float = client_field(
        0.0,
        "0 to 1: how often XTC leaves out all of the likely tokens but the least likely of them.",
        between=(0.0, 1.0),
    )
    xtc_threshold: float = client_field(
        0.1,
        "0 to 1: the share from which on XTC takes a token for likely. Default: 0.1.",
        between=(0.0, 1.0),
    )
    dry_multiplier: float = client_field(
        0.0,
        "0 to 100: the weight of DRY, a penalty on tokens that would go on with a repetition.",
        between=(0.0, 100.0),
    )
    dry_base: float = client_field(
        1.75,
        "1 to 100: by what DRY's penalty grows with each repeated token. Default: 1.75.",
        between=(1.0, 100.0),
    )
    dry_allowed_length: int = client_field(
        2,
        "Repetitions of fewer tokens cost nothing in DRY. Default: 2.",
        between=(1, INT32_LIMIT - 1),
    )
    dry_penalty_last_n: int = client_field(
        -1,
        "DRY looks at so many of the last tokens of prompt and answer; -1 (default): at all.",
        between=(-1, INT32_LIMIT - 1),
    )
    repetition_penalty: float = client_field(
        1.0,
        "0.001 to 100. Default: what the checkpoint recommends, else 1.",
        between=(1e-3, 100.0),
        recommended=True,
    )
    presence_penalty: float = client_field(
        0.0, "-2 to 2, for tokens that the answer already has.", between=(-2.0, 2.0)
    )
    frequency_penalty: float = client_field(
        0.0, "-2 to 2, times how often the answer already has the token.", between=(-2.0, 2.0)
    )
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str = ""
    dry_sequence_breakers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            _within(name, getattr(self, name), low, high)
        _within("seed", self.seed, 0, SEED_LIMIT - 1)
        _within("max_tokens", self.max_tokens, 1, INT32_LIMIT - 1)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        for name in ("top_p", "typical_p"):
            if getattr(self, name) == 0.0:
                raise InvalidRequest(name, "must be greater than 0; use temperature 0 for greedy")
        for name in ("top_logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _within(name, getattr(self, name), 0, TOP_LOGPROBS_LIMIT)
        if len(self.logit_bias) > LOGIT_BIAS_LIMIT:
            raise InvalidRequest("logit_bias", f"has more than {LOGIT_BIAS_LIMIT} entries")
        if len(self.stop_token_ids) > STOP_TOKENS_LIMIT:
            raise InvalidRequest("stop_token_ids", f"has more than {STOP_TOKENS_LIMIT} entries")
        for _, bias in self.logit_bias:
            _within("logit_bias", bias, -100.0, 100.0)
        if len(self.allowed_token_ids) > ALLOWED_TOKENS_LIMIT:
            raise InvalidRequest("allowed_token_ids", f"has more than {ALLOWED_TOKENS_LIMIT} ids")
        if len(self.bad_words) > BAD_WORDS_LIMIT or not all(self.bad_words):
            raise InvalidRequest("bad_words", f"needs 1 to {BAD_WORDS_LIMIT} words, none empty")
        if sum(map(len, self.bad_words)) > BAD_WORD_TOKENS_LIMIT:
            raise InvalidRequest("bad_words", f"has more than {BAD_WORD_TOKENS_LIMIT} tokens")
        if len(self.grammar) > GRAMMAR_CHARS_LIMIT:
            raise InvalidRequest("grammar", f"has more than {GRAMMAR_CHARS_LIMIT} characters")
        if len(self.dry_sequence_breakers) > DRY_BREAKERS_LIMIT:
            raise InvalidRequest(
                "dry_sequence_breakers", f"has more than {DRY_BREAKERS_LIMIT} tokens"
            )

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the next token's logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def uses_dry(self) -> bool:
        """Whether DRY penalises anything."""
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n != 0

    @property
    def adjusts_logits(self) -> bool:
        """Whether anything beside penalties, temperature and filters changes what is drawn."""
        return (
            self.uses_dry
            or bool(self.logit_bias)
            or bool(self.allowed_token_ids)
            or bool(self.bad_words)
            or (self.min_tokens > 0 and bool(self.stop_token_ids))
        )

    @property
    def named_tokens(self) -> Iterator[tuple[str, int]]:
        """Every token id that it names, with the field that does."""
        yield from (("logit_bias", token) for token, _ in self.logit_bias)
        for field in ("stop_token_ids", "allowed_token_ids", "dry_sequence_breakers"):
            yield from ((field, token) for token in getattr(self, field))
        yield from (("bad_words", token) for word in self.bad_words for token in word)

    def seed_of_choice(self, choice: int) -> int:
        """The seed of the n-th parallel answer to one prompt; choice 0 keeps the client's seed."""
        # An odd multiplier spreads neighbouring seeds: seed 1 choice 1 is not seed 2 choice 0.
        return (self.seed + choice * 0x9E3779B97F4A7C15) % SEED_LIMIT


# Of each parameter that a client sets as it is stored.
_BOUNDS = tuple(
    (each.name, *each.between) for each in client_fields(SamplingParameters) if each.between
)


def _within(field: str, value: float, low: float, high: float) -> None:
    # NaN is in no range, and an int is compared as it is: one of 309 digits fits into no float.
    if not low <= value <= high:
        shown = repr(value) if abs(value) < 1e18 or isinstance(value, float) else "a huge number"
        raise InvalidRequest(field, f"must be between {low:g} and {high:g}, got {shown}")
