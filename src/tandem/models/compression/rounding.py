"""Round to nearest: the grid that a group of weights is rounded to, and the codes of a matrix.

Axes: N output features, C input features, G groups along C, S inputs of a group, M groups of any
rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.models.compression.scheme import Scheme
from tandem.models.parameters import SLAB_ROWS

# Steps of a grid are tried from one that cuts nothing off down to one that cuts the largest weights
# off for finer steps between the others; eight bits have steps enough.
STEPS_OF_4_BITS = tuple(1.08 - 0.02 * number for number in range(24))
STEPS_OF_8_BITS = (1.0,)


@dataclass(frozen=True, slots=True)
class Grid:
    """The values scale * (code - zero) of each of M groups: float32 [M], `zero` whole numbers."""

    scale: Tensor
    zero: Tensor

    def codes(self, values_MS: Tensor, scheme: Scheme) -> Tensor:
        """The nearest code of each value, still as float32."""
        codes_MS = torch.round(values_MS / self.scale[:, None]) + self.zero[:, None]
        return codes_MS.clamp(scheme.lowest, scheme.highest)

    def values(self, codes_MS: Tensor) -> Tensor:
        return (codes_MS - self.zero[:, None]) * self.scale[:, None]


@dataclass(frozen=True, slots=True)
class CodedMatrix:
    """weight[n, c] = scale[n, g] * (code[n, c] - zero[n, g]): codes [N, C] and zeros [N, G] are
    int8, scales [N, G] in the precision that they are stored in. A symmetric scheme has no zeros.
    """

    scheme: Scheme
    codes: Tensor
    scale: Tensor
    zero: Tensor | None

    def values(self) -> Tensor:
        """The weight itself [N, C], float32."""
        size = self.codes.shape[1] // self.scale.shape[1]
        codes_NC = self.codes.to(torch.float32)
        if self.zero is not None:
            codes_NC -= self.zero.to(torch.float32).repeat_interleave(size, 1)
        return codes_NC * self.scale.to(torch.float32).repeat_interleave(size, 1)

    def rows(self, rows: slice) -> "CodedMatrix":
        zero_NG = None if self.zero is None else self.zero[rows]
        return CodedMatrix(self.scheme, self.codes[rows], self.scale[rows], zero_NG)


def round_to_nearest(weight_NC: Tensor, scheme: Scheme, scale_dtype: torch.dtype) -> CodedMatrix:
    """Each weight on its own. Scales are rounded to `scale_dtype`, and codes fit them then."""
    columns = weight_NC.shape[1]
    groups = scheme.groups(columns)
    slabs = []
    for slab_NC in torch.split(weight_NC.to(torch.float32), SLAB_ROWS):
        grouped_MS = slab_NC.reshape(-1, columns // groups)
        grid = fit_grid(grouped_MS, scheme, scale_dtype)
        codes_NC = grid.codes(grouped_MS, scheme).view(-1, columns)
        slabs.append(coded_matrix(codes_NC, grid, scheme, scale_dtype))
    zeros = [slab.zero for slab in slabs if slab.zero is not None]
    return CodedMatrix(
        scheme,
        torch.cat([slab.codes for slab in slabs]),
        torch.cat([slab.scale for slab in slabs]),
        torch.cat(zeros) if zeros else None,
    )


def coded_matrix(
    codes_NC: Tensor, grid: Grid, scheme: Scheme, scale_dtype: torch.dtype
) -> CodedMatrix:
    """Of codes as float32, and the grid of all groups, row after row."""
    rows = codes_NC.shape[0]
    zero_NG = None if scheme.symmetric else grid.zero.view(rows, -1).to(torch.int8)
    scale_NG = grid.scale.view(rows, -1).to(scale_dtype)
    return CodedMatrix(scheme, codes_NC.to(torch.int8), scale_NG, zero_NG)


def fit_grid(
    values_MS: Tensor, scheme: Scheme, scale_dtype: torch.dtype, weight_S: Tensor | None = None
) -> Grid:
    """Of some steps the one with the least sum of squared errors of a group, each input's counted
    `weight_S` times. A group of zeros gets scale 1."""
    steps = STEPS_OF_8_BITS if scheme.bits == 8 else STEPS_OF_4_BITS
    best = _grid(values_MS, scheme, scale_dtype, steps[0])
    if len(steps) == 1:
        return best
    least_M = _squared_error(values_MS, best, scheme, weight_S)
    scale_M, zero_M = best.scale, best.zero
    for step in steps[1:]:
        grid = _grid(values_MS, scheme, scale_dtype, step)
        error_M = _squared_error(values_MS, grid, scheme, weight_S)
        better_M = error_M < least_M
        least_M = torch.where(better_M, error_M, least_M)
        scale_M = torch.where(better_M, grid.scale, scale_M)
        zero_M = torch.where(better_M, grid.zero, zero_M)
    return Grid(scale_M, zero_M)


def _grid(values_MS: Tensor, scheme: Scheme, scale_dtype: torch.dtype, step: float) -> Grid:
    intervals = scheme.highest - scheme.lowest
    if scheme.symmetric:
        range_M = 2 * values_MS.abs().amax(dim=1)
        zero_M = torch.zeros_like(range_M)
    else:
        # Zero is a value of every grid, so that what is zero stays zero.
        range_M = values_MS.amax(dim=1).clamp(min=0) - values_MS.amin(dim=1).clamp(max=0)
    scale_M = (range_M * (step / intervals)).to(scale_dtype).to(torch.float32)
    scale_M = torch.where(scale_M > 0, scale_M, torch.ones_like(scale_M))
    if not scheme.symmetric:
        zero_M = torch.round(scheme.lowest - values_MS.amin(dim=1).clamp(max=0) * step / scale_M)
        zero_M = zero_M.clamp(scheme.lowest, scheme.highest)
    return Grid(scale_M, zero_M)


def _squared_error(
    values_MS: Tensor, grid: Grid, scheme: Scheme, weight_S: Tensor | None
) -> Tensor:
    error_MS = (grid.values(grid.codes(values_MS, scheme)) - values_MS).square()
    return error_MS.sum(dim=1) if weight_S is None else error_MS @ weight_S
