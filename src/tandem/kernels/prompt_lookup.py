"""Prompt look-up (Saxena 2023): guesses at what a sequence says next, out of what followed the
newest earlier place where its longest end stands.

Guesses of others can be mixed in: each that is looked up goes on from all before it. Linear in the
tokens of the sequence.
Axes: S slots, N tokens of a sequence, D sequences, H guesses behind each other.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.kernels.arguments import require_whole
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer
from tandem.kernels.sampling import NO_TOKEN


@dataclass(frozen=True, slots=True)
class NgramSizes:
    """Of the ends that are looked for: the longest first, and none shorter than `least`."""

    least: int = 2
    most: int = 4


@dataclass(frozen=True, slots=True)
class KnownTokens:
    """Of sequences in `slots` [D], the first `ends` [D] (at least 1) of the `tokens` [S, N]; all
    int32. The slots and ends are on the CPU."""

    tokens: Tensor
    slots: Tensor
    ends: Tensor


class LookUpPrompt(Protocol):
    def __call__(
        self, known: KnownTokens, sizes: NgramSizes, guesses_DH: Tensor, wanted_DH: Tensor
    ) -> None:
        """Overwrites guesses (int64, on the CPU) where they are `wanted_DH` (bool) and something is
        found; behind a guess that is `NO_TOKEN` all are. A guess that is wanted behind one that was
        found comes from behind that."""
        ...


def check_look_up(
    known: KnownTokens, sizes: NgramSizes, guesses_DH: Tensor, wanted_DH: Tensor
) -> None:
    rows = len(known.slots)
    require_whole("slots", known.slots, torch.int32)
    require_whole("ends", known.ends, torch.int32)
    require_whole("guesses_DH", guesses_DH, torch.int64)
    require_whole("wanted_DH", wanted_DH, torch.bool)
    if len(known.ends) != rows or len(guesses_DH) != rows or guesses_DH.dim() != 2:
        found = (rows, len(known.ends), tuple(guesses_DH.shape))
        raise KernelArgumentError("guesses_DH", found, "a row, a slot and an end for each sequence")
    if wanted_DH.shape != guesses_DH.shape:
        raise KernelArgumentError("wanted_DH", tuple(wanted_DH.shape), "the shape of guesses_DH")
    if not 1 <= sizes.least <= sizes.most:
        raise KernelArgumentError("sizes", (sizes.least, sizes.most), "1 <= least <= most")


def look_up_prompt(
    known: KnownTokens, sizes: NgramSizes, guesses_DH: Tensor, wanted_DH: Tensor
) -> None:
    """The reference."""
    check_look_up(known, sizes, guesses_DH, wanted_DH)
    slots, ends = known.slots.tolist(), known.ends.tolist()
    for row, (slot, end) in enumerate(zip(slots, ends, strict=True)):
        said: list[int] = known.tokens[slot, :end].tolist()
        guesses, follows = guesses_DH[row].tolist(), 0
        for place, (guess, wanted) in enumerate(zip(guesses, wanted_DH[row].tolist(), strict=True)):
            if wanted:
                follows = follows + 1 if follows else _behind_end(said, sizes)
            else:
                follows = 0
            token = said[follows] if follows else guess
            if token < 0:
                guesses_DH[row, place:] = NO_TOKEN
                break
            guesses_DH[row, place] = token
            said.append(token)


def _behind_end(said: list[int], sizes: NgramSizes) -> int:
    """The place behind the newest earlier one where the longest end of these stands, or 0."""
    for size in range(min(sizes.most, len(said) - 1), sizes.least - 1, -1):
        end = said[-size:]
        for first in range(len(said) - size - 1, -1, -1):
            if said[first : first + size] == end:
                return first + size
    return 0


class NativeLookUpPrompt:
    """The same, in C++."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_look_up_prompt",
            *(Pointer, Integer, Pointer, Pointer, Integer, Integer, Integer),
            *(Pointer, Integer, Pointer),
        )

    def __call__(
        self, known: KnownTokens, sizes: NgramSizes, guesses_DH: Tensor, wanted_DH: Tensor
    ) -> None:
        check_look_up(known, sizes, guesses_DH, wanted_DH)
        require_whole("tokens", known.tokens, torch.int32)
        self.run(
            known.tokens.data_ptr(),
            known.tokens.stride(0),
            known.slots.data_ptr(),
            known.ends.data_ptr(),
            *(len(known.slots), sizes.least, sizes.most),
            guesses_DH.data_ptr(),
            guesses_DH.shape[1],
            wanted_DH.data_ptr(),
        )
