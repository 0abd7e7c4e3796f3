"""Root mean square normalisation, alone or fused with the residual addition:
y = x / sqrt(mean(x^2) + eps) * (weight + offset) over the last axis.

Axes: T packed tokens, H heads (optional), C features; a head view [T, H, D] is welcome.
"""

from typing import Protocol

import torch
from torch import Tensor

from tandem.facts.model import NormSpec
from tandem.kernels.arguments import require_rows, require_whole
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer, Real


class RmsNorm(Protocol):
    def __call__(self, x_TC: Tensor, weight_C: Tensor, norm: NormSpec) -> Tensor:
        """Returns a new contiguous tensor of the shape of x."""
        ...


class AddRmsNorm(Protocol):
    def __call__(
        self, x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, norm: NormSpec
    ) -> tuple[Tensor, Tensor]:
        """Returns (norm(x + residual), x + residual); the native face reuses residual's memory."""
        ...


def check_norm(x_TC: Tensor, weight_C: Tensor) -> None:
    if x_TC.dim() not in (2, 3) or x_TC.shape[-1] != weight_C.shape[0]:
        raise KernelArgumentError(
            "x_TC", tuple(x_TC.shape), f"[T, {weight_C.shape[0]}] or [T, H, {weight_C.shape[0]}]"
        )


def check_residual(x_TC: Tensor, residual_TC: Tensor) -> None:
    if x_TC.shape != residual_TC.shape:
        raise KernelArgumentError("residual_TC", tuple(residual_TC.shape), str(tuple(x_TC.shape)))


def rms_norm(x_TC: Tensor, weight_C: Tensor, norm: NormSpec) -> Tensor:
    """The reference: statistics in float32 at least, the product in x's dtype."""
    check_norm(x_TC, weight_C)
    wide = x_TC.to(torch.promote_types(x_TC.dtype, torch.float32))
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + norm.eps)
    factor_C = weight_C.to(x_TC.dtype)
    return scaled.to(x_TC.dtype) * (factor_C + norm.offset if norm.offset else factor_C)


def add_rms_norm(
    x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, norm: NormSpec
) -> tuple[Tensor, Tensor]:
    check_residual(x_TC, residual_TC)
    total_TC = x_TC + residual_TC
    return rms_norm(total_TC, weight_C, norm), total_TC


class NativeNorm:
    """float32 rows whose features are contiguous. Both operations run one C++ function; they differ
    in the residual alone."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_rms_norm",
            *(Pointer, Integer, Integer, Integer, Integer, Integer),
            *(Pointer, Pointer, Real, Real, Pointer, Integer),
        )

    def rms_norm(self, x_TC: Tensor, weight_C: Tensor, norm: NormSpec) -> Tensor:
        return self.normalise(x_TC, None, weight_C, norm)

    def add_rms_norm(
        self, x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, norm: NormSpec
    ) -> tuple[Tensor, Tensor]:
        check_residual(x_TC, residual_TC)
        require_whole("residual_TC", residual_TC, torch.float32)
        return self.normalise(x_TC, residual_TC, weight_C, norm), residual_TC

    def normalise(
        self, x_TC: Tensor, residual_TC: Tensor | None, weight_C: Tensor, norm: NormSpec
    ) -> Tensor:
        check_norm(x_TC, weight_C)
        require_rows("x_TC", x_TC)
        require_whole("weight_C", weight_C, torch.float32)
        heads = x_TC.shape[1] if x_TC.dim() == 3 else 1
        out_TC = torch.empty(x_TC.shape)
        self.run(
            x_TC.data_ptr(),
            x_TC.stride(0),
            x_TC.stride(1),
            x_TC.shape[0] * heads,
            heads,
            weight_C.shape[0],
            None if residual_TC is None else residual_TC.data_ptr(),
            weight_C.data_ptr(),
            norm.eps,
            norm.offset,
            out_TC.data_ptr(),
            torch.get_num_threads(),
        )
        return out_TC
