"""Copying and checking raw memory: native against numpy, and what the checksum must notice."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.native import KernelArgumentError, NativeLibrary
from tandem.kernels.transfer import (
    KEY_WORDS,
    REFERENCE,
    SUM_BYTES,
    NativeTransfer,
    Transfer,
    choose_transfer,
)

MEMORY_BYTES = 1 << 18
LENGTHS = [1, 7, 8, 63, 64, 65, 512, 1000, 4096, 4100]


@pytest.fixture(scope="session")
def transfer(library: NativeLibrary) -> Transfer:
    return NativeTransfer(library)


def some_memory(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, MEMORY_BYTES, dtype=np.uint8)


def places(seed: int, count: int, length: int) -> np.ndarray:
    """Offsets of pieces that do not overlap, at any alignment."""
    generator = np.random.default_rng(seed)
    slots = generator.permutation(MEMORY_BYTES // (length + 64))[:count].astype(np.int64)
    return slots * (length + 64) + generator.integers(0, 64, len(slots))


@pytest.mark.parametrize("run_bytes", LENGTHS)
def test_checksums_are_those_of_the_reference(transfer: Transfer, run_bytes: int) -> None:
    memory, offsets = some_memory(1), places(2, 20, run_bytes)
    found = transfer.checksum_runs(memory.ctypes.data, offsets, run_bytes)
    wanted = REFERENCE.checksum_runs(memory.ctypes.data, offsets, run_bytes)
    assert found.tolist() == wanted.tolist()


@pytest.mark.parametrize("run_bytes", LENGTHS)
def test_a_copy_that_checks_is_a_copy_and_a_check(transfer: Transfer, run_bytes: int) -> None:
    source, sources, targets = some_memory(3), places(4, 20, run_bytes), places(5, 20, run_bytes)
    copies = []
    for face in (transfer, REFERENCE):
        target = some_memory(6)
        checksums = face.copy_runs(
            target.ctypes.data,
            source.ctypes.data,
            target_offsets=targets,
            source_offsets=sources,
            run_bytes=run_bytes,
        )
        copies.append((target.tobytes(), checksums.tolist()))
    assert copies[0] == copies[1]
    alone = transfer.checksum_runs(source.ctypes.data, sources, run_bytes)
    assert copies[0][1] == alone.tolist()


@pytest.mark.parametrize("longest", [3, 300, 20_000])
def test_spans_are_copied_and_nothing_else(transfer: Transfer, longest: int) -> None:
    source, sources, targets = some_memory(7), places(8, 9, longest), places(9, 9, longest)
    lengths = np.random.default_rng(10).integers(0, longest, len(sources))
    found, wanted = some_memory(11), some_memory(11)
    for target, face in ((found, transfer), (wanted, REFERENCE)):
        face.copy_spans(
            target.ctypes.data,
            source.ctypes.data,
            target_offsets=targets,
            source_offsets=sources,
            lengths=lengths,
        )
    assert found.tobytes() == wanted.tobytes()
    for to, origin, length in zip(targets, sources, lengths, strict=True):
        assert found[to : to + length].tobytes() == source[origin : origin + length].tobytes()
        found[to : to + length] = some_memory(11)[to : to + length]
    assert found.tobytes() == some_memory(11).tobytes()


def checksum_of(transfer: Transfer, run: np.ndarray) -> int:
    memory = np.ascontiguousarray(run)
    start = np.zeros(1, dtype=np.int64)
    return int(transfer.checksum_runs(memory.ctypes.data, start, memory.nbytes)[0])


@settings(max_examples=60)
@given(data=st.data())
def test_a_change_shows(transfer: Transfer, data: st.DataObject) -> None:
    """Any bit, any two bits, any exchange of parts, a part of zeros, a longer run of them."""
    words = np.random.default_rng(12).integers(0, 2**63, 512, dtype=np.uint64)
    before = checksum_of(transfer, words)
    one, other = data.draw(st.lists(st.integers(0, 511), min_size=2, max_size=2, unique=True))
    changed = words.copy()
    changed[one] ^= np.uint64(1) << np.uint64(data.draw(st.integers(0, 63)))
    assert checksum_of(transfer, changed) != before
    top = words.copy()
    top[[one, other]] ^= np.uint64(1 << 63)
    assert checksum_of(transfer, top) != before
    exchanged = words.copy()
    exchanged[[one, other]] = words[[other, one]]
    assert checksum_of(transfer, exchanged) != before
    torn = words.copy()
    torn[one:] = 0
    assert checksum_of(transfer, torn) != before


def test_zeros_of_different_lengths_differ_and_none_is_zero(transfer: Transfer) -> None:
    found = [checksum_of(transfer, np.zeros(n, dtype=np.uint8)) for n in range(1, 300)]
    assert len(set(found)) == len(found)
    assert 0 not in found


def test_bits_are_fixed() -> None:
    """Workers of different versions compare checksums: change them knowingly."""
    run = np.arange(100, dtype=np.uint8)
    assert checksum_of(REFERENCE, run) == 0xE80E7DFBD574692


def test_the_choice(library: NativeLibrary) -> None:
    assert choose_transfer().name == "native"
    assert choose_transfer(allow_native=False) is REFERENCE


@pytest.mark.parametrize("native", [True, False])
def test_wrong_arguments_are_refused(transfer: Transfer, native: bool) -> None:
    face = transfer if native else REFERENCE
    memory, good = some_memory(1), np.zeros(2, dtype=np.int64)
    address = memory.ctypes.data
    for bad in (np.zeros(2, dtype=np.int32), np.zeros(4, dtype=np.int64)[::2]):
        with pytest.raises(KernelArgumentError, match="offsets"):
            face.checksum_runs(address, bad, 8)
    with pytest.raises(KernelArgumentError, match="run_bytes"):
        face.checksum_runs(address, good, 0)
    with pytest.raises(KernelArgumentError, match="target_offsets"):
        face.copy_spans(
            address, address, target_offsets=good[:1], source_offsets=good, lengths=good
        )
    nothing = np.zeros(0, dtype=np.int64)
    assert len(face.checksum_runs(address, nothing, 8)) == 0


def by_hand(raw: bytes, key: list[int]) -> list[list[int]]:
    """The keyed sums of a run as their definition has them."""
    raw += bytes(-len(raw) % SUM_BYTES)
    sums = []
    for start in range(0, len(raw), SUM_BYTES):
        words = np.frombuffer(raw[start : start + SUM_BYTES], dtype="<u8").tolist()
        keyed = [(word + each) % 2**64 for word, each in zip(words, key, strict=True)]
        total = sum(a * b for a, b in zip(keyed[::2], keyed[1::2], strict=True)) % 2**128
        sums.append([total % 2**64, total >> 64])
    return sums


@pytest.mark.parametrize("run_bytes", [1, 1000, 1024, 4100])
def test_keyed_sums_are_what_they_are_defined_to_be(transfer: Transfer, run_bytes: int) -> None:
    memory, offsets = some_memory(11), places(12, 5, run_bytes)
    memory[offsets[0] : offsets[0] + run_bytes] = 255
    key = np.random.default_rng(13).integers(0, 2**64, KEY_WORDS, dtype=np.uint64)
    wanted = [
        by_hand(memory[at : at + run_bytes].tobytes(), key.tolist()) for at in offsets.tolist()
    ]
    for face in (transfer, REFERENCE):
        found = face.sum_runs(memory.ctypes.data, offsets, run_bytes, key=key)
        assert found.tolist() == wanted
    with pytest.raises(KernelArgumentError, match="key"):
        transfer.sum_runs(memory.ctypes.data, offsets, run_bytes, key=key[1:])
