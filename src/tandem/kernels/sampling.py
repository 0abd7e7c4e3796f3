"""Sampling as a pure function of (logits, parameters, seed, position), and log probabilities.

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

import torch
from torch import Tensor

from tandem.kernels.arguments import require_rows, require_whole
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer

# A unit of probability mass is 2^-40 of the most likely token's.
MASS_BITS = 40
# What a row draws from which nothing can be drawn.
NO_TOKEN = -1
# The columns of `SamplingRows`, as the native kernel reads them.
ROW_DTYPES = (
    ("temperature", torch.float32),
    ("top_k", torch.int32),
    ("top_p", torch.float32),
    ("min_p", torch.float32),
    ("seed", torch.int64),
    ("position", torch.int64),
)

WORD = 0xFFFFFFFF
ROUNDS = 10
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85

Words = tuple[Tensor, Tensor, Tensor, Tensor]


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


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Philox4x32-10 (Salmon et al., Parallel random numbers, SC 2011): four output words of each
    counter; all tensors int64 holding 32 bits, broadcast together."""
    word_0, word_1, word_2, word_3 = counter
    key_0, key_1 = key
    for _ in range(ROUNDS):
        high_0, low_0 = multiply(word_0, MULTIPLIER_0)
        high_1, low_1 = multiply(word_2, MULTIPLIER_1)
        word_0, word_1 = high_1 ^ word_1 ^ key_0, low_1
        word_2, word_3 = high_0 ^ word_3 ^ key_1, low_0
        key_0, key_1 = (key_0 + WEYL_0) & WORD, (key_1 + WEYL_1) & WORD
    return word_0, word_1, word_2, word_3


def multiply(word: Tensor, multiplier: int) -> tuple[Tensor, Tensor]:
    # int64 products wrap, but their 64 bits are those of the unsigned product.
    product = word * multiplier
    return (product >> 32) & WORD, product & WORD


def gumbel(seed_R: Tensor, position_R: Tensor, vocabulary: int) -> Tensor:
    """noise_RV in float64."""
    quads = torch.arange((vocabulary + 3) // 4, device=seed_R.device)[None, :]
    seed_R1, position_R1 = seed_R[:, None], position_R[:, None]
    counter = (
        quads,
        position_R1 & WORD,
        (position_R1 >> 32) & WORD,
        torch.zeros_like(position_R1),
    )
    words = philox(counter, (seed_R1 & WORD, (seed_R1 >> 32) & WORD))
    word_RV = torch.stack(words, dim=-1).flatten(1)[:, :vocabulary]
    uniform_RV = ((word_RV >> 8).to(torch.float64) + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform_RV))


def sample(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """The reference: one stable sort, prefixes, an argmax."""
    check_sample(logits_RV, rows)
    greedy_R = rows.temperature <= 0
    temperature_R1 = torch.where(greedy_R, 1.0, rows.temperature)[:, None]
    tempered_RV, ids_RV = torch.sort(
        logits_RV.to(torch.float32) / temperature_R1, dim=1, descending=True, stable=True
    )
    kept_R = torch.where(greedy_R, 1, kept_prefix(tempered_RV.to(torch.float64), rows))
    place_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    noise_RV = gumbel(rows.seed, rows.position, logits_RV.shape[1]).gather(1, ids_RV)
    score_RV = torch.where(
        place_V < kept_R[:, None], tempered_RV.to(torch.float64) + noise_RV, -torch.inf
    )
    best_R1 = score_RV.amax(dim=1, keepdim=True)
    drawn_R = torch.where(score_RV == best_R1, ids_RV, logits_RV.shape[1]).amin(dim=1)
    return torch.where(can_draw(logits_RV), drawn_R, NO_TOKEN)


def can_draw(logits_RV: Tensor) -> Tensor:
    """Which rows a token can be drawn from: the largest of a row with a NaN is NaN."""
    return torch.isfinite(logits_RV.amax(dim=1))


def kept_prefix(tempered_RV: Tensor, rows: SamplingRows) -> Tensor:
    """How many of the sorted tokens pass min_p, then top_k, then top_p; at least one."""
    vocabulary = tempered_RV.shape[1]
    below_max_RV = tempered_RV - tempered_RV[:, :1]
    floor_R = torch.log(rows.min_p.to(torch.float64).clamp(min=0.0))
    kept_R = (below_max_RV >= floor_R[:, None]).sum(dim=1)
    top_k_R = torch.where(rows.top_k > 0, rows.top_k.long(), vocabulary)
    kept_R = torch.minimum(kept_R, top_k_R)

    place_V = torch.arange(vocabulary, device=tempered_RV.device)
    mass_RV = torch.floor(torch.exp(below_max_RV) * 2.0**MASS_BITS).long()
    mass_RV = torch.where(place_V < kept_R[:, None], mass_RV, 0)
    before_RV = mass_RV.cumsum(dim=1) - mass_RV
    share_R = rows.top_p.to(torch.float64) * mass_RV.sum(dim=1).to(torch.float64)
    nucleus_R = (before_RV.to(torch.float64) < share_R[:, None]).sum(dim=1)
    kept_R = torch.where(rows.top_p < 1, torch.minimum(kept_R, nucleus_R), kept_R)
    return kept_R.clamp(min=1)


def token_logprobs(logits_RV: Tensor, tokens_R: Tensor, top_n: int) -> TokenLogprobs:
    check_score(logits_RV, tokens_R, top_n)
    wide_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
    scored_R = can_draw(wide_RV) & (tokens_R != NO_TOKEN)
    # Whatever is computed for the other rows is not used, but has to be possible.
    tokens_R = torch.where(scored_R, tokens_R, 0)
    logprob_RV = torch.log_softmax(wide_RV, dim=1)
    own_R1 = wide_RV.gather(1, tokens_R[:, None])
    id_V = torch.arange(logits_RV.shape[1], device=logits_RV.device)
    ahead_RV = (wide_RV > own_R1) | ((wide_RV == own_R1) & (id_V < tokens_R[:, None]))
    ids_RV = torch.sort(wide_RV, dim=1, descending=True, stable=True).indices[:, :top_n]
    return TokenLogprobs(
        logprob=torch.where(scored_R, logprob_RV.gather(1, tokens_R[:, None])[:, 0], torch.nan),
        rank=torch.where(scored_R, ahead_RV.sum(dim=1) + 1, 0),
        top_ids=torch.where(scored_R[:, None], ids_RV, 0),
        top_logprobs=torch.where(scored_R[:, None], logprob_RV.gather(1, ids_RV), torch.nan),
    )


class NativeSample:
    """The same tokens as the reference, one row a thread. Parameter arrays must be contiguous."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_sample",
            *(Pointer, Integer, Integer, Integer, Pointer, Pointer),
            *(Pointer, Pointer, Pointer, Pointer, Pointer, Integer),
        )

    def __call__(self, logits_RV: Tensor, rows: SamplingRows) -> Tensor:
        check_sample(logits_RV, rows)
        require_rows("logits_RV", logits_RV)
        for name, dtype in ROW_DTYPES:
            require_whole(name, getattr(rows, name), dtype)
        count, vocabulary = logits_RV.shape
        tokens_R = torch.empty(count, dtype=torch.int64)
        self.run(
            logits_RV.data_ptr(),
            logits_RV.stride(0),
            count,
            vocabulary,
            rows.temperature.data_ptr(),
            rows.top_k.data_ptr(),
            rows.top_p.data_ptr(),
            rows.min_p.data_ptr(),
            rows.seed.data_ptr(),
            rows.position.data_ptr(),
            tokens_R.data_ptr(),
            torch.get_num_threads(),
        )
        return tokens_R


class NativeTokenLogprobs:
    """Log probabilities in float32; the normaliser is summed in double."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_token_logprobs",
            *(Pointer, Integer, Integer, Integer, Pointer, Integer),
            *(Pointer, Pointer, Pointer, Pointer, Integer),
        )

    def __call__(self, logits_RV: Tensor, tokens_R: Tensor, top_n: int) -> TokenLogprobs:
        check_score(logits_RV, tokens_R, top_n)
        require_rows("logits_RV", logits_RV)
        require_whole("tokens_R", tokens_R, torch.int64)
        count, vocabulary = logits_RV.shape
        scored = TokenLogprobs(
            logprob=torch.empty(count),
            rank=torch.empty(count, dtype=torch.int64),
            top_ids=torch.empty(count, top_n, dtype=torch.int64),
            top_logprobs=torch.empty(count, top_n),
        )
        self.run(
            logits_RV.data_ptr(),
            logits_RV.stride(0),
            count,
            vocabulary,
            tokens_R.data_ptr(),
            top_n,
            scored.logprob.data_ptr(),
            scored.rank.data_ptr(),
            scored.top_ids.data_ptr(),
            scored.top_logprobs.data_ptr(),
            torch.get_num_threads(),
        )
        return scored
