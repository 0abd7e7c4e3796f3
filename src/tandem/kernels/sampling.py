"""Sampling as a pure function of (logits, parameters, seed, position), and log probabilities.

token = argmax(logits / temperature + g) over the tokens that the filters keep; g is Gumbel noise
from Philox4x32-10 with key (seed_lo, seed_hi) and counter (token // 4, position_lo, position_hi,
0), output word token % 4, u = (word >> 8 + 0.5) / 2^24, g = -log(-log(u)) in float64.

The filters act on the tempered logits t, sorted by (t descending, id ascending). Each keeps an
interval of what those before it have left, and renormalises over it:

1. min_p: t - max >= log(min_p).
2. top_k: the first k tokens.
3. top_p: a token stays while the mass before it is below top_p.
4. typical_p (locally typical sampling, Meister et al., TACL 2023): tokens whose surprise is nearest
   to its expectation, nearest first, while the mass before them is below typical_p, and all that
   are as near as the last of them.
5. XTC (exclude top choices, p-e-w 2024; as llama.cpp): of the tokens with at least the share
   xtc_threshold all but the least likely are left out, if a coin says so: u of the first output
   word of counter (0, position_lo, position_hi, 1), which no noise uses, is below xtc_probability.

Masses are exp(t - max) rounded down to 2^-40, so their sums are exact in any order, and so is the
expected surprise: the mean of max - t but for a constant, mass * (max - t) rounded down. What
typical_p keeps or XTC leaves has some mass. Ties go to the lower id everywhere.

Candidates for a draft are what a row draws, what it would draw without that, and so on, each with
its score t + g (greedy: its logit): they are drawn from a likeness of the logits of the model, with
the same noise, so that the token itself is one of them as often as may be.

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
# And those of `LateFilters`.
LATE_DTYPES = (
    ("typical_p", torch.float32),
    ("xtc_threshold", torch.float32),
    ("xtc_probability", torch.float32),
)

WORD = 0xFFFFFFFF
ROUNDS = 10
# The last word of a counter.
NOISE_STREAM, COIN_STREAM = 0, 1
MULTIPLIER_0, MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
WEYL_0, WEYL_1 = 0x9E3779B9, 0xBB67AE85

Words = tuple[Tensor, Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class LateFilters:
    """Of the filters that act after top_p, which few requests use: parallel arrays [R] on the
    device of the logits. typical_p float32 (>= 1: off), xtc_threshold float32, xtc_probability
    float32 (<= 0: off).
    """

    typical_p: Tensor
    xtc_threshold: Tensor
    xtc_probability: Tensor


@dataclass(frozen=True)
class SamplingRows:
    """Parallel arrays [R] on the device of the logits.

    temperature float32 (0: argmax), top_k int32 (0: off), top_p float32 (>= 1: off), min_p
    float32 (<= 0: off), seed int64 (all 64 bits), position int64. `late` is None where no row has
    such a filter: then nothing is spent on them.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    position: Tensor
    late: LateFilters | None = None


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


@dataclass(frozen=True)
class DraftCandidates:
    """tokens_RN int64, the likeliest first, `NO_TOKEN` where there are no more; scores_RN float64,
    minus infinity there."""

    tokens: Tensor
    scores: Tensor


class SampleCandidates(Protocol):
    def __call__(self, logits_RV: Tensor, rows: SamplingRows, count: int) -> DraftCandidates:
        """`count` of each row. Overwrites logits."""
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
    words = words_at(quads, seed_R, position_R, NOISE_STREAM)
    word_RV = torch.stack(words, dim=-1).flatten(1)[:, :vocabulary]
    return -torch.log(-torch.log(uniform(word_RV)))


def coin(seed_R: Tensor, position_R: Tensor) -> Tensor:
    """uniform_R in float64, of which no token's noise depends."""
    words = words_at(torch.zeros_like(seed_R[:, None]), seed_R, position_R, COIN_STREAM)
    return uniform(words[0])[:, 0]


def words_at(first_RN: Tensor, seed_R: Tensor, position_R: Tensor, stream: int) -> Words:
    """The output words of counters (first, position_lo, position_hi, stream)."""
    seed_R1, position_R1 = seed_R[:, None], position_R[:, None]
    place = (position_R1 & WORD, (position_R1 >> 32) & WORD)
    counter = (first_RN, *place, torch.full_like(position_R1, stream))
    return philox(counter, (seed_R1 & WORD, (seed_R1 >> 32) & WORD))


def uniform(word: Tensor) -> Tensor:
    return ((word >> 8).to(torch.float64) + 0.5) * 2.0**-24


def sample(logits_RV: Tensor, rows: SamplingRows) -> Tensor:
    """The reference: one stable sort, intervals, an argmax."""
    tokens_R, _ = draw(logits_RV, rows)
    return tokens_R


def sample_candidates(logits_RV: Tensor, rows: SamplingRows, count: int) -> DraftCandidates:
    """The reference: one draw after the other."""
    drawn = []
    for _ in range(count):
        tokens_R, scores_R = draw(logits_RV, rows)
        drawn.append((tokens_R, scores_R))
        found_R = tokens_R != NO_TOKEN
        logits_RV[found_R, tokens_R[found_R]] = -torch.inf
    tokens, scores = zip(*drawn, strict=True)
    return DraftCandidates(torch.stack(tokens, dim=1), torch.stack(scores, dim=1))


def draw(logits_RV: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """The token of each row, and its score; minus infinity where there is none."""
    check_sample(logits_RV, rows)
    greedy_R = rows.temperature <= 0
    temperature_R1 = torch.where(greedy_R, 1.0, rows.temperature)[:, None]
    tempered_RV, ids_RV = torch.sort(
        logits_RV.to(torch.float32) / temperature_R1, dim=1, descending=True, stable=True
    )
    first_R, end_R = kept_interval(tempered_RV.to(torch.float64), rows)
    first_R, end_R = torch.where(greedy_R, 0, first_R), torch.where(greedy_R, 1, end_R)
    noise_RV = gumbel(rows.seed, rows.position, logits_RV.shape[1]).gather(1, ids_RV)
    noise_RV = torch.where(greedy_R[:, None], 0.0, noise_RV)
    score_RV = torch.where(
        within(first_R, end_R, logits_RV), tempered_RV.to(torch.float64) + noise_RV, -torch.inf
    )
    best_R1 = score_RV.amax(dim=1, keepdim=True)
    drawn_R = torch.where(score_RV == best_R1, ids_RV, logits_RV.shape[1]).amin(dim=1)
    draws_R = can_draw(logits_RV)
    return (
        torch.where(draws_R, drawn_R, NO_TOKEN),
        torch.where(draws_R, best_R1[:, 0], -torch.inf),
    )


def can_draw(logits_RV: Tensor) -> Tensor:
    """Which rows a token can be drawn from: the largest of a row with a NaN is NaN."""
    return torch.isfinite(logits_RV.amax(dim=1))


def within(first_R: Tensor, end_R: Tensor, like_RV: Tensor) -> Tensor:
    """Which places of the sorted tokens lie in these intervals, as RV."""
    place_V = torch.arange(like_RV.shape[1], device=like_RV.device)
    return (place_V >= first_R[:, None]) & (place_V < end_R[:, None])


def kept_interval(tempered_RV: Tensor, rows: SamplingRows) -> tuple[Tensor, Tensor]:
    """Where the sorted tokens that pass all filters begin and end; at least one passes."""
    below_RV = tempered_RV[:, :1] - tempered_RV
    mass_RV = torch.floor(torch.exp(-below_RV) * 2.0**MASS_BITS).nan_to_num().long()
    end_R = kept_prefix(below_RV, mass_RV, rows)
    first_R = torch.zeros_like(end_R)
    if rows.late is None:
        return first_R, end_R

    mass_RV = torch.where(within(first_R, end_R, mass_RV), mass_RV, 0)
    typical_RV = is_typical(below_RV, mass_RV, rows.late.typical_p)
    is_on_R = (rows.late.typical_p < 1) & typical_RV.any(dim=1)
    first_R = torch.where(is_on_R, typical_RV.to(torch.uint8).argmax(dim=1), first_R)
    end_R = torch.where(is_on_R, first_R + typical_RV.sum(dim=1), end_R)

    mass_RV = torch.where(within(first_R, end_R, mass_RV), mass_RV, 0)
    least_R = rows.late.xtc_threshold.to(torch.float64) * mass_RV.sum(dim=1).to(torch.float64)
    likely_R = ((mass_RV > 0) & (mass_RV.to(torch.float64) >= least_R[:, None])).sum(dim=1)
    thrown_R = coin(rows.seed, rows.position) < rows.late.xtc_probability.to(torch.float64)
    excludes_R = thrown_R & (likely_R > 1)
    end_R = torch.where(excludes_R, first_R + (mass_RV > 0).sum(dim=1), end_R)
    return torch.where(excludes_R, first_R + likely_R - 1, first_R), end_R


def kept_prefix(below_RV: Tensor, mass_RV: Tensor, rows: SamplingRows) -> Tensor:
    """How many of the sorted tokens pass min_p, then top_k, then top_p; at least one."""
    vocabulary = below_RV.shape[1]
    floor_R = torch.log(rows.min_p.to(torch.float64).clamp(min=0.0))
    kept_R = (-below_RV >= floor_R[:, None]).sum(dim=1)
    top_k_R = torch.where(rows.top_k > 0, rows.top_k.long(), vocabulary)
    kept_R = torch.minimum(kept_R, top_k_R).clamp(min=1)

    mass_RV = torch.where(within(torch.zeros_like(kept_R), kept_R, mass_RV), mass_RV, 0)
    before_RV = mass_RV.cumsum(dim=1) - mass_RV
    share_R = rows.top_p.to(torch.float64) * mass_RV.sum(dim=1).to(torch.float64)
    nucleus_R = (before_RV.to(torch.float64) < share_R[:, None]).sum(dim=1).clamp(min=1)
    return torch.where(rows.top_p < 1, torch.minimum(kept_R, nucleus_R), kept_R)


def is_typical(below_RV: Tensor, mass_RV: Tensor, typical_p_R: Tensor) -> Tensor:
    """Which of the tokens with some mass typical_p keeps. Their surprise is max - t and a constant,
    so its distance from the entropy is that of max - t from its mean."""
    total_R1 = mass_RV.sum(dim=1, keepdim=True).to(torch.float64)
    weighted_RV = torch.floor(mass_RV.to(torch.float64) * below_RV)
    weighted_RV = torch.where(mass_RV > 0, weighted_RV, 0.0).long()
    mean_R1 = weighted_RV.sum(dim=1, keepdim=True).to(torch.float64) / total_R1
    distance_RV = torch.where(mass_RV > 0, (below_RV - mean_R1).abs(), torch.inf)
    nearest_RV, order_RV = torch.sort(distance_RV, dim=1, stable=True)
    nearest_mass_RV = mass_RV.gather(1, order_RV)
    before_RV = nearest_mass_RV.cumsum(dim=1) - nearest_mass_RV
    share_R1 = typical_p_R.to(torch.float64)[:, None] * total_R1
    kept_R1 = (before_RV.to(torch.float64) < share_R1).sum(dim=1, keepdim=True).clamp(min=1)
    return (mass_RV > 0) & (distance_RV <= nearest_RV.gather(1, kept_R1 - 1))


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
            *(Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Pointer, Integer),
        )

    def __call__(self, logits_RV: Tensor, rows: SamplingRows) -> Tensor:
        tokens_R = torch.empty(logits_RV.shape[0], dtype=torch.int64)
        arguments = native_arguments(logits_RV, rows)
        self.run(*arguments, tokens_R.data_ptr(), torch.get_num_threads())
        return tokens_R


class NativeSampleCandidates:
    """The same as the reference, one row a thread."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_sample_candidates",
            *(Pointer, Integer, Integer, Integer, Pointer, Pointer, Pointer, Pointer, Pointer),
            *(Pointer, Pointer, Pointer, Pointer, Integer, Pointer, Pointer, Integer),
        )

    def __call__(self, logits_RV: Tensor, rows: SamplingRows, count: int) -> DraftCandidates:
        tokens_RN = torch.empty((logits_RV.shape[0], count), dtype=torch.int64)
        scores_RN = torch.empty(tokens_RN.shape, dtype=torch.float64)
        self.run(
            *native_arguments(logits_RV, rows),
            count,
            tokens_RN.data_ptr(),
            scores_RN.data_ptr(),
            torch.get_num_threads(),
        )
        return DraftCandidates(tokens_RN, scores_RN)


def native_arguments(logits_RV: Tensor, rows: SamplingRows) -> tuple[int | None, ...]:
    """Logits and parameters, as the native functions read them."""
    check_sample(logits_RV, rows)
    require_rows("logits_RV", logits_RV)
    for name, dtype in ROW_DTYPES:
        require_whole(name, getattr(rows, name), dtype)
    late: list[int | None] = [None] * len(LATE_DTYPES)
    if rows.late is not None:
        for name, dtype in LATE_DTYPES:
            require_whole(name, getattr(rows.late, name), dtype)
        late = [getattr(rows.late, name).data_ptr() for name, _ in LATE_DTYPES]
    return (
        logits_RV.data_ptr(),
        logits_RV.stride(0),
        *logits_RV.shape,
        rows.temperature.data_ptr(),
        rows.top_k.data_ptr(),
        rows.top_p.data_ptr(),
        rows.min_p.data_ptr(),
        *late,
        rows.seed.data_ptr(),
        rows.position.data_ptr(),
    )


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
