"""Pruning without training: which weights of a matrix become zero.

By magnitude (Han et al., 2015, arXiv:1506.02626), or as Wanda does (Sun et al., 2023,
arXiv:2306.11695): by magnitude times the norm of the input that the weight is multiplied with.
Axes: N output features, C input features, S inputs that share a number of zeros.
"""

import torch
from torch import Tensor

from tandem.models.compression.scheme import PruningPlan

PATTERN = 4
PATTERN_ZEROS = 2


def prune(weight_NC: Tensor, plan: PruningPlan, input_square_C: Tensor | None) -> Tensor:
    """The matrix with the plan's share of zeros in every row. `input_square_C` are the sums of
    squares of each input, which Wanda needs. Of equal weights the last ones become zero."""
    importance_NC = weight_NC.abs()
    if input_square_C is not None:
        importance_NC = importance_NC * input_square_C.sqrt()
    rows, columns = weight_NC.shape
    shared = PATTERN if plan.of_four else columns
    zeros = PATTERN_ZEROS if plan.of_four else round(plan.sparsity * columns)
    grouped = importance_NC.view(rows, columns // shared, shared)
    order = grouped.argsort(dim=2, descending=True, stable=True)
    kept = torch.ones_like(grouped, dtype=torch.bool)
    kept.scatter_(2, order[..., shared - zeros :], value=False)
    return torch.where(kept.view(rows, columns), weight_NC, torch.zeros_like(weight_NC))
