"""DRY ("don't repeat yourself", p-e-w 2024): what tokens cost that would go on with a repetition.

A token that once followed the last L tokens of a sequence costs multiplier * base^(L - allowed
length), for the longest such L that is at least the allowed length; as text-generation-webui and
llama.cpp have it. Nothing is matched across a sequence breaker, and breakers themselves are free.
A function of the tokens alone.
Axes: N tokens, M distinct tokens that cost something.
"""

import math

import numpy as np
import torch
from torch import Tensor

from tandem.facts.sampling import SamplingParameters
from tandem.kernels.repetition import RepeatedSuffixes

# base^exponent is at most e^60: nothing is drawn in spite of that, and sums with it are finite.
_MOST_NATS = 60.0


def dry_penalties(
    tokens_N: Tensor, sampling: SamplingParameters, repeated_suffixes: RepeatedSuffixes
) -> tuple[Tensor, Tensor]:
    """(ids_M int64, penalties_M float64) after the tokens so far, which are int32 on the CPU: all
    that DRY looks at."""
    lengths_N = repeated_suffixes(tokens_N).numpy()
    tokens = tokens_N.numpy()
    is_breaker_N = np.isin(tokens, sampling.dry_sequence_breakers)
    breakers = np.flatnonzero(is_breaker_N)
    if len(breakers):
        lengths_N = np.minimum(lengths_N, len(tokens) - 1 - breakers[-1])
    costs_N = (lengths_N >= sampling.dry_allowed_length) & ~is_breaker_N
    ids_M, places = np.unique(tokens[costs_N], return_inverse=True)
    longest_M = np.zeros(len(ids_M), np.int64)
    np.maximum.at(longest_M, places, lengths_N[costs_N])
    exponents_M = longest_M - sampling.dry_allowed_length
    if sampling.dry_base > 1.0:
        exponents_M = np.minimum(exponents_M, int(_MOST_NATS / math.log(sampling.dry_base)))
    penalties_M = sampling.dry_multiplier * np.power(float(sampling.dry_base), exponents_M)
    return torch.from_numpy(ids_M.astype(np.int64)), torch.from_numpy(penalties_M)
