"""Causal attention over a paged pool: packed queries, one layer of the pool, where each key lies.

Axes: T packed tokens, H query heads, K kv heads, D head dim, N sequences, B blocks, S slots a
block; in the reference also L padded keys, Q queries of a sequence, R query rows of a head. Query i
of a sequence with q queries and c keys has its key in place c - q + i, and stands at that position;
but in a tree, where queries go on from another than the last, at a position of its own path.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.arguments import DTYPE_CODES, require_rows
from tandem.kernels.kv_rows import decode_rows, row_elements
from tandem.kernels.native import (
    Integer,
    IntegerArray,
    KernelArgumentError,
    NativeLibrary,
    Pointer,
    Real,
    integers,
)

# Bounds the memory of one padded gather.
GATHER_ELEMENTS = 1 << 28
# Rows (queries times heads of a group) that repay the transposition of the keys.
TILE_ROWS = 240
POOL_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int8)


@dataclass(frozen=True)
class SequenceSpan:
    """One sequence of the batch, on the host."""

    index: int
    query_start: int
    query_tokens: int
    context_tokens: int


@dataclass(frozen=True)
class AttentionBatch:
    """Built once a step, read by every layer. All int32, on the device of the queries.

    query_start [N + 1] are running sums of query tokens; context_lengths [N] count all keys that
    the last query sees, those of this step included; block_table [N, max_blocks] may hold any
    value past the last block in use (and before a window's first).
    `parents` [T] are for sequences whose queries are a tree: the query, among those of its
    sequence, that each follows, an earlier one; -1 where it follows what was known before. A query
    sees that, its ancestors and itself. None: each follows the one before it.
    """

    query_start: Tensor
    context_lengths: Tensor
    block_table: Tensor
    parents: Tensor | None = None

    def __post_init__(self) -> None:
        # Once a step, so that no layer has to look again.
        for name in ("query_start", "context_lengths", "block_table"):
            tensor: Tensor = getattr(self, name)
            if tensor.dtype is not torch.int32 or tensor.stride(-1) != 1:
                raise KernelArgumentError(name, tensor.dtype, "int32 with a contiguous last axis")
        if self.parents is not None and self.parents.dtype is not torch.int32:
            raise KernelArgumentError("parents", self.parents.dtype, "int32")
        sequences = self.context_lengths.shape[0]
        if self.query_start.shape[0] != sequences + 1 or self.block_table.shape[0] != sequences:
            found = (tuple(self.query_start.shape), tuple(self.block_table.shape))
            expected = f"query_start [{sequences + 1}], block_table [{sequences}, max_blocks]"
            raise KernelArgumentError("batch", found, expected)

    @property
    def sequences(self) -> int:
        return int(self.context_lengths.shape[0])

    @cached_property
    def spans(self) -> tuple[SequenceSpan, ...]:
        """The sequences with queries, copied to the host once a step."""
        starts: list[int] = self.query_start.tolist()
        contexts: list[int] = self.context_lengths.tolist()
        return tuple(
            SequenceSpan(index, starts[index], starts[index + 1] - starts[index], context_tokens)
            for index, context_tokens in enumerate(contexts)
            if starts[index + 1] > starts[index]
        )

    @cached_property
    def ancestors(self) -> tuple[Tensor | None, ...]:
        """Of each span with a tree, which of its queries each sees [Q, Q]; None without."""
        if self.parents is None:
            return (None,) * len(self.spans)
        parents: list[int] = self.parents.tolist()
        found: list[Tensor | None] = []
        for span in self.spans:
            own = parents[span.query_start : span.query_start + span.query_tokens]
            if own == list(range(-1, len(own) - 1)):
                found.append(None)
                continue
            seen_QQ = torch.eye(len(own), dtype=torch.bool)
            for query, parent in enumerate(own):
                if parent >= 0:
                    seen_QQ[query] |= seen_QQ[parent]
            found.append(seen_QQ.to(self.parents.device))
        return tuple(found)


class PagedAttention(Protocol):
    def __call__(
        self,
        q_THD: Tensor,
        kv_B2KSD: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """out_THD, contiguous. A query at p sees keys 0..p, or only the last `window` of them; of
        a tree those on its path."""
        ...


def check_attention(q_THD: Tensor, kv_B2KSD: Tensor) -> None:
    heads, head_dim = q_THD.shape[1], q_THD.shape[2]
    pool, elements = kv_B2KSD.shape, row_elements(kv_B2KSD.dtype, head_dim)
    if len(pool) != 5 or pool[1] != 2 or pool[4] != elements or heads % pool[2]:
        raise KernelArgumentError(
            "kv_B2KSD", tuple(pool), f"[B, 2, K, S, {elements}] with K dividing {heads}"
        )


def paged_attention(
    q_THD: Tensor,
    kv_B2KSD: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """The reference in plain torch: gather the keys, then scaled dot product attention.

    Sequences with one query go together, padded; the others one by one. GPUs use it too, so it
    avoids loops over tokens and reads lengths from the host copy of the batch.
    """
    check_attention(q_THD, kv_B2KSD)
    out_THD = torch.zeros_like(q_THD, memory_format=torch.contiguous_format)
    for spans in groups_of_equal_queries(batch.spans, kv_B2KSD):
        attend(q_THD, kv_B2KSD, batch, (spans, scale, window, out_THD))
    return out_THD


def groups_of_equal_queries(
    spans: tuple[SequenceSpan, ...], kv_B2KSD: Tensor
) -> list[list[SequenceSpan]]:
    """Single queries are batched up to the gather bound; longer spans stand alone."""
    row_elements = 2 * kv_B2KSD.shape[2] * kv_B2KSD.shape[4]
    groups: list[list[SequenceSpan]] = []
    decodes = sorted((s for s in spans if s.query_tokens == 1), key=lambda s: s.context_tokens)
    for span in decodes:
        # Sorted by context, so the newest member is the longest of its group.
        width = span.context_tokens * row_elements
        if groups and (len(groups[-1]) + 1) * width <= GATHER_ELEMENTS:
            groups[-1].append(span)
        else:
            groups.append([span])
    groups.extend([span] for span in spans if span.query_tokens > 1)
    return groups


def attend(
    q_THD: Tensor,
    kv_B2KSD: Tensor,
    batch: AttentionBatch,
    job: tuple[list[SequenceSpan], float, int | None, Tensor],
) -> None:
    """All spans of a job have the same number of queries; results go to the job's output."""
    spans, scale, window, out_THD = job
    device = q_THD.device
    queries, kv_heads = spans[0].query_tokens, kv_B2KSD.shape[2]
    heads, head_dim = q_THD.shape[1:]
    group = heads // kv_heads
    index_N = torch.tensor([span.index for span in spans], device=device)
    context_N = torch.tensor([span.context_tokens for span in spans], device=device)
    token_NQ = torch.tensor([span.query_start for span in spans], device=device)[:, None]
    token_NQ = token_NQ + torch.arange(queries, device=device)

    key_L = torch.arange(max(span.context_tokens for span in spans), device=device)
    position_NQ1 = (context_N[:, None] - queries + torch.arange(queries, device=device))[..., None]
    seen_NQL = key_L <= position_NQ1
    if window is not None:
        seen_NQL = seen_NQL & (key_L > position_NQ1 - window)
    tree_QQ = batch.ancestors[batch.spans.index(spans[0])] if batch.parents is not None else None
    if tree_QQ is not None:
        seen_NQL = seen_in_tree(tree_QQ, spans[0].context_tokens, window)[None]
    k_NKLD, v_NKLD = gather(kv_B2KSD, batch.block_table[index_N], seen_NQL.any(dim=1))
    k_NKLD, v_NKLD = k_NKLD.to(q_THD.dtype), v_NKLD.to(q_THD.dtype)
    if queries == 1:
        # The query heads of one kv head become its query rows; all see the same keys.
        q_NKRD = q_THD[token_NQ[:, 0]].view(len(spans), kv_heads, group, head_dim)
    else:
        q_NKRD = q_THD[token_NQ].transpose(1, 2)
        k_NKLD, v_NKLD = (x.repeat_interleave(group, dim=1) for x in (k_NKLD, v_NKLD))
    out_NKRD = functional.scaled_dot_product_attention(
        q_NKRD, k_NKLD, v_NKLD, attn_mask=seen_NQL[:, None], scale=scale
    )
    out_NHQD = out_NKRD.reshape(len(spans), heads, queries, head_dim)
    out_THD[token_NQ] = out_NHQD.transpose(1, 2)


def seen_in_tree(tree_QQ: Tensor, context_tokens: int, window: int | None) -> Tensor:
    """Which keys each query of a sequence sees [Q, L], in the order of their places."""
    queries = tree_QQ.shape[0]
    known = context_tokens - queries
    position_L = torch.arange(context_tokens, device=tree_QQ.device)
    position_L[known:] = known - 1 + tree_QQ.sum(dim=1)
    seen_QL = torch.ones(queries, context_tokens, dtype=torch.bool, device=tree_QQ.device)
    seen_QL[:, known:] = tree_QQ
    if window is not None:
        seen_QL &= position_L > position_L[known:, None] - window
    return seen_QL


def gather(kv_B2KSD: Tensor, table_NM: Tensor, used_NL: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [N, K, L, D]; whatever nobody may see is zero, not merely masked."""
    block_size = kv_B2KSD.shape[3]
    key_L = torch.arange(used_NL.shape[1], device=used_NL.device)
    block_NL = torch.where(used_NL, table_NM[:, key_L // block_size].long(), 0)
    offset_NL = (key_L % block_size).expand_as(block_NL)
    kv_NL2KD = decode_rows(kv_B2KSD[block_NL, :, :, offset_NL])
    kv_NL2KD = torch.where(used_NL[:, :, None, None, None], kv_NL2KD, 0)
    kv_2NKLD = kv_NL2KD.permute(2, 0, 3, 1, 4)
    return kv_2NKLD[0], kv_2NKLD[1]


def tile_tokens(heads: int, kv_heads: int) -> int:
    """Queries that are attended to together."""
    return max(1, TILE_ROWS // (heads // kv_heads))


class NativePagedAttention:
    """Over float32, bfloat16, float16 or int8 keys, in fp32 or, if `narrow`, in bfloat16 with sums
    in fp32. q must be float32; blocks may lie anywhere, but D must be contiguous."""

    def __init__(self, library: NativeLibrary, *, narrow: bool = False) -> None:
        self._narrow = narrow
        self.run = library.function(
            "tandem_paged_attention",
            *(Pointer, Integer, Integer, Pointer, Integer, IntegerArray, Pointer, Pointer, Pointer),
            *(Integer, Integer, Pointer, Pointer, IntegerArray, Real, Integer, Integer, Integer),
            Integer,
        )

    def __call__(
        self,
        q_THD: Tensor,
        kv_B2KSD: Tensor,
        batch: AttentionBatch,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        check_attention(q_THD, kv_B2KSD)
        require_rows("q_THD", q_THD)
        if kv_B2KSD.dtype not in POOL_DTYPES:
            raise KernelArgumentError("kv_B2KSD", kv_B2KSD.dtype, f"one of {POOL_DTYPES}")
        _, heads, head_dim = q_THD.shape
        _, _, kv_heads, block_size, _ = kv_B2KSD.shape
        out_THD = torch.empty(q_THD.shape)
        self.run(
            q_THD.data_ptr(),
            q_THD.stride(0),
            q_THD.stride(1),
            kv_B2KSD.data_ptr(),
            DTYPE_CODES[kv_B2KSD.dtype],
            integers(*kv_B2KSD.stride()[:4]),
            batch.query_start.data_ptr(),
            batch.context_lengths.data_ptr(),
            batch.block_table.data_ptr(),
            batch.block_table.stride(0),
            batch.sequences,
            None if batch.parents is None else batch.parents.data_ptr(),
            out_THD.data_ptr(),
            integers(heads, kv_heads, head_dim, block_size),
            scale,
            window or 0,
            tile_tokens(heads, kv_heads),
            self._narrow,
            torch.get_num_threads(),
        )
        return out_THD
