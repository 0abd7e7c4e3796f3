"""The native face of rotation and the pool write: float32 heads, three pool precisions."""

import torch

from tandem.kernels.native.arguments import DTYPE_CODES, require_rows, require_whole
from tandem.kernels.native.library import (
    Integer,
    IntegerArray,
    NativeLibrary,
    Pointer,
    integers,
)
from tandem.kernels.rotary.contract import QueryKeyValue, RotaryTable, TokenPlaces, check_rotate


class NativeRotateAndStore:
    """Tables must be contiguous float32, positions and slots contiguous int64."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_rotate_and_store",
            *(Pointer, Pointer, Pointer, IntegerArray, IntegerArray, Integer, Pointer, Pointer),
            *(Pointer, Pointer, Pointer, Integer, IntegerArray, Integer),
        )

    def __call__(
        self,
        heads: QueryKeyValue,
        kv_B2KSD: torch.Tensor,
        table: RotaryTable | None,
        places: TokenPlaces,
    ) -> None:
        check_rotate(heads, kv_B2KSD, table, places)
        q, k, v = heads.q, heads.k, heads.v
        require_rows("heads.q", q)
        require_rows("heads.k", k)
        require_rows("heads.v", v)
        if table is not None:
            require_whole("table.cos", table.cos, torch.float32)
            require_whole("table.sin", table.sin, torch.float32)
        tokens, query_heads, head_dim = q.shape
        half = 0 if table is None else table.cos.shape[1]
        shape = (query_heads, k.shape[1], head_dim, half, kv_B2KSD.shape[3])
        self.run(
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            integers(q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
            integers(*shape),
            tokens,
            None if table is None else table.cos.data_ptr(),
            None if table is None else table.sin.data_ptr(),
            places.positions.data_ptr(),
            places.slots.data_ptr(),
            kv_B2KSD.data_ptr(),
            DTYPE_CODES[kv_B2KSD.dtype],
            integers(*kv_B2KSD.stride()[:4]),
            torch.get_num_threads(),
        )
