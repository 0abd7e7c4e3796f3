"""Smoothing changes what is rounded, never what is computed."""

import pytest
import torch

from tandem.facts.model import NormSpec
from tandem.kernels.coding import code_rows
from tandem.kernels.norm import rms_norm
from tandem.models.compression.rounding import round_to_nearest
from tandem.models.compression.scheme import W8A8
from tandem.models.compression.smoothquant import smooth
from tests.models.compression.matrices import inputs, weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_norm_and_matrix_together_are_what_they_were(offset: float, dtype) -> None:
    norm = NormSpec(1e-6, offset)
    x_TC, weight_NC = inputs(1), weight(1)
    weight_C = (0.3 * torch.randn(64, generator=torch.Generator().manual_seed(1))).to(dtype)
    before = rms_norm(x_TC, weight_C.float(), norm)
    smoothed = smooth(weight_C, offset, before.abs().amax(0), weight_NC, 0.5)
    assert smoothed.norm.dtype is dtype
    after = rms_norm(x_TC, smoothed.norm.float(), norm)
    assert (after - before).abs().max() > 0.1
    # Rounding the norm's weight is in the factor, so the precision of it does not matter.
    torch.testing.assert_close(
        after @ (weight_NC * smoothed.factor).T, before @ weight_NC.T, atol=2e-5, rtol=1e-5
    )


def test_half_of_the_spread_is_moved() -> None:
    x_TC, weight_NC = inputs(2), weight(2)
    peak_C = x_TC.abs().amax(0)
    smoothed = smooth(torch.ones(64), 0.0, peak_C, weight_NC, 0.5)
    inputs_C, weights_C = peak_C / smoothed.factor, (weight_NC * smoothed.factor).abs().amax(0)
    # With one half, inputs and weights have the same peaks.
    torch.testing.assert_close(inputs_C, weights_C)


@pytest.mark.parametrize("seed", range(3))
def test_outliers_cost_less(seed: int) -> None:
    x_TC, weight_NC = inputs(seed), weight(seed)
    x_TC[:, 5] *= 100

    def error(factor_C: torch.Tensor) -> float:
        matrix = round_to_nearest(weight_NC * factor_C, W8A8, torch.float32)
        found = code_rows(x_TC / factor_C).values() @ matrix.values().T
        return float((found - x_TC @ weight_NC.T).square().sum())

    smoothed = smooth(torch.ones(64), 0.0, x_TC.abs().amax(0), weight_NC, 0.5)
    assert error(smoothed.factor) < 0.2 * error(torch.ones(64))


def test_features_without_a_size_are_left_alone() -> None:
    weight_NC, peak_C, norm_C = weight(3), torch.ones(64), torch.ones(64)
    weight_NC[:, 1], peak_C[2], norm_C[3] = 0, 0, 0
    smoothed = smooth(norm_C, 0.0, peak_C, weight_NC, 0.5)
    assert smoothed.factor[1:4].tolist() == [1, 1, 1]
    assert smoothed.norm[1:4].tolist() == [1, 1, 0]
    assert torch.isfinite(smoothed.factor).all()
