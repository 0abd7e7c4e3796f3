"""Linear layers: native against reference, and the law that a row never feels its company."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.faces import Kernels
from tandem.kernels.linear import NativePack
from tandem.kernels.native import KernelArgumentError, NativeLibrary
from tandem.kernels.packed import Storage

STORAGES: tuple[Storage, ...] = ("float32", "bfloat16", "float16", "int8", "int4")
# Of a product, relative; and of single weights.
ERRORS = {"float32": 1e-6, "bfloat16": 3e-3, "float16": 4e-4, "int8": 1.5e-2, "int4": 0.12}
TOLERANCES = {"float32": 0.0, "bfloat16": 8e-3, "float16": 1e-3, "int8": 1e-2, "int4": 0.1}
SHAPES = [(1, 1), (64, 64), (65, 33), (130, 300), (300, 517)]


def operands(rows: int, out_features: int, in_features: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(rows, in_features), (out_features, in_features), (out_features,)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 20, 130])
def test_native_agrees_with_reference(
    native: Kernels, reference: Kernels, storage: Storage, out_features: int, in_features: int,
    rows: int,
) -> None:  # fmt: skip
    x_TC, weight_NC, bias_N = operands(rows, out_features, in_features)
    for bias in (bias_N, None):
        found = native.linear(x_TC, native.pack(weight_NC, bias, storage))
        wanted = reference.linear(x_TC.double(), reference.pack(weight_NC, bias, storage))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 5, 6, 7, 20, 130])
@pytest.mark.usefixtures("bf16_products")
def test_products_in_bfloat16_are_of_rounded_rows(
    narrow: Kernels, reference: Kernels, out_features: int, in_features: int, rows: int
) -> None:
    x_TC, weight_NC, bias_N = operands(rows, out_features, in_features)
    found = narrow.linear(x_TC, narrow.pack(weight_NC, bias_N, "bfloat16"))
    rounded_TC = x_TC.to(torch.bfloat16).double()
    wanted = reference.linear(rounded_TC, reference.pack(weight_NC, bias_N, "bfloat16"))
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=2e-4)


def test_other_storage_is_multiplied_in_float32_all_the_same(
    narrow: Kernels, native: Kernels
) -> None:
    x_TC, weight_NC, bias_N = operands(9, 70, 40)
    for storage in ("float32", "float16"):
        packed = native.pack(weight_NC, bias_N, storage)
        assert torch.equal(narrow.linear(x_TC, packed), native.linear(x_TC, packed))


@pytest.mark.parametrize("storage", STORAGES)
def test_storage_error_is_that_of_the_format(reference: Kernels, storage: Storage) -> None:
    x_TC, weight_NC, _ = operands(8, 64, 256)
    stored = reference.linear(x_TC, reference.pack(weight_NC, None, storage))
    exact = reference.linear(x_TC.double(), reference.pack(weight_NC, None, "float64"))
    error = (stored - exact).norm() / exact.norm()
    assert (
        error
        < {"float32": 1e-6, "bfloat16": 3e-3, "float16": 4e-4, "int8": 1.5e-2, "int4": 0.12}[
            storage
        ]
    )


@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_rows_never_depend_on_their_company(
    native: Kernels, storage: Storage, data: st.DataObject
) -> None:
    check_company(native, storage, data)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.usefixtures("bf16_products")
def test_rows_in_bfloat16_never_depend_on_their_company(
    narrow: Kernels, data: st.DataObject
) -> None:
    check_company(narrow, "bfloat16", data)


def check_company(kernels: Kernels, storage: Storage, data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 230))
    shape = data.draw(st.integers(1, 140)), data.draw(st.sampled_from((300, 517)))
    x_TC, weight_NC, bias_N = operands(rows, *shape, seed=rows)
    packed = kernels.pack(weight_NC, bias_N, storage)
    together = kernels.linear(x_TC, packed)
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))
    for begin, end in zip([0, *cuts], [*cuts, rows], strict=True):
        assert torch.equal(kernels.linear(x_TC[begin:end], packed), together[begin:end])


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("rows", [1, 4, 50, 500])
def test_threads_change_no_bit(
    native: Kernels, two_threads: None, storage: Storage, rows: int
) -> None:
    check_threads(native, storage, rows)


@pytest.mark.parametrize("rows", [1, 4, 50, 500])
@pytest.mark.usefixtures("bf16_products")
def test_threads_change_no_bit_in_bfloat16(narrow: Kernels, two_threads: None, rows: int) -> None:
    check_threads(narrow, "bfloat16", rows)


def check_threads(kernels: Kernels, storage: Storage, rows: int) -> None:
    x_TC, weight_NC, bias_N = operands(rows, 700, 260)
    packed = kernels.pack(weight_NC, bias_N, storage)
    two = kernels.linear(x_TC, packed)
    torch.set_num_threads(1)
    assert torch.equal(kernels.linear(x_TC, packed), two)


def test_strided_rows(native: Kernels) -> None:
    x_TC, weight_NC, bias_N = operands(9, 70, 40)
    packed = native.pack(weight_NC, bias_N, "float32")
    wide = torch.full((9, 100), 7.0)
    wide[:, :40] = x_TC
    assert torch.equal(native.linear(wide[:, :40], packed), native.linear(x_TC, packed))


def test_half_storage_keeps_subnormals_and_infinities(native: Kernels) -> None:
    weight_NC = torch.tensor([[6e-8, -3e-5, 65504.0, torch.inf]]).T
    found = native.linear(torch.ones(1, 1), native.pack(weight_NC, None, "float16"))
    assert torch.equal(found[0], weight_NC[:, 0].half().float())


def test_a_weight_of_the_other_face_is_refused(native: Kernels, reference: Kernels) -> None:
    packed = reference.pack(torch.ones(2, 3), None, "float32")
    with pytest.raises(KernelArgumentError, match="layout"):
        native.linear(torch.ones(1, 3), packed)
    with pytest.raises(KernelArgumentError, match="x_TC"):
        reference.linear(torch.ones(1, 4), packed)
    with pytest.raises(KernelArgumentError, match="x_TC"):
        native.linear(torch.ones(1, 3).double(), native.pack(torch.ones(2, 3), None, "float32"))
    with pytest.raises(KernelArgumentError, match="storage"):
        native.pack(torch.ones(2, 3), None, "float64")


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_rows_can_be_looked_up_as_they_were_packed(
    native: Kernels, reference: Kernels, storage: Storage, out_features: int, in_features: int
) -> None:
    _, weight_NC, _ = operands(1, out_features, in_features)
    ids_T = torch.randint(0, out_features, (17,), generator=torch.Generator().manual_seed(1))
    wanted = reference.embed(ids_T, reference.pack(weight_NC, None, storage))
    found = native.embed(ids_T, native.pack(weight_NC, None, storage))
    assert torch.equal(found, wanted.float())
    tolerance = {"float32": 0.0, "float16": 1e-3, "bfloat16": 8e-3, "int8": 1e-2, "int4": 0.1}[
        storage
    ]
    torch.testing.assert_close(found.float(), weight_NC[ids_T], rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize("storage", ["float32", "float16", "int8"])
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (64, 32), (65, 33), (1100, 70)])
def test_panels_are_the_rows_turned(
    native: Kernels, reference: Kernels, storage: Storage, out_features: int, in_features: int
) -> None:
    _, weight_NC, bias_N = operands(1, out_features, in_features)
    rows = reference.pack(weight_NC, bias_N, storage)
    packed = native.pack(weight_NC, bias_N, storage)
    panels = -(-out_features // 64)
    wanted_NC = torch.zeros(panels * 64, in_features, dtype=packed.weight.dtype)
    codes = storage == "int8"
    wanted_NC[:out_features] = (rows.weight ^ 128).view(torch.int8) if codes else rows.weight
    assert torch.equal(packed.weight, wanted_NC.view(panels, 64, in_features).transpose(1, 2))
    if rows.groups is not None:
        assert packed.scale is not None
        assert rows.groups.scale is not None
        assert torch.equal(packed.scale, rows.groups.scale[:, 0])


@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (64, 32), (65, 33), (1100, 70)])
def test_panels_in_bfloat16_have_pairs_of_the_rows(
    library: NativeLibrary, out_features: int, in_features: int
) -> None:
    _, weight_NC, _ = operands(1, out_features, in_features)
    packed = NativePack(library, compact=False)(weight_NC, None, "bfloat16")
    panels, pairs = -(-out_features // 64), -(-in_features // 2)
    wanted_NC = torch.zeros(panels * 64, pairs * 2, dtype=torch.bfloat16)
    wanted_NC[:out_features, :in_features] = weight_NC.to(torch.bfloat16)
    wanted = wanted_NC.view(panels, 64, pairs, 2).transpose(1, 2)
    assert torch.equal(packed.weight, wanted)
