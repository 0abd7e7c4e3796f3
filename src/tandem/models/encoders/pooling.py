"""From the hidden states of tokens to one vector a sequence, each computed by itself: what torch
reduces or maps together may be cut for threads where it changes bits.

Axes: T packed tokens, D sequences, C hidden.
"""

import torch
from torch import Tensor

from tandem.facts.encoder import PoolingMode
from tandem.models.encoders.batch import EncoderBatch

SMALLEST_LENGTH = 1e-12


def pool(hidden_TC: Tensor, batch: EncoderBatch, mode: PoolingMode) -> Tensor:
    """pooled_DC. Means are computed in float32 at least."""
    wide = torch.promote_types(hidden_TC.dtype, torch.float32)
    rows = [_pool_one(hidden_TC[start:stop], mode, wide) for start, stop in batch.spans]
    return torch.stack(rows) if rows else hidden_TC[:0]


def _pool_one(hidden_TC: Tensor, mode: PoolingMode, wide: torch.dtype) -> Tensor:
    match mode:
        case "mean":
            return hidden_TC.to(wide).mean(dim=0).to(hidden_TC.dtype)
        case "cls":
            return hidden_TC[0]
        case "last":
            return hidden_TC[-1]


def normalised(vectors_DC: Tensor) -> Tensor:
    """The vectors at length 1; one of zeros stays so."""
    rows = [row_C / row_C.norm().clamp_min(SMALLEST_LENGTH) for row_C in vectors_DC]
    return torch.stack(rows) if rows else vectors_DC


def tanh(x_DC: Tensor) -> Tensor:
    return torch.stack([row_C.tanh() for row_C in x_DC]) if len(x_DC) else x_DC
