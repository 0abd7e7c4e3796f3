"""How a row of KV lies in the pool: what one token has in one layer, keys or values, and one head.

Floats lie as they are. Codes (int8) have their scale before them, a float32: value = scale * code
with scale = largest absolute value of the row / 127, as they are on their way between workers
(`kv.codec`). A row with an infinity or no number has no number as its scale.

Axes: D head dim, E elements of a stored row.
"""

import torch
from torch import Tensor

SCALE_BYTES = 4
LARGEST_CODE = 127


def row_elements(dtype: torch.dtype, head_dim: int) -> int:
    """E, of a pool of this type."""
    return head_dim + (SCALE_BYTES if dtype is torch.int8 else 0)


def encode_rows(values: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., D] -> [..., E]"""
    if dtype is not torch.int8:
        return values.to(dtype)
    values = values.to(torch.float32)
    scale = values.abs().amax(dim=-1, keepdim=True) / LARGEST_CODE
    usable = scale.isfinite() & (scale > 0)
    steps = torch.where(usable, values, 0.0) / torch.where(usable, scale, 1.0)
    codes = steps.clamp(-LARGEST_CODE, LARGEST_CODE).round().to(torch.int8)
    kept = torch.where(scale.isinf(), torch.nan, scale)
    return torch.cat((kept.contiguous().view(torch.int8), codes), dim=-1)


def decode_rows(rows: Tensor) -> Tensor:
    """[..., E] -> [..., D]: codes as float32, floats as they are."""
    if rows.dtype is not torch.int8:
        return rows
    scale = rows[..., :SCALE_BYTES].contiguous().view(torch.float32)
    return rows[..., SCALE_BYTES:].to(torch.float32) * scale
