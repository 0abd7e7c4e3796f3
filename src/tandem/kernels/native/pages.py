"""Asks the system for memory as it suits: huge pages behind large arrays, for fewer address
look-ups while streaming; pages before anybody waits for them; freed ones back.

Advice only: where the system does not know of such things nothing changes.
"""

import ctypes
import sys

HUGE_PAGE_BYTES = 2 << 20
_MADV_HUGEPAGE = 14
_MADV_POPULATE_WRITE = 23


def advise_huge_pages(address: int, bytes: int) -> None:
    """Of memory of the host, before it is first written: pages are made at the first touch."""
    if not sys.platform.startswith("linux"):
        return
    first = -(-address // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    size = (address + bytes - first) & -HUGE_PAGE_BYTES
    if size > 0:
        _C_LIBRARY.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_HUGEPAGE)


def populate(address: int, bytes: int) -> bool:
    """Have pages behind mapped memory that begins at a page, as if all were written to; what it
    holds stays. False where that cannot be had (Linux before 5.14, no memory left): they are then
    made at the first touch. Python's lock is free meanwhile."""
    if not sys.platform.startswith("linux"):
        return False
    start, size = ctypes.c_void_p(address), ctypes.c_size_t(bytes)
    return bool(_C_LIBRARY.madvise(start, size, _MADV_POPULATE_WRITE) == 0)


def return_freed_memory() -> None:
    """Give memory that was freed back to the system, where the C library keeps it (glibc does)."""
    if hasattr(_C_LIBRARY, "malloc_trim"):
        _C_LIBRARY.malloc_trim(0)


_C_LIBRARY = ctypes.CDLL(None)
