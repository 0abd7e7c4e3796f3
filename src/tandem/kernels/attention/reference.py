"""Paged attention in plain torch: gather the keys, then scaled dot product attention.

Sequences with one query go together, padded; the others one by one. This is also the first GPU
face, so it avoids loops over tokens and reads lengths from the host copy of the batch.

Axes as in the contract; L padded keys, Q queries of a sequence, R query rows of a head.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.attention.contract import AttentionBatch, SequenceSpan, check_attention

# Bounds the memory of one padded gather.
GATHER_ELEMENTS = 1 << 28


def paged_attention(
    q_THD: Tensor,
    kv_B2KSD: Tensor,
    batch: AttentionBatch,
    *,
    scale: float,
    window: int | None = None,
) -> Tensor:
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


def gather(kv_B2KSD: Tensor, table_NM: Tensor, used_NL: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values [N, K, L, D]; whatever nobody may see is zero, not merely masked."""
    block_size = kv_B2KSD.shape[3]
    key_L = torch.arange(used_NL.shape[1], device=used_NL.device)
    block_NL = torch.where(used_NL, table_NM[:, key_L // block_size].long(), 0)
    offset_NL = (key_L % block_size).expand_as(block_NL)
    kv_NL2KD = kv_B2KSD[block_NL, :, :, offset_NL]
    kv_NL2KD = torch.where(used_NL[:, :, None, None, None], kv_NL2KD, 0)
    kv_2NKLD = kv_NL2KD.permute(2, 0, 3, 1, 4)
    return kv_2NKLD[0], kv_2NKLD[1]
