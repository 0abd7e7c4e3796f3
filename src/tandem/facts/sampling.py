"""Sampling parameters, checked once, never edited.

Together with the prompt, the seed makes an answer a pure function: token i of a sequence is drawn
with noise keyed by (seed, position, token id), so batching or moving a request changes nothing.
"""

from dataclasses import dataclass

from tandem.facts.errors import InvalidRequest

SEED_LIMIT = 1 << 64
INT32_LIMIT = 1 << 31
TOP_LOGPROBS_LIMIT = 20
LOGIT_BIAS_LIMIT = 1024
STOP_TOKENS_LIMIT = 64


@dataclass(frozen=True, slots=True)
class SamplingParameters:
    """Everything that decides which token follows, given the logits.

    `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch those filters off.
    `stop_token_ids` already holds the model's end-of-sequence ids unless the client ignores them.
    `top_logprobs` is None when no logprobs are wanted, else how many alternatives beside the
    chosen token. Raises `InvalidRequest` naming the field.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        _within("temperature", self.temperature, 0.0, 100.0)
        _within("top_p", self.top_p, 0.0, 1.0)
        _within("min_p", self.min_p, 0.0, 1.0)
        _within("repetition_penalty", self.repetition_penalty, 1e-3, 100.0)
        _within("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _within("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _within("top_k", self.top_k, 0, INT32_LIMIT - 1)
        _within("seed", self.seed, 0, SEED_LIMIT - 1)
        _within("max_tokens", self.max_tokens, 1, INT32_LIMIT - 1)
        _within("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.top_p == 0.0:
            raise InvalidRequest("top_p", "must be greater than 0; use temperature 0 for greedy")
        if self.top_logprobs is not None:
            _within("top_logprobs", self.top_logprobs, 0, TOP_LOGPROBS_LIMIT)
        if len(self.logit_bias) > LOGIT_BIAS_LIMIT:
            raise InvalidRequest("logit_bias", f"has more than {LOGIT_BIAS_LIMIT} entries")
        if len(self.stop_token_ids) > STOP_TOKENS_LIMIT:
            raise InvalidRequest("stop_token_ids", f"has more than {STOP_TOKENS_LIMIT} entries")
        for _, bias in self.logit_bias:
            _within("logit_bias", bias, -100.0, 100.0)

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far change the next token's logits."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def seed_of_choice(self, choice: int) -> int:
        """The seed of the n-th parallel answer to one prompt; choice 0 keeps the client's seed."""
        # An odd multiplier spreads neighbouring seeds: seed 1 choice 1 is not seed 2 choice 0.
        return (self.seed + choice * 0x9E3779B97F4A7C15) % SEED_LIMIT


def _within(field: str, value: float, low: float, high: float) -> None:
    # NaN is in no range, and an int is compared as it is: one of 309 digits fits into no float.
    if not low <= value <= high:
        shown = repr(value) if abs(value) < 1e18 or isinstance(value, float) else "a huge number"
        raise InvalidRequest(field, f"must be between {low:g} and {high:g}, got {shown}")
