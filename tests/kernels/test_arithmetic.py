"""Which bits the kernels give, under which number."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tandem.kernels import arithmetic
from tandem.kernels.arithmetic import ARITHMETIC_VERSION, arithmetic_of, fingerprint
from tandem.kernels.native import COMPILERS
from tandem.kernels.rotary import RotaryTable, rotary_table

# Of `ARITHMETIC_VERSION`, by the compiler and the floats in a register (16: AVX-512, 8: AVX2 with
# FMA, 4: plain x86-64). All processors that have the same registers give the same. Where one of
# these changes, raise the version and write down the new ones.
KNOWN_VERSION = 1
KNOWN = {
    ("g++ 12", 16): "37ad1747997ac4c2a2a8d9f4",
    ("g++ 12", 8): "072b441877c2d4be10ea79b9",
    ("g++ 12", 4): "726a21ba8eabf86a7d6156c4",
}


def compiler() -> str:
    path = next(found for name in COMPILERS if (found := shutil.which(name)))
    told = subprocess.run([path, "-dumpversion"], capture_output=True, text=True, check=True)
    return f"{Path(path).name} {told.stdout.split('.')[0].strip()}"


def test_bits_that_change_have_a_number_of_their_own(native, library):
    assert ARITHMETIC_VERSION == KNOWN_VERSION, "write down the new fingerprints"
    known = KNOWN.get((compiler(), library.number("tandem_lanes")))
    if known is None:
        pytest.skip("nobody has written down what this compiler gives on this processor")
    assert fingerprint(native) == known, (
        "the kernels give other bits than before: KV that is kept would not be what is computed; "
        "raise ARITHMETIC_VERSION"
    )


@pytest.mark.usefixtures("int8_products")
def test_products_in_fewer_bits_are_another_arithmetic(native, narrow):
    cpu = torch.device("cpu")
    lines = {arithmetic_of(each, cpu, torch.float32) for each in (native, narrow)}
    assert len(lines) == 2


def test_another_rotary_table_of_torch_is_another_arithmetic(native, monkeypatch):
    """As on another processor, for which the same kernels were compiled."""
    cpu = torch.device("cpu")
    before = arithmetic_of(native, cpu, torch.float32)
    assert arithmetic_of(native, cpu, torch.float32) == before

    def other(*words):
        table = rotary_table(*words)
        return RotaryTable(table.cos.nextafter(torch.ones(())), table.sin)

    monkeypatch.setattr(arithmetic, "rotary_table", other)
    assert arithmetic_of(native, cpu, torch.float32) != before


def test_kv_that_is_held_as_codes_is_another_arithmetic(native):
    cpu = torch.device("cpu")
    plain, coded = (
        arithmetic_of(native, cpu, torch.float32, kv_codes=each) for each in (False, True)
    )
    assert coded.startswith(f"{plain}, KV codes ")


@pytest.mark.usefixtures("two_threads")
def test_the_same_every_time_and_with_more_threads(native):
    first = fingerprint(native)
    torch.set_num_threads(1)
    assert fingerprint(native) == first


def test_weights_that_a_checkpoint_gives_as_codes_have_a_digest_of_their_own(native):
    cpu = torch.device("cpu")
    plain, coded = (arithmetic_of(native, cpu, torch.float32, codes=each) for each in (False, True))
    assert coded.startswith(f"{plain}, codes ")
    results = arithmetic._coded(native)
    assert len(results) == 8
    assert all(len(result.unique()) > result.numel() // 2 for result in results)


def test_every_operation_counts(native):
    results = arithmetic._results(native)
    assert len(results) == 13
    assert all(torch.isfinite(result).all() for result in results)
    for result in results:
        assert len(result.unique()) > result.numel() // 2


def test_faces_versions_and_precisions_have_lines_of_their_own(native, reference, monkeypatch):
    cpu = torch.device("cpu")
    lines = {
        arithmetic_of(native, cpu, torch.float32),
        arithmetic_of(reference, cpu, torch.float32),
        arithmetic_of(reference, cpu, torch.float64),
    }
    monkeypatch.setattr(arithmetic, "ARITHMETIC_VERSION", ARITHMETIC_VERSION + 1)
    lines |= {arithmetic_of(each, cpu, torch.float32) for each in (native, reference)}
    assert len(lines) == 5
    assert all(re.fullmatch(r"(native|reference)/\d, float\d\d, torch .+", line) for line in lines)
