"""A packed weight as native operations that are made of others take it: one structure for all
forms."""

import ctypes
from dataclasses import dataclass

from tandem.kernels.arguments import DTYPE_CODES, address
from tandem.kernels.compact import COMPACT_CODE
from tandem.kernels.native import Integer, KernelArgumentError, Pointer
from tandem.kernels.packed import PackedLinear


class WeightArguments(ctypes.Structure):
    """As weight.h has it. Whoever holds it keeps the weight."""

    _fields_ = (
        ("values", Pointer),
        ("storage", Integer),
        ("narrow", Integer),
        ("bits", Integer),
        ("group", Integer),
        ("zero", Integer),
        ("scale", Pointer),
        ("offset", Pointer),
        ("column_scale", Pointer),
        ("bias", Pointer),
        ("in_features", Integer),
        ("out_features", Integer),
    )


def storage_code(packed: PackedLinear) -> int:
    """How C++ numbers what a weight without groups is stored in."""
    return COMPACT_CODE if packed.compact else DTYPE_CODES[packed.weight.dtype]


@dataclass(frozen=True, slots=True)
class NarrowProducts:
    """Which weights are multiplied in the precision that they are stored in: those in `bf16`, and
    those that are `coded`. Where the first are, so are keys and values."""

    bf16: bool
    coded: bool

    def arguments(self, packed: PackedLinear) -> WeightArguments:
        if packed.layout != "panels":
            raise KernelArgumentError("packed.layout", packed.layout, "panels")
        weight = WeightArguments(
            values=packed.weight.data_ptr(),
            column_scale=address(packed.scale),
            bias=address(packed.bias),
            in_features=packed.in_features,
            out_features=packed.out_features,
        )
        groups = packed.groups
        if groups is None:
            weight.storage = storage_code(packed)
            weight.narrow = self.bf16 and packed.storage == "bfloat16"
        else:
            weight.narrow, weight.bits = self.coded, groups.bits
            weight.group, weight.zero = groups.size, groups.zero
            weight.scale, weight.offset = address(groups.scale), address(groups.offset)
        return weight
