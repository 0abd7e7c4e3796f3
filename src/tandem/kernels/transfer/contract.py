"""What copying and checking raw memory means. Addresses are taken on trust: whoever calls has
checked that every piece lies inside memory that is mapped and stays so.

The checksum is 64 bits over the little-endian 64-bit words of a run, the last one filled up with
zeros. Words go to eight lanes in turn; a lane keeps the plain sum of its words, which any single
change disturbs, and the sum of the products of their halves after xor with a key of their place,
which no exchange of words leaves alone. It finds accidents, not attacks. Each lane sum is the NH
hash of Black et al., "UMAC: Fast and Secure Message Authentication" (1999), with fixed keys; the
mixing at the end is that of SplitMix64 (Steele, Lea and Flood, 2014). It is never 0, so that 0 may
say "not computed".
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.errors import KernelArgumentError

Offsets = NDArray[np.int64]
Checksums = NDArray[np.uint64]


class CopySpans(Protocol):
    def __call__(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        lengths: Offsets,
        threads: int = 1,
    ) -> None:
        """Copy `lengths[i]` bytes from `source_offsets[i]` to `target_offsets[i]`, in bytes from
        the two addresses. Pieces do not overlap."""
        ...


class ChecksumRuns(Protocol):
    def __call__(
        self, address: int, offsets: Offsets, run_bytes: int, *, threads: int = 1
    ) -> Checksums:
        """The checksum of `run_bytes` at each of the offsets, in their order."""
        ...


class CopyRuns(Protocol):
    def __call__(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        run_bytes: int,
        threads: int = 1,
    ) -> Checksums:
        """Copy pieces of one length and give the checksums of what was written, in one pass."""
        ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """All three operations of one face. Each may run without Python's lock."""

    name: str
    copy_spans: CopySpans
    checksum_runs: ChecksumRuns
    copy_runs: CopyRuns


def check_offsets(argument: str, offsets: Offsets, count: int) -> None:
    if offsets.dtype != np.int64 or offsets.shape != (count,) or not offsets.flags.c_contiguous:
        raise KernelArgumentError(
            argument, f"{offsets.dtype}{offsets.shape}", f"a contiguous int64 array of {count}"
        )


def check_run_bytes(run_bytes: int) -> None:
    if run_bytes <= 0:
        raise KernelArgumentError("run_bytes", run_bytes, "a positive number")
