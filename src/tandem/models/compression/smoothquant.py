"""SmoothQuant (Xiao et al., 2022, arXiv:2211.10438): before inputs are rounded, what a few of their
features stand out by is moved into the weights behind them. The norm before a matrix gives x / s,
and the matrix is W s: their product is what it was.

Axes: N output features, C input features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# No feature is made larger or smaller by more than this.
MOST = 1e4


@dataclass(frozen=True, slots=True)
class Smoothed:
    """`norm` [C] is the norm's weight afterwards, in its own precision; the columns of the matrices
    behind it are to be multiplied with `factor` [C] (float32)."""

    norm: Tensor
    factor: Tensor


def smooth(
    norm_C: Tensor, offset: float, input_peak_C: Tensor, weight_NC: Tensor, smoothing: float
) -> Smoothed:
    """`input_peak_C` is the largest magnitude that each input of the matrix had, `weight_NC` all
    matrices behind the norm; `offset` is what the norm adds to its weight."""
    weight_peak_C = weight_NC.abs().amax(dim=0)
    wanted_C = input_peak_C**smoothing / weight_peak_C ** (1 - smoothing)
    usable_C = torch.isfinite(wanted_C) & (wanted_C > 0)
    wanted_C = torch.where(usable_C, wanted_C, torch.ones_like(wanted_C)).clamp(1 / MOST, MOST)
    gain_C = norm_C.to(torch.float32) + offset
    smoothed_C = (gain_C / wanted_C - offset).to(norm_C.dtype)
    # What the norm divides by once its weight is rounded: so nothing is lost to that.
    left_C = smoothed_C.to(torch.float32) + offset
    kept_C = (left_C == 0) | (gain_C == 0)
    factor_C = torch.where(kept_C, torch.ones_like(gain_C), gain_C / left_C)
    return Smoothed(torch.where(kept_C, norm_C, smoothed_C), factor_C)
