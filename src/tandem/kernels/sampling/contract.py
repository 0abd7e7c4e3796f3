"""Sampling as a pure function of (logits, parameters, seed, position).

token = argmax(logits / temperature + g) over the tokens that the filters keep; g is Gumbel noise
from Philox4x32-10 with key (seed_lo, seed_hi) and counter (token // 4, position_lo, position_hi,
0), output word token % 4, u = (word >> 8 + 0.5) / 2^24, g = -log(-log(u)) in float64.

The filters act on the tempered logits t in the order (t descending, id ascending), each keeping a
prefix: min_p (t - max >= log(min_p)), top_k (k tokens), top_p (renormalised over what is left; a
token stays while the mass before it is below top_p). Masses are exp(t - max) rounded down to
2^-40, so their sums are exact in any order. Ties go to the lower id everywhere.

A row whose logits hold a NaN, or whose largest is not finite, draws `NO_TOKEN`: there is nothing to
choose from, and an arbitrary id would pass for an answer.

Axes: R rows, V vocabulary, N requested alternatives.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tandem.kernels.errors import KernelArgumentError

# A unit of probability mass is 2^-40 of the most likely token's.
MASS_BITS = 40
# g lies in [-2.86, 17.33]: a token further than this below the maximum cannot win.
NOISE_SPAN = 20.3
# What a row draws from which nothing can be drawn.
NO_TOKEN = -1


@dataclass(frozen=True)
class SamplingRows:
    """Parallel arrays [R] on the device of the logits.

    temperature float32 (0: argmax), top_k int32 (0: off), top_p float32 (>= 1: off), min_p
    float32 (<= 0: off), seed int64 (all 64 bits), position int64.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor


@dataclass(frozen=True)
class TokenLogprobs:
    """log softmax of the raw logits: logprob and rank [R], top_ids and top_logprobs [R, N].

    Rank 1 is the most likely token; ties go to the lower id. Rows without a token, or from which
    none can be drawn, have NaN, rank 0 and ids 0.
    """

    logprob: Tensor
    rank: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


class Sample(Protocol):
    def __call__(self, logits_RV: Tensor, rows: SamplingRows) -> Tensor:
        """tokens_R, int64; `NO_TOKEN` where none can be drawn."""
        ...


class ScoreTokens(Protocol):
    def __call__(self, logits_RV: Tensor, tokens_R: Tensor, top_n: int) -> TokenLogprobs: ...


def check_sample(logits_RV: Tensor, rows: SamplingRows) -> None:
    count = logits_RV.shape[0]
    if logits_RV.dim() != 2 or logits_RV.shape[1] == 0:
        raise KernelArgumentError("logits_RV", tuple(logits_RV.shape), "[R, V] with V > 0")
    if rows.temperature.shape[0] != count or rows.seed.shape[0] != count:
        raise KernelArgumentError(
            "rows", (rows.temperature.shape[0], rows.seed.shape[0]), f"{count} entries each"
        )


def check_score(logits_RV: Tensor, tokens_R: Tensor, top_n: int) -> None:
    if tokens_R.shape[0] != logits_RV.shape[0]:
        raise KernelArgumentError("tokens_R", tuple(tokens_R.shape), f"[{logits_RV.shape[0]}]")
    if not 0 <= top_n <= logits_RV.shape[1]:
        raise KernelArgumentError("top_n", top_n, f"0..{logits_RV.shape[1]}")
