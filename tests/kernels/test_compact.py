"""Compact weights: every value comes back, and every product has the bits that it had."""

import pytest
import torch

from tandem.kernels.faces import Kernels, native_kernels
from tandem.kernels.instructions import InstructionSet, available_instructions
from tandem.kernels.linear import NativePack
from tandem.kernels.native import BuildFailure, NativeLibrary, load_library
from tandem.kernels.packed import Pack

SHAPES = [(1, 1), (64, 64), (65, 33), (130, 300), (1100, 71), (192, 517)]
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 15, 48, 49, 96, 130)
RARE = (0.0, -0.0, 1e-40, -1e-30, 3e38, float("inf"), float("-inf"), float("nan"))


# Instructions, and whether products are in bfloat16.
WAYS: list[tuple[InstructionSet, bool]] = [
    ("avx2", False),
    ("avx512", False),
    ("avx512-bf16", False),
    ("avx512-bf16", True),
]


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}")
def way(request: pytest.FixtureRequest) -> tuple[NativeLibrary, bool]:
    """Also on a processor that has more."""
    instructions, narrow = request.param
    if instructions not in available_instructions():
        pytest.skip(f"this processor lacks {instructions}")
    loaded = load_library(instruction_set=instructions)
    if isinstance(loaded, BuildFailure):
        pytest.skip(loaded.reason)
    return loaded, narrow


@pytest.fixture(scope="module")
def native(way: tuple[NativeLibrary, bool]) -> Kernels:
    library, narrow = way
    return native_kernels(library, narrow=narrow)


@pytest.fixture(scope="module")
def plain(way: tuple[NativeLibrary, bool]) -> Pack:
    return NativePack(way[0], compact=False)


def weight(out_features: int, in_features: int, rare: tuple[float, ...] = ()) -> torch.Tensor:
    """With some values of other magnitudes here and there."""
    generator = torch.Generator().manual_seed(out_features * 7 + in_features)
    weight_NC = torch.randn(out_features, in_features, generator=generator)
    places = torch.randperm(weight_NC.numel(), generator=generator)[: weight_NC.numel() // 300]
    for number, place in enumerate(places.tolist()):
        if rare:
            weight_NC.view(-1)[place] = rare[number % len(rare)]
    return weight_NC


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("rare", [(), RARE[:5]])
@pytest.mark.usefixtures("two_threads")
def test_products_have_the_bits_of_plain_weights(
    native: Kernels, plain: Pack, out_features: int, in_features: int, rare: tuple[float, ...]
) -> None:
    weight_NC = weight(out_features, in_features, rare)
    bias_N = torch.randn(out_features, generator=torch.Generator().manual_seed(1))
    compact, other = (pack(weight_NC, bias_N, "bfloat16") for pack in (native.pack, plain))
    assert compact.compact
    assert not other.compact
    for rows in ROWS:
        x_TC = torch.randn(rows, in_features, generator=torch.Generator().manual_seed(rows))
        assert torch.equal(native.linear(x_TC, compact), native.linear(x_TC, other))


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_every_value_comes_back(
    native: Kernels, plain: Pack, out_features: int, in_features: int
) -> None:
    weight_NC = weight(out_features, in_features, RARE)
    packed = native.pack(weight_NC, None, "bfloat16")
    assert packed.compact
    found = native.embed(torch.arange(out_features), packed)
    wanted = weight_NC.to(torch.bfloat16).float()
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))


def test_three_quarters_of_the_bytes(native: Kernels, plain: Pack) -> None:
    weight_NC = weight(2048, 512)
    packed = native.pack(weight_NC, None, "bfloat16")
    # With an exception in ten thousand values, as a normal distribution has.
    assert packed.weight_bytes < 0.7515 * plain(weight_NC, None, "bfloat16").weight_bytes


def test_a_weight_of_all_magnitudes_stays_as_it_is(native: Kernels, plain: Pack) -> None:
    weight_NC = torch.randn(128, 96, generator=torch.Generator().manual_seed(0))
    weight_NC *= 2.0 ** torch.arange(-48, 48)
    packed = native.pack(weight_NC, None, "bfloat16")
    assert not packed.compact
    assert torch.equal(packed.weight, plain(weight_NC, None, "bfloat16").weight)
