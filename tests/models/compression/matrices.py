"""Seeded matrices and inputs whose features depend on each other, as those of models do."""

from dataclasses import replace

import torch
from torch import Tensor

from tandem.models.compression.scheme import W4A16, W8A16, Scheme

SCHEMES: dict[str, Scheme] = {
    "w4": replace(W4A16, group_size=16),
    "w4-asymmetric": replace(W4A16, group_size=16, symmetric=False),
    "w4-rows": replace(W4A16, group_size=None),
    "w8": W8A16,
}


def weight(seed: int, rows: int = 24, columns: int = 64) -> Tensor:
    """weight_NC with rows of unlike size, and a few weights that stand out."""
    generator = torch.Generator().manual_seed(seed)
    weight_NC = torch.randn(rows, columns, generator=generator)
    weight_NC *= torch.rand(rows, 1, generator=generator) + 0.1
    weight_NC[:, :: columns // 4] *= 4
    return weight_NC


def inputs(seed: int, tokens: int = 200, columns: int = 64) -> Tensor:
    """x_TC that mixes a few causes, with features of unlike size."""
    generator = torch.Generator().manual_seed(1000 + seed)
    causes = torch.randn(tokens, columns // 4, generator=generator)
    mixing = torch.randn(columns // 4, columns, generator=generator)
    noise = 0.3 * torch.randn(tokens, columns, generator=generator)
    return (causes @ mixing + noise) * (0.1 + torch.rand(columns, generator=generator))
