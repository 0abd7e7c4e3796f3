"""Weights in bfloat16 in three quarters of their bytes, exactly: see cpp/compact.h.

With few rows at a time memory is all that counts, and of the eight bits of an exponent some three
are information (Zhang et al., 2025, "70% Size, 100% Accuracy", DFloat11).
Axes: N output features, C input features.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tandem.kernels.native import Integer, NativeLibrary, Pointer, advise_huge_pages
from tandem.kernels.packed import PANEL_COLUMNS

# How C++ numbers this form, beside element types.
COMPACT_CODE = 4
SAMPLED_ROWS = 256
KNOWN_BYTES = 16
# With more exceptions a weight stays as it is.
VALUES_AN_EXCEPTION = 256


def known_high_bytes(weight_NC: Tensor) -> np.ndarray:
    """The sixteen high bytes that occur most in some rows of a weight, as bfloat16; uint8."""
    some_NC = weight_NC[:: max(1, len(weight_NC) // SAMPLED_ROWS)].to(torch.bfloat16)
    high = some_NC.contiguous().view(torch.int16).numpy().view(np.uint16) >> 8
    counts = np.bincount(high.ravel(), minlength=256)
    return np.argsort(-counts, kind="stable")[:KNOWN_BYTES].astype(np.uint8)


class NativeCompact:
    """On processors with AVX2 or AVX-512."""

    def __init__(self, library: NativeLibrary) -> None:
        self._there = bool(library.number("tandem_has_compact"))
        if not self._there:
            return
        self._bytes = library.function("tandem_compact_bytes", Integer, Integer, Integer, Pointer)
        self._begin = library.function("tandem_begin_compact", Pointer, Integer, Integer, Pointer)
        self._run = library.function(
            "tandem_compact", *(Pointer, Integer, Integer, Pointer, Integer, Pointer, Integer)
        )

    def __call__(
        self, weight_NC: Tensor, panels_at_once: int, into_panels: Callable[[Tensor, Tensor], None]
    ) -> Tensor | None:
        """uint8, one piece; None on other processors, and for a weight of which too many values
        are exceptions. `into_panels` turns rows in bfloat16 into panels, [panels, ceil(C / 2), 64,
        2]."""
        if not self._there:
            return None
        out_features, in_features = weight_NC.shape
        panels, pairs = -(-out_features // PANEL_COLUMNS), -(-in_features // 2)
        most = weight_NC.numel() // VALUES_AN_EXCEPTION
        compact = torch.empty(self._size(weight_NC, most), dtype=torch.uint8)
        advise_huge_pages(compact.data_ptr(), compact.nbytes)
        known, exceptions = known_high_bytes(weight_NC), np.zeros(1, np.int64)
        self._begin(known.ctypes.data, *weight_NC.shape, compact.data_ptr())
        # A few panels at a time, so that packing takes little memory beside its result.
        turned = torch.empty(panels_at_once, pairs, PANEL_COLUMNS, 2, dtype=torch.bfloat16)
        for first in range(0, panels, panels_at_once):
            rows_NC = weight_NC[first * PANEL_COLUMNS :][: panels_at_once * PANEL_COLUMNS]
            some = turned[: panels - first]
            into_panels(rows_NC.to(torch.bfloat16).contiguous(), some)
            self._run(
                some.data_ptr(),
                first,
                len(some),
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
