"""Asks the kernel for huge pages behind large tensors: fewer address look-ups while streaming.

Advice only: where the system knows no huge pages nothing changes.
"""

import ctypes
import sys

from torch import Tensor

HUGE_PAGE_BYTES = 2 << 20
_MADV_HUGEPAGE = 14


def advise_huge_pages(memory: Tensor) -> None:
    """To be called before the tensor is first written: pages are made at the first touch."""
    if not sys.platform.startswith("linux") or memory.device.type != "cpu":
        return
    start = memory.data_ptr()
    first = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    size = (start + memory.numel() * memory.element_size() - first) & -HUGE_PAGE_BYTES
    if size > 0:
        _C_LIBRARY.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_HUGEPAGE)


def return_freed_memory() -> None:
    """Give memory that was freed back to the system, where the C library keeps it (glibc does)."""
    if hasattr(_C_LIBRARY, "malloc_trim"):
        _C_LIBRARY.malloc_trim(0)


_C_LIBRARY = ctypes.CDLL(None)
