"""Copies and checksums in numpy: slow, obvious, and the definition of the checksum's bits."""

import ctypes
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tandem.kernels.transfer.contract import (
    KEY_WORDS,
    SUM_BYTES,
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


def copy_spans(
    target_address: int,
    source_address: int,
    *,
    target_offsets: Offsets,
    source_offsets: Offsets,
    lengths: Offsets,
    threads: int = 1,  # noqa: ARG001 - one is enough for a reference
) -> None:
    check_offsets("target_offsets", target_offsets, len(lengths))
    check_offsets("source_offsets", source_offsets, len(lengths))
    pieces = zip(target_offsets.tolist(), source_offsets.tolist(), lengths.tolist(), strict=True)
    for target, source, length in pieces:
        ctypes.memmove(target_address + target, source_address + source, length)


def checksum_runs(
    address: int,
    offsets: Offsets,
    run_bytes: int,
    *,
    threads: int = 1,  # noqa: ARG001 - one is enough for a reference
) -> Checksums:
    check_offsets("offsets", offsets, len(offsets))
    check_run_bytes(run_bytes)
    steps = -(-run_bytes // (LANES * WORD_BYTES))
    padded = np.zeros((len(offsets), steps * LANES * WORD_BYTES), dtype=np.uint8)
    for row, offset in zip(padded, offsets.tolist(), strict=True):
        ctypes.memmove(row.ctypes.data, address + offset, run_bytes)
    return _checksums(padded.view("<u8").reshape(len(offsets), steps, LANES), run_bytes)


def copy_runs(
    target_address: int,
    source_address: int,
    *,
    target_offsets: Offsets,
    source_offsets: Offsets,
    run_bytes: int,
    threads: int = 1,  # noqa: ARG001 - one is enough for a reference
) -> Checksums:
    check_run_bytes(run_bytes)
    copy_spans(
        target_address,
        source_address,
        target_offsets=target_offsets,
        source_offsets=source_offsets,
        lengths=np.full(len(source_offsets), run_bytes, dtype=np.int64),
    )
    return checksum_runs(target_address, target_offsets, run_bytes)


def sum_runs(
    address: int,
    offsets: Offsets,
    run_bytes: int,
    *,
    key: Key,
    threads: int = 1,  # noqa: ARG001 - one is enough for a reference
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


REFERENCE: Final = Transfer("reference", copy_spans, checksum_runs, copy_runs, sum_runs)
