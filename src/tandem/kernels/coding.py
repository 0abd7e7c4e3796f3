"""From floats to codes: which scales groups of a weight have, and the codes next to its values.

Axes: N output features, C input features, G groups along C.
"""

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.arguments import DTYPE_CODES, require_strided
from tandem.kernels.coded import CodedWeight, power_above
from tandem.kernels.native import Integer, NativeLibrary, Pointer
from tandem.kernels.packed import Storage

INT8_LIMIT = 127
# So large a group is what four bits need to stay useful; it is that of llama.cpp's Q4_0.
INT4_GROUP = 32
INT4_MIDDLE = 8


class Code(Protocol):
    """Codes of a weight [N, C] in int8 or int4, each with the scales of its own."""

    def __call__(self, weight_NC: Tensor, storage: Storage) -> CodedWeight: ...


def code(weight_NC: Tensor, storage: Storage) -> CodedWeight:
    """The reference: as `code_rows` or `code_groups`."""
    return code_rows(weight_NC) if storage == "int8" else code_groups(weight_NC)


def code_rows(weight_NC: Tensor) -> CodedWeight:
    """Eight bits, symmetric, one scale a row; an all-zero row gets scale 1."""
    weight = weight_NC.to(torch.float32)
    scale_N1 = scale_of_rows(weight.abs().amax(dim=1, keepdim=True))
    codes_NC = torch.round((weight / scale_N1).clamp(-INT8_LIMIT, INT8_LIMIT)) + 128
    return CodedWeight(codes_NC.to(torch.uint8), scale_N1, None, 128, 8, weight_NC.shape[1])


def code_groups(weight_NC: Tensor, size: int = INT4_GROUP) -> CodedWeight:
    """Four bits, symmetric, a scale for each group; its largest value has the code 0, which is one
    step further from the middle than 15 (as llama.cpp's Q4_0)."""
    rows, columns = weight_NC.shape
    groups = -(-columns // size)
    padded = functional.pad(weight_NC.to(torch.float32), (0, groups * size - columns))
    grouped_NGS = padded.view(rows, groups, size)
    places_NG = grouped_NGS.abs().argmax(dim=2, keepdim=True)
    scale_NG = scale_of_groups(grouped_NGS.gather(2, places_NG)[..., 0])
    steps_NGS = grouped_NGS / _divisor(scale_NG)[..., None]
    codes_NGS = torch.round(steps_NGS.clamp(-INT4_MIDDLE, INT4_MIDDLE - 1)) + INT4_MIDDLE
    codes_NC = codes_NGS.view(rows, groups * size)[:, :columns].to(torch.uint8)
    return CodedWeight(codes_NC, scale_NG, None, INT4_MIDDLE, 4, size)


def scale_of_rows(extreme_N1: Tensor) -> Tensor:
    peak_N1 = extreme_N1.abs()
    return torch.where(peak_N1 > 0, peak_N1 / INT8_LIMIT, torch.ones_like(peak_N1))


def scale_of_groups(extreme_NG: Tensor) -> Tensor:
    """As they are after packing: float16 parts of a power of two."""
    scale_NG = extreme_NG / -INT4_MIDDLE
    power_N1 = power_above(scale_NG)[:, None]
    return (scale_NG / power_N1).to(torch.float16).to(torch.float32) * power_N1


def _divisor(scale_NG: Tensor) -> Tensor:
    """What all is nothing beside where the scale is."""
    return torch.where(scale_NG != 0, scale_NG, torch.inf)


class NativeCode:
    """The same codes in two passes over the weight, which may be float32, bfloat16 or float16 with
    strided rows."""

    def __init__(self, library: NativeLibrary) -> None:
        weight = (Pointer, Integer, Integer, Integer, Integer, Integer)
        self._extremes = library.function("tandem_extremes", *weight, Pointer, Integer)
        self._code = library.function(
            "tandem_code", *weight, Pointer, Integer, Integer, Integer, Pointer, Integer
        )

    def __call__(self, weight_NC: Tensor, storage: Storage) -> CodedWeight:
        if weight_NC.dtype not in DTYPE_CODES or weight_NC.dtype is torch.int8:
            weight_NC = weight_NC.to(torch.float32)
        require_strided("weight_NC", weight_NC, weight_NC.dtype)
        rows, columns = weight_NC.shape
        in_rows = storage == "int8"
        size = max(columns, 1) if in_rows else INT4_GROUP
        weight = (
            weight_NC.data_ptr(),
            DTYPE_CODES[weight_NC.dtype],
            weight_NC.stride(0),
            *(rows, columns, size),
        )
        threads = torch.get_num_threads()
        scale_NG = torch.empty(rows, -(-columns // size))
        self._extremes(*weight, scale_NG.data_ptr(), threads)
        scale_NG = scale_of_rows(scale_NG) if in_rows else scale_of_groups(scale_NG)
        least, zero = (-INT8_LIMIT, 128) if in_rows else (-INT4_MIDDLE, INT4_MIDDLE)
        divisor_NG = _divisor(scale_NG)
        codes_NC = torch.empty((rows, columns), dtype=torch.uint8)
        self._code(
            *weight,
            divisor_NG.data_ptr(),
            *(least, INT8_LIMIT if in_rows else INT4_MIDDLE - 1, zero),
            codes_NC.data_ptr(),
            threads,
        )
        return CodedWeight(codes_NC, scale_NG, None, zero, 8 if in_rows else 4, size)
