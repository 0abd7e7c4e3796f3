"""GPTQ (Frantar et al., 2022, arXiv:2210.17323): rounds a matrix column by column, and lets the
columns that are left make good what rounding one has changed of the outputs.

What outputs change by is e H e^T for an error e of a row, with H = sum of x x^T over inputs x.
Grids of groups are found beforehand, so that columns may be taken in any order: the largest of H
first, while many are left to make their error good.
Axes: N output features, C input features, K columns of a block, M groups of all rows, S inputs of
a group.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.models.compression.rounding import CodedMatrix, Grid, coded_matrix, fit_grid
from tandem.models.compression.scheme import Scheme

# Errors reach columns beyond a block once it is done: one product of matrices in place of many.
BLOCK_COLUMNS = 128


@dataclass(frozen=True, slots=True)
class _Factor:
    """H^-1 = U^T U of the damped Hessian [C, C] with its columns in `order` [C]."""

    order: Tensor
    upper: Tensor


def gptq(
    weight_NC: Tensor,
    hessian_CC: Tensor,
    scheme: Scheme,
    scale_dtype: torch.dtype,
    damping: float = 0.01,
) -> CodedMatrix:
    """Codes of a matrix whose inputs x have the sum of x x^T `hessian_CC`. Scales as in
    `round_to_nearest`; `damping` times the mean of the diagonal is added to it."""
    factor = _factor(hessian_CC, damping)
    weight_NC = weight_NC.to(torch.float32)
    rows, columns = weight_NC.shape
    groups = scheme.groups(columns)
    grid = _grids(weight_NC, hessian_CC.diagonal(), scheme, scale_dtype)
    scale_NG, zero_NG = grid.scale.view(rows, groups), grid.zero.view(rows, groups)
    group_C = factor.order // (columns // groups)
    left_NC = weight_NC[:, factor.order]
    codes_NC = torch.empty_like(weight_NC)
    for start in range(0, columns, BLOCK_COLUMNS):
        stop = min(start + BLOCK_COLUMNS, columns)
        block_NK = left_NC[:, start:stop]
        upper_KK = factor.upper[start:stop, start:stop]
        error_NK = torch.empty_like(block_NK)
        for place in range(stop - start):
            group = int(group_C[start + place])
            column = Grid(scale_NG[:, group], zero_NG[:, group])
            value_N1 = block_NK[:, place : place + 1]
            code_N1 = column.codes(value_N1, scheme)
            codes_NC[:, factor.order[start + place]] = code_N1[:, 0]
            error_N1 = (value_N1 - column.values(code_N1)) / upper_KK[place, place]
            error_NK[:, place : place + 1] = error_N1
            block_NK[:, place + 1 :] -= error_N1 * upper_KK[place, place + 1 :]
        left_NC[:, stop:] -= error_NK @ factor.upper[start:stop, stop:]
    return coded_matrix(codes_NC, grid, scheme, scale_dtype)


def _grids(weight_NC: Tensor, diagonal_C: Tensor, scheme: Scheme, scale_dtype: torch.dtype) -> Grid:
    """Of all groups, row after row; each input's errors count as it does."""
    rows, columns = weight_NC.shape
    groups = scheme.groups(columns)
    grids = [
        fit_grid(some_NS, scheme, scale_dtype, diagonal_S.to(torch.float32))
        for some_NS, diagonal_S in zip(
            weight_NC.chunk(groups, dim=1), diagonal_C.chunk(groups), strict=True
        )
    ]
    scale_NG = torch.stack([grid.scale for grid in grids], dim=1)
    zero_NG = torch.stack([grid.zero for grid in grids], dim=1)
    return Grid(scale_NG.view(rows * groups), zero_NG.view(rows * groups))


def _factor(hessian_CC: Tensor, damping: float) -> _Factor:
    diagonal_C = hessian_CC.diagonal()
    order_C = torch.argsort(diagonal_C, descending=True, stable=True)
    ordered_CC = hessian_CC[order_C][:, order_C].to(torch.float64)
    added = damping * float(diagonal_C.mean())
    # Inputs that were zero throughout say nothing: their columns are rounded each on its own.
    ordered_CC.diagonal().add_(added if added > 0 else 1.0)
    inverse_CC = torch.cholesky_inverse(torch.linalg.cholesky(ordered_CC))
    upper_CC = torch.linalg.cholesky(inverse_CC, upper=True)
    return _Factor(order_C, upper_CC.to(torch.float32))
