"""Repetitions: where the end of a sequence stood before, and how much of it.

lengths[i] is how many tokens before place i equal the last ones of the sequence, in order: what
follows such a place once would, drawn now, repeat so many tokens and one more. Linear in the
number of tokens, by the Z function (Gusfield 1997) of the reversed sequence.

Axes: N tokens.
"""

from typing import Protocol

import torch
from torch import Tensor

from tandem.kernels.arguments import require_whole
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer


class RepeatedSuffixes(Protocol):
    def __call__(self, tokens_N: Tensor) -> Tensor:
        """lengths_N, int32; `tokens_N` is int32 on the CPU. The first is 0."""
        ...


def check_tokens(tokens_N: Tensor) -> None:
    if tokens_N.dim() != 1:
        raise KernelArgumentError("tokens_N", tuple(tokens_N.shape), "[N]")
    require_whole("tokens_N", tokens_N, torch.int32)


def repeated_suffixes(tokens_N: Tensor) -> Tensor:
    """The reference."""
    check_tokens(tokens_N)
    backwards = tokens_N.tolist()[::-1]
    count = len(backwards)
    matches = [0] * count
    # What is known to equal the beginning lies in [left, right).
    left = right = 0
    for place in range(1, count):
        matched = min(matches[place - left], right - place) if place < right else 0
        if place + matched >= right:
            while place + matched < count and backwards[matched] == backwards[place + matched]:
                matched += 1
            left, right = place, place + matched
        matches[place] = matched
    return torch.tensor([0, *matches[:0:-1]][:count], dtype=torch.int32)


class NativeRepeatedSuffixes:
    """The same, in C++."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function("tandem_repeated_suffixes", Pointer, Integer, Pointer)

    def __call__(self, tokens_N: Tensor) -> Tensor:
        check_tokens(tokens_N)
        lengths_N = torch.empty(len(tokens_N), dtype=torch.int32)
        self.run(tokens_N.data_ptr(), len(tokens_N), lengths_N.data_ptr())
        return lengths_N
