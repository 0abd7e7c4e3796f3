"""Codes are the nearest on a grid that fits its group, and the file says exactly what they mean."""

from dataclasses import replace

import pytest
import torch

from tandem.models.compression.compressed_tensors import (
    pack_words,
    quantization_config,
    tensors_of,
)
from tandem.models.compression.rounding import round_to_nearest
from tandem.models.compression.scheme import W4A16, W8A8
from tests.models.compression.decoding import unpack
from tests.models.compression.matrices import SCHEMES, weight


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SCHEMES)
def test_each_weight_has_the_nearest_value_of_its_group(name: str, scale_dtype) -> None:
    scheme, weight_NC = SCHEMES[name], weight(1)
    matrix = round_to_nearest(weight_NC, scheme, scale_dtype)
    assert matrix.scale.dtype is scale_dtype
    assert matrix.codes.dtype is torch.int8
    size = scheme.group_size or 64
    for row in range(weight_NC.shape[0]):
        for column in range(0, 64, 7):
            group = column // size
            scale = float(matrix.scale[row, group])
            zero = 0 if matrix.zero is None else int(matrix.zero[row, group])
            codes = range(scheme.lowest, scheme.highest + 1)
            value = float(weight_NC[row, column])
            least = min(abs((code - zero) * scale - value) for code in codes)
            found = float(matrix.values()[row, column])
            assert abs(found - value) <= least * (1 + 1e-5) + 1e-6


@pytest.mark.parametrize("name", ["w4", "w4-asymmetric"])
def test_the_grid_has_a_smaller_error_than_one_that_holds_every_weight(name: str) -> None:
    scheme, weight_NC = SCHEMES[name], weight(2)
    found = round_to_nearest(weight_NC, scheme, torch.float32).values() - weight_NC
    grouped = weight_NC.view(-1, 16)
    if scheme.symmetric:
        scale, zero = grouped.abs().amax(1, keepdim=True) / 7, 0.0
    else:
        low = grouped.amin(1, keepdim=True).clamp(max=0)
        scale = (grouped.amax(1, keepdim=True).clamp(min=0) - low) / 15
        zero = torch.round(-8 - low / scale)
    codes = (torch.round(grouped / scale) + zero).clamp(-8, 7)
    plain = (codes - zero) * scale - grouped
    assert found.square().sum() < plain.square().sum()


def test_asymmetric_codes_serve_weights_of_one_sign() -> None:
    weight_NC = weight(3).abs() + 1
    errors = {
        name: (round_to_nearest(weight_NC, SCHEMES[name], torch.float32).values() - weight_NC)
        .square()
        .sum()
        for name in ("w4", "w4-asymmetric")
    }
    assert errors["w4-asymmetric"] < 0.5 * errors["w4"]


@pytest.mark.parametrize("name", SCHEMES)
def test_zeros_stay_zeros(name: str) -> None:
    weight_NC = weight(4)
    weight_NC[:, :16] = 0
    weight_NC[3] = 0
    values = round_to_nearest(weight_NC, SCHEMES[name], torch.float16).values()
    assert not values[:, :16].any()
    assert not values[3].any()
    assert torch.isfinite(values).all()


@pytest.mark.parametrize("columns", [64, 61, 8, 1])
@pytest.mark.parametrize("name", ["w4", "w8"])
def test_words_hold_the_codes_in_order(name: str, columns: int) -> None:
    scheme = SCHEMES[name]
    generator = torch.Generator().manual_seed(columns)
    codes = torch.randint(
        scheme.lowest, scheme.highest + 1, (5, columns), generator=generator, dtype=torch.int8
    )
    words = pack_words(codes, scheme)
    assert words.dtype is torch.int32
    assert words.shape == (5, -(-columns * scheme.bits // 32))
    assert unpack(words.numpy(), scheme.bits, columns).tolist() == codes.tolist()


def test_zero_points_are_packed_along_the_outputs() -> None:
    matrix = round_to_nearest(weight(6, rows=13), SCHEMES["w4-asymmetric"], torch.float32)
    tensors = tensors_of("m", matrix)
    assert tensors["m.weight_zero_point"].shape == (2, 4)
    found = unpack(tensors["m.weight_zero_point"].numpy().T, 4, 13).T
    assert matrix.zero is not None
    assert found.tolist() == matrix.zero.tolist()
    assert tensors["m.weight_shape"].tolist() == [13, 64]


def test_the_configuration_names_what_was_done() -> None:
    four = quantization_config(replace(W4A16, group_size=32), ["lm_head"])
    assert four["format"] == "pack-quantized"
    group = four["config_groups"]["group_0"]
    assert group["weights"]["strategy"] == "group"
    assert group["weights"]["group_size"] == 32
    assert group["input_activations"] is None
    eight = quantization_config(W8A8, [])
    assert eight["format"] == "int-quantized"
    group = eight["config_groups"]["group_0"]
    assert group["weights"]["strategy"] == "channel"
    assert group["input_activations"]["strategy"] == "token"
    assert group["input_activations"]["dynamic"] is True
