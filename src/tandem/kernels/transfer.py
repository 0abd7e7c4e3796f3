"""Copies and checksums of raw memory. Addresses are taken on trust: whoever calls has checked that
every piece lies inside memory that is mapped and stays so.

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

import ctypes
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.instructions import InstructionSet, require_instructions
from tandem.kernels.native import (
    BuildFailure,
    Integer,
    KernelArgumentError,
    NativeLibrary,
    Pointer,
    load_library,
)

SUM_BYTES: Final = 1024
KEY_WORDS: Final = SUM_BYTES // 8
LANES: Final = 8
WORD_BYTES: Final = 8
# The fractions of the square roots of the first eight primes, made odd; and of the golden ratio.
LANE_KEYS: Final = np.array(
    [
        0x6A09E667F3BCC909,
        0xBB67AE8584CAA73B,
        0x3C6EF372FE94F82B,
        0xA54FF53A5F1D36F1,
        0x510E527FADE682D1,
        0x9B05688C2B3E6C1F,
        0x1F83D9ABFB41BD6B,
        0x5BE0CD19137E2179,
    ],
    dtype=np.uint64,
)
GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
LOW_HALF: Final = np.uint64(0xFFFFFFFF)
HALF: Final = np.uint64(32)

Key = NDArray[np.uint64]
Sums = NDArray[np.uint64]
Offsets = NDArray[np.int64]
Checksums = NDArray[np.uint64]


class Transfer(Protocol):
    """The operations of one implementation; each may run without Python's lock."""

    name: str

    def copy_spans(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        lengths: Offsets,
    ) -> None:
        """Copy `lengths[i]` bytes from `source_offsets[i]` to `target_offsets[i]`, in bytes from
        the two addresses. Pieces do not overlap."""
        ...

    def checksum_runs(self, address: int, offsets: Offsets, run_bytes: int) -> Checksums:
        """The checksum of `run_bytes` at each of the offsets, in their order."""
        ...

    def copy_runs(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        run_bytes: int,
    ) -> Checksums:
        """Copy pieces of one length and give the checksums of what was written, in one pass."""
        ...

    def sum_runs(self, address: int, offsets: Offsets, run_bytes: int, *, key: Key) -> Sums:
        """The keyed sums of `run_bytes` at each of the offsets: sums[run, sum, low and high half].
        `key` has `KEY_WORDS` words."""
        ...


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


class ReferenceTransfer:
    """Copies and checksums in numpy: slow, obvious, and the definition of the checksum's bits."""

    name = "reference"

    def copy_spans(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        lengths: Offsets,
    ) -> None:
        check_offsets("target_offsets", target_offsets, len(lengths))
        check_offsets("source_offsets", source_offsets, len(lengths))
        pieces = zip(
            target_offsets.tolist(), source_offsets.tolist(), lengths.tolist(), strict=True
        )
        for target, source, length in pieces:
            ctypes.memmove(target_address + target, source_address + source, length)

    def checksum_runs(self, address: int, offsets: Offsets, run_bytes: int) -> Checksums:
        check_offsets("offsets", offsets, len(offsets))
        check_run_bytes(run_bytes)
        steps = -(-run_bytes // (LANES * WORD_BYTES))
        padded = np.zeros((len(offsets), steps * LANES * WORD_BYTES), dtype=np.uint8)
        for row, offset in zip(padded, offsets.tolist(), strict=True):
            ctypes.memmove(row.ctypes.data, address + offset, run_bytes)
        return _checksums(padded.view("<u8").reshape(len(offsets), steps, LANES), run_bytes)

    def copy_runs(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        run_bytes: int,
    ) -> Checksums:
        check_run_bytes(run_bytes)
        self.copy_spans(
            target_address,
            source_address,
            target_offsets=target_offsets,
            source_offsets=source_offsets,
            lengths=np.full(len(source_offsets), run_bytes, dtype=np.int64),
        )
        return self.checksum_runs(target_address, target_offsets, run_bytes)

    def sum_runs(
        self,
        address: int,
        offsets: Offsets,
        run_bytes: int,
        *,
        key: Key,
    ) -> Sums:
        check_offsets("offsets", offsets, len(offsets))
        check_run_bytes(run_bytes)
        check_key(key)
        sums = np.empty((len(offsets), sums_of(run_bytes), 2), dtype=np.uint64)
        padded = np.zeros(sums_of(run_bytes) * SUM_BYTES, dtype=np.uint8)
        for index, offset in enumerate(offsets.tolist()):
            ctypes.memmove(padded.ctypes.data, address + offset, run_bytes)
            sums[index] = _keyed_sums(padded.view("<u8").reshape(-1, KEY_WORDS), key)
        return sums


def _keyed_sums(words_CK: NDArray[np.uint64], key: Key) -> NDArray[np.uint64]:
    """Words of C times the length of the key -> C sums as low and high half. A product of 128 bits
    is made of four of 64, and so is their sum."""
    keyed = words_CK + key
    a, b = keyed[:, 0::2], keyed[:, 1::2]
    a_low, a_high, b_low, b_high = a & LOW_HALF, a >> HALF, b & LOW_HALF, b >> HALF
    lowest, first, second = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (lowest >> HALF) + (first & LOW_HALF) + (second & LOW_HALF)
    high = a_high * b_high + (first >> HALF) + (second >> HALF) + (middle >> HALF)
    lowest_sum = (lowest & LOW_HALF).sum(axis=1, dtype=np.uint64)
    middle_sum = (middle & LOW_HALF).sum(axis=1, dtype=np.uint64) + (lowest_sum >> HALF)
    low = (lowest_sum & LOW_HALF) | (middle_sum << HALF)
    return np.stack([low, high.sum(axis=1, dtype=np.uint64) + (middle_sum >> HALF)], axis=1)


def _checksums(words_NSL: NDArray[np.uint64], run_bytes: int) -> Checksums:
    """Words of N runs in S steps of L lanes -> N checksums. All arithmetic is modulo 2^64."""
    steps = np.arange(words_NSL.shape[1], dtype=np.uint64)
    keyed = words_NSL ^ (LANE_KEYS + steps[:, None] * GOLDEN)
    products_NL = ((keyed & LOW_HALF) * (keyed >> np.uint64(32))).sum(axis=1, dtype=np.uint64)
    sums_NL = words_NSL.sum(axis=1, dtype=np.uint64)
    lanes_NL = _mixed(products_NL + LANE_KEYS) + _mixed(sums_NL ^ ~LANE_KEYS)
    length = np.array([run_bytes], dtype=np.uint64) * GOLDEN
    total_N = _mixed(lanes_NL.sum(axis=1, dtype=np.uint64) + length)
    return np.maximum(total_N, np.uint64(1))


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of a value comes to depend on every other."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


REFERENCE: Final = ReferenceTransfer()


class NativeTransfer:
    """The C++ functions with their argument types set. ctypes gives up Python's lock while they
    run."""

    name = "native"

    def __init__(self, library: NativeLibrary) -> None:
        self._copy = library.function("tandem_copy_spans", *([Pointer] * 5), Integer)
        self._checksum = library.function(
            "tandem_checksum_runs", Pointer, Pointer, Integer, Integer, Pointer
        )
        self._copy_runs = library.function(
            "tandem_copy_runs", *([Pointer] * 4), Integer, Integer, Pointer
        )

        self._sum = library.function(
            "tandem_sum_runs", Pointer, Pointer, Integer, Integer, Pointer, Pointer
        )

    def copy_spans(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        lengths: Offsets,
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
        )

    def checksum_runs(self, address: int, offsets: Offsets, run_bytes: int) -> Checksums:
        check_offsets("offsets", offsets, len(offsets))
        check_run_bytes(run_bytes)
        out = np.empty(len(offsets), dtype=np.uint64)
        self._checksum(address, offsets.ctypes.data, len(offsets), run_bytes, out.ctypes.data)
        return out

    def copy_runs(
        self,
        target_address: int,
        source_address: int,
        *,
        target_offsets: Offsets,
        source_offsets: Offsets,
        run_bytes: int,
    ) -> Checksums:
        count = len(source_offsets)
        check_offsets("target_offsets", target_offsets, count)
        check_offsets("source_offsets", source_offsets, count)
        check_run_bytes(run_bytes)
        out = np.empty(count, dtype=np.uint64)
        self._copy_runs(
            target_address,
            source_address,
            target_offsets.ctypes.data,
            source_offsets.ctypes.data,
            count,
            run_bytes,
            out.ctypes.data,
        )
        return out

    def sum_runs(self, address: int, offsets: Offsets, run_bytes: int, *, key: Key) -> Sums:
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
        )
        return out


def choose_transfer(
    allow_native: bool = True, instruction_set: InstructionSet = "auto"
) -> Transfer:
    """The native face where it can be built; both give the same bytes and the same checksums.
    Raises `InvalidConfiguration`."""
    if not allow_native:
        return REFERENCE
    require_instructions(instruction_set)
    library = load_library(instruction_set=instruction_set)
    return REFERENCE if isinstance(library, BuildFailure) else NativeTransfer(library)
