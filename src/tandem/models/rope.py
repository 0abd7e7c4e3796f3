"""The rotary table of a model: cos and sin of every position, scaled as its config says.

Formulas and their order of rounding follow transformers (modeling_rope_utils.py), because angles
at far positions are sensitive to the last bit of a frequency.
Axes: P positions, R rotated pairs (half the rotary dim).
"""

import math

import torch
from torch import Tensor

from tandem.facts.model import (
    LinearScaling,
    Llama3Scaling,
    RopeSpec,
    YarnScaling,
)
from tandem.kernels.rotary.contract import RotaryTable


def rotary_table(
    rope: RopeSpec, head_dim: int, positions: int, device: torch.device
) -> RotaryTable:
    """float32 tables [P, R] on `device`."""
    frequencies_R, amplitude = rotary_frequencies(rope, head_dim)
    angles_PR = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies_R
    cos_PR = angles_PR.cos().mul_(amplitude)
    sin_PR = angles_PR.sin_().mul_(amplitude)
    return RotaryTable(cos_PR.to(device), sin_PR.to(device))


def rotary_frequencies(rope: RopeSpec, head_dim: int) -> tuple[Tensor, float]:
    """Radians a position for each pair, float32 [R], and the factor on cos and sin."""
    rotary_dim = rope.rotary_dim(head_dim)
    exponents_R = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    wavelengths_R = rope.theta**exponents_R
    match rope.scaling:
        case None:
            return 1.0 / wavelengths_R, 1.0
        case LinearScaling(factor=factor):
            return 1.0 / wavelengths_R / factor, 1.0
        case Llama3Scaling() as llama3:
            return _llama3(1.0 / wavelengths_R, llama3), 1.0
        case YarnScaling() as yarn:
            return _yarn(wavelengths_R, rope.theta, yarn), yarn.attention_factor


def _llama3(plain_R: Tensor, scaling: Llama3Scaling) -> Tensor:
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    original_tokens, factor = scaling.original_context_tokens, scaling.factor
    wavelength_tokens_R = 2 * math.pi / plain_R
    slow_R = wavelength_tokens_R > original_tokens / low
    fast_R = wavelength_tokens_R < original_tokens / high
    blend_R = (original_tokens / wavelength_tokens_R - low) / (high - low)
    blended_R = (1 - blend_R) * plain_R / factor + blend_R * plain_R
    return torch.where(slow_R, plain_R / factor, torch.where(fast_R, plain_R, blended_R))


def _yarn(wavelengths_R: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    rotary_dim = 2 * wavelengths_R.shape[0]

    def dimension_turning(turns: float) -> float:
        """The dimension that turns so often over the original context."""
        tokens_a_radian = scaling.original_context_tokens / (turns * 2 * math.pi)
        return rotary_dim * math.log(tokens_a_radian) / (2 * math.log(theta))

    low, high = dimension_turning(scaling.beta_fast), dimension_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rotary_dim - 1)
    # Equal limits would divide by zero; transformers widens them by as much.
    width = high - low if high != low else 0.001
    ramp_R = ((torch.arange(len(wavelengths_R), dtype=torch.float32) - low) / width).clamp(0, 1)
    kept_R = 1 - ramp_R
    return (1.0 / (scaling.factor * wavelengths_R)) * (1 - kept_R) + (1.0 / wavelengths_R) * kept_R
