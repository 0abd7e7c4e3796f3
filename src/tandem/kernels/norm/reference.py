"""Normalisation in plain torch: statistics in float32 at least, the product in x's dtype."""

import torch
from torch import Tensor

from tandem.kernels.norm.contract import check_norm, check_residual


def rms_norm(x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
    check_norm(x_TC, weight_C)
    wide = x_TC.to(torch.promote_types(x_TC.dtype, torch.float32))
    scaled = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return scaled.to(x_TC.dtype) * weight_C.to(x_TC.dtype)


def add_rms_norm(
    x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    check_residual(x_TC, residual_TC)
    total_TC = x_TC + residual_TC
    return rms_norm(total_TC, weight_C, eps), total_TC
