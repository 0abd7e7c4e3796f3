"""Rows of memory beside the device, each as long as a block, and checked copies between rows."""

import ctypes
import mmap
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tandem.facts.kv import BlockName
from tandem.kernels.native import advise_huge_pages
from tandem.kernels.transfer import Checksums, Transfer
from tandem.kv.tiers.contract import Row

# Copies to rows that begin here go past the caches.
ROW_ALIGNMENT = 64

Rows = NDArray[np.uint8]  # rows[row, byte]
Addresses = NDArray[np.int64]


def allocated_rows(count: int, row_bytes: int) -> Rows:
    """Memory of the process's own, not touched yet, so the system has given none of it so far.
    Raises `MemoryError` or `OSError` where not even addresses can be had."""
    size_bytes = count * row_stride(row_bytes)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = np.frombuffer(mmap.mmap(-1, size_bytes, flags), dtype=np.uint8)
    advise_huge_pages(memory.ctypes.data, size_bytes)
    return rows_of(memory, row_bytes)


def row_stride(row_bytes: int) -> int:
    """So many bytes after a row the next one begins."""
    return -(-row_bytes // ROW_ALIGNMENT) * ROW_ALIGNMENT


def rows_of(memory: NDArray[np.uint8], row_bytes: int) -> Rows:
    """Memory whose length is a multiple of `row_stride`."""
    return memory.reshape(-1, row_stride(row_bytes))[:, :row_bytes]


def leading_slots(
    names: Sequence[BlockName], slots: Mapping[bytes, int]
) -> tuple[list[int], tuple[bytes, ...]]:
    """Where the leading blocks lie, and the digest of the first that is not there."""
    found: list[int] = []
    for name in names:
        if name.digest not in slots:
            return found, (name.digest,)
        found.append(slots[name.digest])
    return found, ()


class RowCopies:
    """Copies and checks whole rows of `row_bytes`."""

    def __init__(self, transfer: Transfer, row_bytes: int) -> None:
        self._transfer = transfer
        self._row_bytes = row_bytes

    def copy(self, sources: Sequence[Row], targets: Sequence[Row]) -> Checksums:
        """Fill `targets[i]` from `sources[i]`; the checksums of what was written."""
        return self.copy_at(self.addresses(sources), self.addresses(targets))

    def copy_at(self, origins: Addresses, places: Addresses) -> Checksums:
        """As `copy`, of rows whose addresses are known."""
        assert len(origins) == len(places)
        if not len(origins):
            return np.empty(0, dtype=np.uint64)
        origin, place = int(origins.min()), int(places.min())
        return self._transfer.copy_runs(
            place,
            origin,
            target_offsets=places - place,
            source_offsets=origins - origin,
            run_bytes=self._row_bytes,
        )

    def checksums(self, rows: Sequence[Row]) -> Checksums:
        if not rows:
            return np.empty(0, dtype=np.uint64)
        addresses = self.addresses(rows)
        first = int(addresses.min())
        return self._transfer.checksum_runs(first, addresses - first, self._row_bytes)

    def addresses(self, rows: Sequence[Row]) -> Addresses:
        for row in rows:
            assert row.nbytes == self._row_bytes
        return np.array([_address(row) for row in rows], dtype=np.int64)


def _address(row: Row) -> int:
    """Of a row without gaps. Asking for its buffer is twice as fast as `row.ctypes`."""
    if row.flags.writeable:
        return ctypes.addressof(ctypes.c_char.from_buffer(row.data))
    assert row.flags.c_contiguous
    return int(row.ctypes.data)
