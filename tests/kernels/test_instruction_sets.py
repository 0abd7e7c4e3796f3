"""Instructions by name: each set that this processor has gives the right numbers, and the same bits
in any company and after any compilation; one that it lacks is refused."""

import pytest
import torch

from tandem.facts.errors import InvalidConfiguration
from tandem.kernels import instructions, native
from tandem.kernels.coded import X_GROUP
from tandem.kernels.faces import Kernels, choose_kernels
from tandem.kernels.instructions import (
    InstructionSet,
    available_instructions,
    missing_instructions,
    require_instructions,
)
from tandem.kernels.linear import has_bf16_products, has_int8_products
from tandem.kernels.native import NativeLibrary, build_key, load_library
from tandem.kernels.packed import Storage
from tandem.kernels.transfer import choose_transfer
from tests.kernels.test_coded import as_coded, numbers
from tests.seeds import ALL

CPU = torch.device("cpu")
# Each is compiled anew, so by default only what any processor of the last ten years has, and this
# one may not choose by itself.
COMMON: tuple[InstructionSet, ...] = ("avx2",)
SETS = [name for name in available_instructions() if name in COMMON or (ALL and name != "auto")]
OUT_FEATURES, IN_FEATURES, ROWS = 130, 300, 20


@pytest.fixture(scope="module", params=SETS)
def instruction_set(request: pytest.FixtureRequest, library: NativeLibrary) -> InstructionSet:
    found: InstructionSet = request.param
    return found


@pytest.fixture(scope="module")
def narrow(instruction_set: InstructionSet) -> Kernels:
    kernels, reason = choose_kernels(CPU, torch.float32, True, "auto", instruction_set)
    assert kernels.batch_invariant, reason
    return kernels


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "int8", "int4"])
def test_rows_are_right_in_any_company(
    narrow: Kernels, instruction_set: InstructionSet, storage: Storage
) -> None:
    library = load_library(instruction_set=instruction_set)
    assert isinstance(library, NativeLibrary)
    x_TC, weight_NC = numbers(ROWS, IN_FEATURES, seed=1), numbers(OUT_FEATURES, IN_FEATURES, seed=2)
    packed = narrow.pack(weight_NC, None, storage)
    rows_NC = narrow.embed(torch.arange(OUT_FEATURES), packed).double()
    multiplied_TC = x_TC
    if storage == "bfloat16" and has_bf16_products(library):
        multiplied_TC = x_TC.bfloat16()
    elif storage in ("int8", "int4") and has_int8_products(library):
        multiplied_TC = as_coded(x_TC, X_GROUP if storage == "int8" else 32)
    together = narrow.linear(x_TC, packed)
    torch.testing.assert_close(
        together.double(), multiplied_TC.double() @ rows_NC.T, rtol=1e-4, atol=1e-3
    )
    for row in range(0, ROWS, 3):
        assert torch.equal(narrow.linear(x_TC[row : row + 1], packed), together[row : row + 1])


def test_codes_are_multiplied_as_bytes_on_all_but_the_oldest(library: NativeLibrary) -> None:
    for name in SETS:
        built = load_library(instruction_set=name)
        assert isinstance(built, NativeLibrary)
        assert has_int8_products(built) == (name != "baseline")


def test_a_set_by_name_does_not_depend_on_the_processor(
    library: NativeLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {name: build_key("/bin/true", name) for name in ("auto", *SETS)}
    assert len(set(keys.values())) == len(keys)
    monkeypatch.setattr(native, "cpu_identity", lambda: "another processor")
    for name, key in keys.items():
        assert (build_key("/bin/true", name) == key) == (name != "auto")


def test_a_set_that_the_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructions, "cpu_lines", lambda: ["flags\t\t: fpu sse2 avx2 fma f16c"])
    assert available_instructions() == ["auto", "baseline"]
    assert missing_instructions("avx2") == ("bmi2",)
    for choose in (
        lambda: choose_kernels(CPU, torch.float32, True, instruction_set="avx-vnni"),
        lambda: choose_transfer(instruction_set="avx-vnni"),
    ):
        with pytest.raises(InvalidConfiguration, match=r"lacks bmi2, avx_vnni; expected one of"):
            choose()
    require_instructions("baseline")
