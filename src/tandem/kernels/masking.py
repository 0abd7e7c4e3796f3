"""Bit masks over logits: what a grammar does not allow becomes minus infinity.

A NaN stays one, wherever it is, so that a row without numbers is found out.
Axes: R rows, V vocabulary, W words of 32 tokens, the lowest bit first.
"""

from typing import Protocol

import torch
from torch import Tensor

from tandem.kernels.arguments import require_rows
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer


class MaskLogits(Protocol):
    def __call__(self, logits_RV: Tensor, allowed_RW: Tensor) -> None:
        """In place: float32 logits (float64 stays) of tokens whose bit is 0 in `allowed_RW`, int32
        on the same device."""
        ...


def check_mask(logits_RV: Tensor, allowed_RW: Tensor) -> None:
    rows, vocabulary = logits_RV.shape
    expected = (rows, -(-vocabulary // 32))
    if tuple(allowed_RW.shape) != expected or allowed_RW.dtype is not torch.int32:
        found = (tuple(allowed_RW.shape), allowed_RW.dtype)
        raise KernelArgumentError("allowed_RW", found, f"{expected} of int32")


def mask_logits(logits_RV: Tensor, allowed_RW: Tensor) -> None:
    """The reference."""
    check_mask(logits_RV, allowed_RW)
    bits = torch.arange(32, dtype=torch.int32, device=allowed_RW.device)
    allowed_RV = ((allowed_RW[:, :, None] >> bits) & 1).flatten(1)[:, : logits_RV.shape[1]]
    logits_RV += torch.zeros_like(logits_RV).masked_fill_(allowed_RV == 0, -torch.inf)


class NativeMaskLogits:
    """The same, a row a thread."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_mask_logits",
            *(Pointer, Integer, Integer, Integer, Pointer, Integer, Integer),
        )

    def __call__(self, logits_RV: Tensor, allowed_RW: Tensor) -> None:
        check_mask(logits_RV, allowed_RW)
        require_rows("logits_RV", logits_RV)
        rows, vocabulary = logits_RV.shape
        self.run(
            logits_RV.data_ptr(),
            logits_RV.stride(0),
            rows,
            vocabulary,
            allowed_RW.data_ptr(),
            allowed_RW.stride(0),
            torch.get_num_threads(),
        )
