"""What normalisation means: y = x / sqrt(mean(x^2) + eps) * weight over the last axis.

Axes: T packed tokens, H heads (optional), C features; a head view [T, H, D] is welcome.
"""

from typing import Protocol

from torch import Tensor

from tandem.kernels.errors import KernelArgumentError


class RmsNorm(Protocol):
    def __call__(self, x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
        """Returns a new contiguous tensor of the shape of x."""
        ...


class AddRmsNorm(Protocol):
    def __call__(
        self, x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, eps: float
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
