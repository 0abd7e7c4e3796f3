"""What happens between the projections and attention: rotate q and k, store k and v.

Axes: T packed tokens, H query heads, K kv heads, D head dim, P positions, R half the rotary dim,
B blocks, S slots a block. The pool is [B, layer, 2, K, S, D]; kv_B2KSD is one layer's strided view.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.kernels.errors import KernelArgumentError


@dataclass(frozen=True)
class RotaryTable:
    """cos and sin [P, R] of angle(position, pair); pairs are (i, i + R) of the first 2R dims."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class TokenPlaces:
    """int64 [T]: positions, and slots (block * block_size + offset; -1 stores nothing)."""

    positions: Tensor
    slots: Tensor

    def __post_init__(self) -> None:
        # Once a step, so that no layer has to look again.
        for name, tensor in (("positions", self.positions), ("slots", self.slots)):
            if tensor.dtype is not torch.int64 or tensor.dim() != 1 or not tensor.is_contiguous():
                raise KernelArgumentError(name, tensor.dtype, "contiguous int64 [T]")


@dataclass(frozen=True)
class QueryKeyValue:
    """q [T, H, D], k and v [T, K, D]: views of a fused projection; only D must be contiguous."""

    q: Tensor
    k: Tensor
    v: Tensor


class RotateAndStore(Protocol):
    def __call__(
        self,
        heads: QueryKeyValue,
        kv_B2KSD: Tensor,
        table: RotaryTable | None,
        places: TokenPlaces,
    ) -> None:
        """Rotates q and k in place (no table: not at all), then writes k and v into the pool."""
        ...


def check_rotate(
    heads: QueryKeyValue, kv_B2KSD: Tensor, table: RotaryTable | None, places: TokenPlaces
) -> None:
    tokens, kv_heads, head_dim = heads.k.shape
    if places.positions.shape[0] != tokens or places.slots.shape[0] != tokens:
        found = (places.positions.shape[0], places.slots.shape[0])
        raise KernelArgumentError("places", found, f"{tokens} positions and slots")
    if heads.v.shape != heads.k.shape:
        raise KernelArgumentError("heads.v", tuple(heads.v.shape), "the shape of heads.k")
    if heads.q.shape[0] != tokens or heads.q.shape[2] != head_dim:
        raise KernelArgumentError(
            "heads.q", tuple(heads.q.shape), f"[{tokens}, H, {head_dim}], as heads.k says"
        )
    pool = kv_B2KSD.shape
    if len(pool) != 5 or (pool[1], pool[2], pool[4]) != (2, kv_heads, head_dim):
        raise KernelArgumentError("kv_B2KSD", tuple(pool), f"[B, 2, {kv_heads}, S, {head_dim}]")
    if table is not None and 2 * table.cos.shape[1] > head_dim:
        raise KernelArgumentError("table.cos", tuple(table.cos.shape), f"R <= {head_dim // 2}")
