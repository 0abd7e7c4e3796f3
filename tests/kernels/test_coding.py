"""Codes of weights: what they lose, and that C++ gives those of the reference."""

import pytest
import torch

from tandem.kernels.coding import NativeCode, code, code_groups, code_rows
from tandem.kernels.faces import Kernels
from tandem.kernels.native import NativeLibrary
from tandem.kernels.packed import FLOAT_STORAGE

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
SHAPES = [(1, 1), (3, 31), (65, 96), (70, 517), (128, 64)]


def weight(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """With rows of nothing, groups of nothing, groups that are tiny beside others of their row, and
    two values of opposite signs that are largest."""
    drawn_NC = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
    drawn_NC[1::5] = 0
    drawn_NC[2::5, :32] = 0
    drawn_NC[3::5, 32:64] *= 1e-12
    drawn_NC[4::5, : columns // 2] = 1.75
    drawn_NC[4::5, columns // 2 :] = -1.75
    return drawn_NC.to(dtype)


@pytest.mark.parametrize("storage", ["int8", "int4"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_native_codes_are_those_of_the_reference(
    library: NativeLibrary, rows: int, columns: int, dtype: torch.dtype, storage: str
) -> None:
    wide_NC = weight(rows, columns + 5, dtype)
    for weight_NC in (wide_NC, wide_NC[:, 3:-2], wide_NC[::2]):
        found, wanted = NativeCode(library)(weight_NC, storage), code(weight_NC, storage)
        assert torch.equal(found.codes, wanted.codes)
        assert torch.equal(found.scale, wanted.scale)
        assert (found.zero, found.bits, found.size) == (wanted.zero, wanted.bits, wanted.size)


@pytest.mark.parametrize(("coded", "step"), [(code_rows, 0.5), (code_groups, 1.0)])
def test_what_codes_lose(coded, step: float) -> None:
    weight_NC = weight(70, 517, torch.float32)
    found = coded(weight_NC)
    scale_NC = found.scale.repeat_interleave(found.size, 1)[:, :517]
    assert ((found.values() - weight_NC).abs() <= step * scale_NC.abs() * 1.001 + 1e-11).all()


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_packed_rows_are_where_they_belong(
    native: Kernels, rows: int, columns: int, storage: str
) -> None:
    weight_NC = weight(rows, columns, torch.float32)
    packed = native.pack(weight_NC, None, storage)
    found = native.embed(torch.arange(rows), packed)
    assert torch.equal(found, weight_NC.to(FLOAT_STORAGE[packed.storage]).float())
