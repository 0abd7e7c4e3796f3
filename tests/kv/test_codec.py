"""Precisions turn into each other as torch rounds them; scaled ones stay within their bounds."""

import numpy as np
import pytest
import torch

from tandem.kv.codec import PORTION_VALUES, convert, decode, encode
from tandem.kv.layout import FLOAT_BYTES, is_wire_dtype, row_bytes
from tandem.kv.store import TORCH_DTYPES

STORED = tuple(FLOAT_BYTES)
SCALED = ("int8", "float8_e4m3")


def spread_values(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    """Of all magnitudes down to 2^-40, both signs, some of them zero."""
    chance = np.random.default_rng(seed)
    values = chance.standard_normal(shape) * 2.0 ** chance.integers(-40, 12, shape)
    values[chance.random(shape) < 0.05] = 0
    return values


def as_rows(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


@pytest.mark.parametrize("source", STORED)
@pytest.mark.parametrize("target", STORED)
def test_stored_precisions_turn_into_each_other_as_in_torch(source, target):
    values = torch.from_numpy(spread_values(1, (100, 24))).to(TORCH_DTYPES[source])
    rows = convert(as_rows(values), source, target)
    assert rows.shape == (100, row_bytes(target, 24))
    assert np.array_equal(rows, as_rows(values.to(TORCH_DTYPES[target])))
    out = np.zeros_like(rows)
    assert source == target or convert(as_rows(values), source, target, out=out) is out
    assert source == target or np.array_equal(out, rows)


def test_long_lists_of_rows_are_converted_in_portions():
    values = torch.from_numpy(spread_values(5, (3 * PORTION_VALUES // 64 + 7, 64)).astype("f4"))
    rows = convert(as_rows(values), "float32", "bfloat16")
    assert np.array_equal(rows, as_rows(values.bfloat16()))


def test_ties_go_to_even_and_nothing_finite_becomes_infinite_but_by_rounding():
    ties = np.array([[1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8]], dtype=np.float32)
    assert decode(encode(ties, "bfloat16"), "bfloat16").tolist() == [[1, 1 + 2**-6, -1]]
    assert decode(encode(np.array([[1e9, -7e4]]), "float16"), "float16").tolist() == [
        [65504, -65504]
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_not_finite_stays_so(dtype):
    wild = np.array([[np.nan, np.inf, -np.inf, 1.0]])
    back = decode(encode(wild, dtype), dtype)
    assert np.isnan(back[0, 0]) and back[0, 1:].tolist() == [np.inf, -np.inf, 1.0]


@pytest.mark.parametrize("dtype", SCALED)
def test_the_error_of_scaled_precisions_is_bounded(dtype):
    values = spread_values(2, (2000, 16)).astype(np.float32)
    rows = encode(values, dtype)
    assert rows.shape == (2000, row_bytes(dtype, 16)) == (2000, 20)
    errors = np.abs(decode(rows, dtype) - values)
    largest = np.abs(values).max(axis=-1, keepdims=True)
    if dtype == "int8":
        bounds = largest / 127 / 2
    else:
        bounds = np.maximum(np.abs(values) / 16, largest / 448 * 2**-10)
    assert (errors <= bounds * 1.0001).all()
    assert (errors > bounds / 4).any(), "the bound is not idle"


def test_codes_of_8_bits_are_those_of_torch():
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).float().numpy()
    scale = np.float32(1).tobytes()
    rows = np.frombuffer(b"".join(scale + bytes([code]) for code in range(256)), np.uint8)
    assert np.array_equal(decode(rows.reshape(256, 5), "float8_e4m3")[:, 0], expected, True)
    values = np.concatenate(
        (np.random.default_rng(3).uniform(-448, 448, 4000), spread_values(4, (4000,)) / 64)
    ).astype(np.float32)
    values = np.clip(values, -448, 448)
    # 448 in every row makes its scale 1.
    rows = encode(np.stack((values, np.full_like(values, 448)), axis=-1), "float8_e4m3")
    drawn = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert np.array_equal(rows[:, 4], drawn)


@pytest.mark.parametrize("dtype", SCALED)
def test_rows_of_zeros_and_rows_that_are_not_finite(dtype):
    values = np.zeros((5, 4), dtype=np.float32)
    values[1, 2], values[2, 0], values[3, 3] = np.nan, np.inf, 1e-45
    back = decode(encode(values, dtype), dtype)
    assert back[0].tolist() == back[4].tolist() == [0, 0, 0, 0]
    assert np.isnan(back[1]).all() and np.isnan(back[2]).all()
    assert np.abs(back[3]).max() <= 1e-44


def test_names():
    assert all(is_wire_dtype(name) for name in (*STORED, *SCALED))
    assert not is_wire_dtype("int4")
