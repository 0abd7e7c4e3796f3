"""Weights as codes in groups: what they mean, and that products of bytes are what they say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.kernels.coded import X_GROUP, CodedWeight
from tandem.kernels.faces import Kernels
from tandem.kernels.native import KernelArgumentError

# Bits, size of a group (0: whole rows), whether there are offsets.
FORMS = [(8, 0, False), (8, 32, False), (8, 16, True), (4, 32, False), (4, 128, True), (4, 0, True)]
SHAPES = [(1, 1), (64, 64), (65, 33), (130, 300), (70, 517)]
ROWS = [0, 1, 2, 3, 4, 7, 20, 130]


def numbers(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def coded(form: tuple[int, int, bool], out_features: int, in_features: int) -> CodedWeight:
    bits, size, has_offset = form
    groups = -(-in_features // size) if size else 1
    generator = torch.Generator().manual_seed(out_features)
    codes = torch.randint(0, 1 << bits, (out_features, in_features), generator=generator)
    return CodedWeight(
        codes=codes.to(torch.uint8),
        # Halves are exact: what is compared are products.
        scale=(0.01 * numbers(out_features, groups, seed=2)).half().float(),
        offset=(0.1 * numbers(out_features, groups, seed=3)).half().float() if has_offset else None,
        zero=0 if has_offset else 1 << (bits - 1),
        bits=8 if bits == 8 else 4,
        size=size or in_features,
    )


def as_coded(x_TC: torch.Tensor, size: int) -> torch.Tensor:
    """Rows as the nearest of 255 values in each group."""
    columns = x_TC.shape[1]
    groups = -(-columns // size)
    padded = torch.nn.functional.pad(x_TC, (0, groups * size - columns)).view(-1, groups, size)
    peak = padded.abs().amax(2, keepdim=True)
    codes = torch.round(padded * torch.where(peak > 0, 127 / peak, 0.0))
    return (codes * (peak / 127)).flatten(1)[:, :columns]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
@pytest.mark.usefixtures("int8_products")
def test_products_of_bytes_are_of_coded_rows(
    narrow: Kernels, form: tuple[int, int, bool], out_features: int, in_features: int
) -> None:
    weight, bias_N = coded(form, out_features, in_features), numbers(out_features, seed=5)
    packed = narrow.pack_coded(weight, bias_N)
    size = X_GROUP if form[1] == 0 and weight.offset is None else weight.size
    for rows in ROWS:
        x_TC = numbers(rows, in_features, seed=rows)
        wanted = as_coded(x_TC, size).double() @ weight.values().double().T + bias_N
        found = narrow.linear(x_TC, packed)
        torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=3e-4)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_products_in_float32_are_of_the_rows(
    native: Kernels,
    reference: Kernels,
    form: tuple[int, int, bool],
    out_features: int,
    in_features: int,
) -> None:
    weight = coded(form, out_features, in_features)
    for rows in ROWS:
        x_TC = numbers(rows, in_features, seed=rows)
        wanted = x_TC.double() @ weight.values().double().T
        for kernels in (native, reference):
            found = kernels.linear(x_TC, kernels.pack_coded(weight, None))
            torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=3e-4)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_rows_never_depend_on_their_company_or_threads(
    narrow: Kernels, native: Kernels, form: tuple[int, int, bool], data: st.DataObject
) -> None:
    rows = data.draw(st.integers(1, 230))
    weight = coded(form, data.draw(st.integers(1, 140)), data.draw(st.sampled_from((300, 517))))
    x_TC = numbers(rows, weight.codes.shape[1], seed=rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=4)))
    for kernels in (narrow, native):
        packed = kernels.pack_coded(weight, None)
        torch.set_num_threads(2)
        together = kernels.linear(x_TC, packed)
        torch.set_num_threads(1)
        for begin, end in zip([0, *cuts], [*cuts, rows], strict=True):
            assert torch.equal(kernels.linear(x_TC[begin:end], packed), together[begin:end])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_rows_can_be_looked_up(
    native: Kernels,
    reference: Kernels,
    form: tuple[int, int, bool],
    out_features: int,
    in_features: int,
) -> None:
    weight = coded(form, out_features, in_features)
    ids_T = torch.randint(0, out_features, (9,), generator=torch.Generator().manual_seed(1))
    for kernels in (native, reference):
        found = kernels.embed(ids_T, kernels.pack_coded(weight, None))
        torch.testing.assert_close(found, weight.values()[ids_T], rtol=1e-3, atol=1e-4)


def test_small_scales_lose_nothing_in_half_precision(narrow: Kernels) -> None:
    weight = coded((4, 32, False), 70, 256)
    tiny = CodedWeight(weight.codes, weight.scale * 2.0**-40, None, 8, 4, 32)
    x_TC = numbers(3, 256, seed=1)
    found, small = (narrow.linear(x_TC, narrow.pack_coded(each, None)) for each in (weight, tiny))
    assert torch.equal(found * 2.0**-40, small)


def test_groups_that_cut_words_are_refused(native: Kernels) -> None:
    weight = coded((4, 0, True), 3, 40)
    cut = CodedWeight(weight.codes, torch.ones(3, 10), None, 8, 4, 4)
    with pytest.raises(KernelArgumentError, match="multiple of 8"):
        native.pack_coded(cut, None)


def test_scales_of_another_shape_are_refused() -> None:
    codes = torch.zeros(2, 40, dtype=torch.uint8)
    with pytest.raises(KernelArgumentError, match="scale"):
        CodedWeight(codes, torch.ones(2, 1), None, 8, 4, 32)
