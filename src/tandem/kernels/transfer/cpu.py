"""The native face of copying and checking. ctypes gives up Python's lock while C++ runs."""

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.native.library import Integer, NativeLibrary, Pointer
from tandem.kernels.transfer.contract import (
    Checksums,
    Key,
    Offsets,
    Sums,
    Transfer,
    check_key,
    check_offsets,
    check_run_bytes,
    sums_of,
)


class NativeTransfer:
    """Holds the C++ functions with their argument types set."""

    def __init__(self, library: NativeLibrary) -> None:
        self._copy = library.function("tandem_copy_spans", *([Pointer] * 5), Integer, Integer)
        self._checksum = library.function(
            "tandem_checksum_runs", Pointer, Pointer, Integer, Integer, Pointer, Integer
        )
        self._copy_runs = library.function(
            "tandem_copy_runs", *([Pointer] * 4), Integer, Integer, Pointer, Integer
        )

        self._sum = library.function(
            "tandem_sum_runs", Pointer, Pointer, Integer, Integer, Pointer, Pointer, Integer
        )

    @property
    def bundle(self) -> Transfer:
        return Transfer(
            "native", self.copy_spans, self.checksum_runs, self.copy_runs, self.sum_runs
        )

    def copy_spans(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        lengths: Offsets,
        threads: int = 1,
    ) -> None:
        count = len(lengths)
        check_offsets("target_offsets", target_offsets, count)
        check_offsets("source_offsets", source_offsets, count)
        check_offsets("lengths", lengths, count)
        self._copy(
            target_address,
            source_address,
            target_offsets.ctypes.data,
            source_offsets.ctypes.data,
            lengths.ctypes.data,
            count,
            threads,
        )

    def checksum_runs(
        self, address: int, offsets: Offsets, run_bytes: int, *, threads: int = 1
    ) -> Checksums:
        check_offsets("offsets", offsets, len(offsets))
        check_run_bytes(run_bytes)
        out = _room_for(len(offsets))
        self._checksum(
            address, offsets.ctypes.data, len(offsets), run_bytes, out.ctypes.data, threads
        )
        return out

    def copy_runs(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        run_bytes: int,
        threads: int = 1,
    ) -> Checksums:
        count = len(source_offsets)
        check_offsets("target_offsets", target_offsets, count)
        check_offsets("source_offsets", source_offsets, count)
        check_run_bytes(run_bytes)
        out = _room_for(count)
        self._copy_runs(
            target_address,
            source_address,
            target_offsets.ctypes.data,
            source_offsets.ctypes.data,
            count,
            run_bytes,
            out.ctypes.data,
            threads,
        )
        return out

    def sum_runs(
        self, address: int, offsets: Offsets, run_bytes: int, *, key: Key, threads: int = 1
    ) -> Sums:
        check_offsets("offsets", offsets, len(offsets))
        check_run_bytes(run_bytes)
        check_key(key)
        out = np.empty((len(offsets), sums_of(run_bytes), 2), dtype=np.uint64)
        self._sum(
            address,
            offsets.ctypes.data,
            len(offsets),
            run_bytes,
            key.ctypes.data,
            out.ctypes.data,
            threads,
        )
        return out


def _room_for(count: int) -> NDArray[np.uint64]:
    return np.empty(count, dtype=np.uint64)
