"""Weights in bfloat16 in three quarters of their bytes, exactly: see cpp/compact.h.

With few rows at a time memory is all that counts, and of the eight bits of an exponent some three
are information (Zhang et al., 2025, "70% Size, 100% Accuracy", DFloat11).
Axes: N output features, C input features.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.native import Integer, NativeLibrary, Pointer, advise_huge_pages

# How C++ numbers this form, beside element types.
COMPACT_CODE = 4
# With more exceptions a weight stays as it is.
VALUES_AN_EXCEPTION = 256


class NativeCompact:
    """On processors with AVX2 or AVX-512."""

    def __init__(self, library: NativeLibrary) -> None:
        self._there = bool(library.number("tandem_has_compact"))
        if not self._there:
            return
        self._bytes = library.function("tandem_compact_bytes", Integer, Integer, Integer, Pointer)
        self._run = library.function(
            "tandem_compact",
            *(Pointer, Integer, Integer, Integer, Pointer, Integer, Pointer, Integer),
        )

    def __call__(self, weight_NC: Tensor) -> Tensor | None:
        """uint8, one piece; None on other processors, and for a weight of which too many values
        are exceptions."""
        if not self._there:
            return None
        most = weight_NC.numel() // VALUES_AN_EXCEPTION
        compact = torch.empty(self._size(weight_NC, most), dtype=torch.uint8)
        advise_huge_pages(compact.data_ptr(), compact.nbytes)
        rows_NC = weight_NC.to(torch.bfloat16).contiguous()
        if rows_NC.shape[1] % 2:
            # A pair of values is moved as one.
            rows_NC = functional.pad(rows_NC, (0, 1))
        exceptions = np.zeros(1, np.int64)
        self._run(
            rows_NC.data_ptr(),
            rows_NC.stride(0),
            *weight_NC.shape,
            compact.data_ptr(),
            most,
            exceptions.ctypes.data,
            torch.get_num_threads(),
        )
        if exceptions[0] < 0:
            return None
        return compact[: self._size(weight_NC, int(exceptions[0]))]

    def _size(self, weight_NC: Tensor, exceptions: int) -> int:
        found = np.zeros(1, np.int64)
        self._bytes(*weight_NC.shape, exceptions, found.ctypes.data)
        return int(found[0])
