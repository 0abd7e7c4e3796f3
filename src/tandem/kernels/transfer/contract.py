"""What copying and checking raw memory means. Addresses are taken on trust: whoever calls has
checked that every piece lies inside memory that is mapped and stays so.

The checksum is 64 bits over the little-endian 64-bit words of a run, the last one filled up with
zeros. Words go to eight lanes in turn; a lane keeps the plain sum of its words, which any single
change disturbs, and the sum of the products of their halves after xor with a key of their place,
which no exchange of words leaves alone. It finds accidents, not attacks. Each lane sum is the NH
hash of Black et al., "UMAC: Fast and Secure Message Authentication" (1999), with fixed keys; the
mixing at the end is that of SplitMix64 (Steele, Lea and Flood, 2014). It is never 0, so that 0 may
say "not computed".

The keyed sums are what a message authentication code is made of: NH over 64-bit words, the first
level of VMAC (Krovetz and Dai, 2007), once for every `SUM_BYTES` of a run, the last of them filled
up with zeros. Words k and m in turn give sum((m0 + k0) * (m1 + k1)) modulo 2^128, the additions
modulo 2^64. Whoever does not know the key and has not seen a sum gets equal sums for two different
runs of one length with a chance of 2^-64. Sums must stay secret: they are hashed with another key.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.errors import KernelArgumentError

SUM_BYTES: Final = 1024
KEY_WORDS: Final = SUM_BYTES // 8

Key = NDArray[np.uint64]
Sums = NDArray[np.uint64]
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


class SumRuns(Protocol):
    def __call__(
        self, address: int, offsets: Offsets, run_bytes: int, *, key: Key, threads: int = 1
    ) -> Sums:
        """The keyed sums of `run_bytes` at each of the offsets: sums[run, sum, low and high half].
        `key` has `KEY_WORDS` words."""
        ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """All operations of one face. Each may run without Python's lock."""

    name: str
    copy_spans: CopySpans
    checksum_runs: ChecksumRuns
    copy_runs: CopyRuns
    sum_runs: SumRuns


def check_offsets(argument: str, offsets: Offsets, count: int) -> None:
    if offsets.dtype != np.int64 or offsets.shape != (count,) or not offsets.flags.c_contiguous:
        raise KernelArgumentError(
            argument, f"{offsets.dtype}{offsets.shape}", f"a contiguous int64 array of {count}"
        )


def check_run_bytes(run_bytes: int) -> None:
    if run_bytes <= 0:
        raise KernelArgumentError("run_bytes", run_bytes, "a positive number")


def check_key(key: Key) -> None:
    if key.dtype != np.uint64 or key.shape != (KEY_WORDS,) or not key.flags.c_contiguous:
        raise KernelArgumentError(
            "key", f"{key.dtype}{key.shape}", f"a contiguous uint64 array of {KEY_WORDS}"
        )


def sums_of(run_bytes: int) -> int:
    """How many keyed sums a run has."""
    return -(-run_bytes // SUM_BYTES)
