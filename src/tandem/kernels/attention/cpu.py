"""The native face of paged attention: fp32 arithmetic over float32, bfloat16 or float16 keys."""

import torch
from torch import Tensor

from tandem.kernels.attention.choose import choose_tile_tokens
from tandem.kernels.attention.contract import AttentionBatch, check_attention
from tandem.kernels.errors import KernelArgumentError
from tandem.kernels.native.arguments import DTYPE_CODES, require_rows
from tandem.kernels.native.library import (
    Integer,
    IntegerArray,
    NativeLibrary,
    Pointer,
    Real,
    integers,
)

POOL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class NativePagedAttention:
    """q must be float32; blocks may lie anywhere, but D must be contiguous."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_paged_attention",
            *(Pointer, Integer, Integer, Pointer, Integer, IntegerArray, Pointer, Pointer, Pointer),
            *(Integer, Integer, Pointer, IntegerArray, Real, Integer, Integer, Integer),
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
            out_THD.data_ptr(),
            integers(heads, kv_heads, head_dim, block_size),
            scale,
            window or 0,
            choose_tile_tokens(heads // kv_heads),
            torch.get_num_threads(),
        )
        return out_THD
