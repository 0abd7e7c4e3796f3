"""GPTQ changes outputs less than rounding does, and as the plain algorithm it is derived from."""

import pytest
import torch
from torch import Tensor

from tandem.models.compression.gptq import gptq
from tandem.models.compression.rounding import CodedMatrix, round_to_nearest
from tandem.models.compression.scheme import Scheme
from tests.models.compression.matrices import SCHEMES, inputs, weight


def one_by_one(weight_NC: Tensor, hessian: Tensor, matrix: CodedMatrix, damping: float) -> Tensor:
    """Optimal brain quantisation with the same grid and order, without blocks or factors: after
    each column the inverse Hessian loses that column by elimination. float64 throughout."""
    hessian = hessian.double()
    columns = weight_NC.shape[1]
    damped = hessian + damping * hessian.diagonal().mean() * torch.eye(columns).double()
    inverse, left = torch.linalg.inv(damped), weight_NC.double().clone()
    size = columns // matrix.scale.shape[1]
    codes = torch.zeros_like(left)
    scheme = matrix.scheme
    for column in torch.argsort(hessian.diagonal(), descending=True, stable=True).tolist():
        scale = matrix.scale[:, column // size].double()
        zero = 0 if matrix.zero is None else matrix.zero[:, column // size].double()
        code = (torch.round(left[:, column] / scale) + zero).clamp(scheme.lowest, scheme.highest)
        codes[:, column] = code
        error = (left[:, column] - (code - zero) * scale) / inverse[column, column]
        left -= error[:, None] * inverse[column]
        row = inverse[column].clone()
        inverse -= torch.outer(row, row) / row[column]
        inverse[column], inverse[:, column] = 0, 0
        inverse[column, column] = 1
    return codes


@pytest.mark.parametrize("name", SCHEMES)
def test_it_is_the_plain_algorithm_in_blocks(name: str) -> None:
    # More columns than a block has.
    weight_NC, x_TC = weight(1, columns=192), inputs(1, tokens=400, columns=192)
    hessian = x_TC.T @ x_TC
    matrix = gptq(weight_NC, hessian, SCHEMES[name], torch.float32, 0.01)
    expected = one_by_one(weight_NC, hessian, matrix, 0.01)
    # A value in the middle between two codes may fall to either side in float32.
    assert (matrix.codes != expected).float().mean() < 0.002


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", SCHEMES)
def test_outputs_change_less_than_by_rounding(name: str, seed: int) -> None:
    scheme, weight_NC, x_TC = SCHEMES[name], weight(seed), inputs(seed)
    hessian = x_TC.T @ x_TC
    errors = [
        (x_TC.double() @ (matrix.values() - weight_NC).double().T).square().sum()
        for matrix in (
            gptq(weight_NC, hessian, scheme, torch.bfloat16),
            round_to_nearest(weight_NC, scheme, torch.bfloat16),
        )
    ]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("name", SCHEMES)
def test_inputs_that_do_not_depend_on_each_other_leave_nothing_to_make_good(name: str) -> None:
    weight_NC, scheme = weight(8), SCHEMES[name]
    found = gptq(weight_NC, 3 * torch.eye(64), scheme, torch.float32)
    expected = round_to_nearest(weight_NC, scheme, torch.float32)
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.scale, expected.scale)


def test_inputs_that_were_always_zero_are_rounded() -> None:
    scheme: Scheme = SCHEMES["w4"]
    weight_NC, x_TC = weight(9), inputs(9)
    x_TC[:, 16:32] = 0
    matrix = gptq(weight_NC, x_TC.T @ x_TC, scheme, torch.float32)
    assert torch.isfinite(matrix.values()).all()
    error = (matrix.values() - weight_NC)[:, 16:32]
    assert (error.abs() <= 4 * weight_NC[:, 16:32].abs().amax(1, keepdim=True) / 7).all()
    nothing = gptq(weight_NC, torch.zeros(64, 64), scheme, torch.float32)
    assert torch.isfinite(nothing.values()).all()
