"""The kernels for ARM, built by a cross compiler and run by an emulator, give what those of this
processor give: products and draws to the last bit, and attention but for the order of its sums."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tandem.kernels.instructions import Instructions, available_instructions
from tandem.kernels.native import SOURCES, BuildFailure, compile_library, load_library

CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
SYSTEM = "/usr/aarch64-linux-gnu"
PROGRAM = Path(__file__).with_name("operations_check.cpp")
# Sums over the lanes of a register are made in another order where it has fewer.
NEARLY = ("attention", "logprobs")
TOLERANCE = 1e-6
PRODUCTS = "products of bytes"

pytestmark = pytest.mark.skipif(
    shutil.which(CROSS_COMPILER) is None or shutil.which(EMULATOR) is None,
    reason="no compiler and emulator for ARM: apt-get install g++-aarch64-linux-gnu qemu-user",
)


def lines_of(compiler: str, library: Path, program: Path, *runner: str) -> list[str]:
    """What the program says that is linked with this library of kernels."""
    command = [compiler, "-std=c++17", f"-I{SOURCES}", str(PROGRAM), str(library)]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", str(program)], check=True)
    said = subprocess.run([*runner, str(program)], check=True, capture_output=True, text=True)
    return said.stdout.splitlines()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    if "avx2" not in available_instructions():
        pytest.skip("this processor lacks AVX2")
    loaded = load_library(instruction_set="avx2")
    assert not isinstance(loaded, BuildFailure)
    return lines_of("g++", loaded.path, tmp_path_factory.mktemp("here") / "check")


@pytest.mark.parametrize(
    ("flags", "has_products"), [("armv8-a", False), ("armv8.2-a+dotprod", True)]
)
def test_arm_computes_the_same(
    expected: list[str], flags: str, has_products: bool, tmp_path: Path
) -> None:
    library = tmp_path / "libkernels.so"
    built = compile_library(CROSS_COMPILER, library, Instructions(((f"-march={flags}",),)))
    assert built == library
    runner = (EMULATOR, "-cpu", "max", "-L", SYSTEM)
    found = lines_of(CROSS_COMPILER, library, tmp_path / "check", *runner)
    assert found[0] == f"{PRODUCTS}: {int(has_products)}"
    wanted = [each for each in expected[1:] if has_products or PRODUCTS not in each]
    assert len(found) == 1 + len(wanted)
    for line, other in zip(wanted, found[1:], strict=True):
        if line.startswith(NEARLY):
            assert numbers_of(other) == pytest.approx(numbers_of(line), abs=TOLERANCE)
        else:
            assert line == other


def numbers_of(line: str) -> list[float]:
    return [float.fromhex(word) for word in line.split() if "0x" in word]
