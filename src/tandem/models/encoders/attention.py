"""Attention within each sequence of a batch, in both directions, of the whole sequence or of near
tokens only.

Sequences of one length go together: fewer calls, and on the CPU no other bits, for torch computes
each sequence and head by itself.
Axes: T packed tokens, H heads, D head dim, N sequences of one length, L tokens of a sequence,
Q queries, K keys that they may see.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tandem.models.encoders.batch import EncoderBatch

# Queries that go together where each sees near tokens only: bounds the mask and what is computed
# in vain.
LOCAL_QUERIES = 256


def attend(qkv_T3HD: Tensor, batch: EncoderBatch, reach_tokens: int | None) -> Tensor:
    """out_THD, contiguous. A token sees those up to `reach_tokens` before and behind it, or with
    None all of its sequence."""
    out_THD = qkv_T3HD.new_empty(qkv_T3HD.shape[0], *qkv_T3HD.shape[2:])
    for place_NL in batch.groups:
        # A copy, so that the addresses of a sequence do not depend on its place in the batch.
        q_NHLD, k_NHLD, v_NHLD = qkv_T3HD[place_NL].permute(2, 0, 3, 1, 4).contiguous()
        if reach_tokens is None or place_NL.shape[1] <= reach_tokens + 1:
            seen_NHLD = scaled_dot_product_attention(q_NHLD, k_NHLD, v_NHLD)
        else:
            seen_NHLD = _attend_near(q_NHLD, k_NHLD, v_NHLD, reach_tokens)
        out_THD[place_NL] = seen_NHLD.transpose(1, 2)
    return out_THD


def _attend_near(q_NHLD: Tensor, k_NHLD: Tensor, v_NHLD: Tensor, reach_tokens: int) -> Tensor:
    tokens = q_NHLD.shape[2]
    pieces = []
    for first in range(0, tokens, LOCAL_QUERIES):
        queries = slice(first, min(first + LOCAL_QUERIES, tokens))
        keys = slice(max(0, first - reach_tokens), min(queries.stop + reach_tokens, tokens))
        place_L = torch.arange(tokens, device=q_NHLD.device)
        seen_QK = (place_L[queries, None] - place_L[keys]).abs() <= reach_tokens
        piece_NHQD = scaled_dot_product_attention(
            q_NHLD[:, :, queries], k_NHLD[:, :, keys], v_NHLD[:, :, keys], attn_mask=seen_QK
        )
        pieces.append(piece_NHQD)
    return torch.cat(pieces, dim=2)
