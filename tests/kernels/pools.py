"""Paged pools for tests: permuted blocks, NaN in every unused slot, garbage in unused entries."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.kernels.attention import AttentionBatch
from tandem.kernels.kv_rows import decode_rows, encode_rows

GARBAGE_BLOCK = 2**30


@dataclass(frozen=True)
class Shape:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    block_size: int = 16
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Paged:
    """The same sequences three times: dense [N][2, K, L, D], their rows as stored [N][2, K, L, E],
    and one layer [B, 2, K, S, E] of a pool."""

    dense: list[Tensor]
    rows: list[Tensor]
    pool: Tensor
    block_table: Tensor


def paged(lengths: Sequence[int], shape: Shape, seed: int = 0) -> Paged:
    generator = torch.Generator().manual_seed(seed)
    size = shape.block_size
    drawn = [
        torch.randn(2, shape.kv_heads, length, shape.head_dim, generator=generator)
        for length in lengths
    ]
    rows = [encode_rows(each, shape.dtype) for each in drawn]
    dense = [decode_rows(each) for each in rows]
    blocks = [-(-length // size) for length in lengths]
    order = torch.randperm(sum(blocks) + 2, generator=generator).tolist()
    table = torch.full((len(lengths), max(blocks, default=0) + 1), GARBAGE_BLOCK, dtype=torch.int32)
    # Of codes the scale is no number.
    unused = encode_rows(torch.full((shape.head_dim,), torch.nan), shape.dtype)
    pool = unused.expand(sum(blocks) + 2, 3, 2, shape.kv_heads, size, -1).clone()
    for n in range(len(lengths)):
        for b in range(blocks[n]):
            table[n, b] = block = order.pop()
            part = rows[n][:, :, b * size : (b + 1) * size]
            pool[block, 1, :, :, : part.shape[2]] = part
    return Paged(dense, rows, pool[:, 1], table)


def batch_of(queries: Sequence[int], contexts: Sequence[int], table: Tensor) -> AttentionBatch:
    starts = torch.tensor([0, *queries]).cumsum(0).to(torch.int32)
    return AttentionBatch(starts, torch.tensor(contexts, dtype=torch.int32), table)


def repaged(rows: Sequence[Tensor], shape: Shape) -> Paged:
    """Sequences of these keys and values, as stored, in a pool of their own."""
    lengths = [each.shape[2] for each in rows]
    pages = paged(lengths, shape, seed=1)
    size = shape.block_size
    for n, each in enumerate(rows):
        for b in range(-(-lengths[n] // size)):
            part = each[:, :, b * size : (b + 1) * size]
            pages.pool[pages.block_table[n, b], :, :, : part.shape[2]] = part
    dense = [decode_rows(each) for each in rows]
    return Paged(dense, list(rows), pages.pool, pages.block_table)


def tree_paths(parents: Sequence[int]) -> list[list[int]]:
    """Of each query its ancestors and itself."""
    paths: list[list[int]] = []
    for query, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), query])
    return paths


def oracle(q_THD: Tensor, kv_2KLD: Tensor, scale: float, window: int | None) -> Tensor:
    """Attention of the last queries of one sequence, the obvious way, in float64."""
    tokens, heads, _ = q_THD.shape
    k_HLD, v_HLD = kv_2KLD.double().repeat_interleave(heads // kv_2KLD.shape[1], dim=1)
    position_T1 = torch.arange(k_HLD.shape[1] - tokens, k_HLD.shape[1])[:, None]
    key_L = torch.arange(k_HLD.shape[1])
    seen_TL = key_L <= position_T1
    if window is not None:
        seen_TL &= key_L > position_T1 - window
    scores_HTL = torch.einsum("thd,hld->htl", q_THD.double(), k_HLD) * scale
    weights_HTL = scores_HTL.masked_fill(~seen_TL, -torch.inf).softmax(dim=-1)
    return torch.einsum("htl,hld->thd", weights_HTL, v_HLD)
