"""A weight as linear layers read it: in the order and precision of one face.

Axes: N output features, C input features, P columns of a panel, G groups along C.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from tandem.kernels.native import KernelArgumentError

Storage = Literal["float64", "float32", "bfloat16", "float16", "int8", "int4"]
Layout = Literal["rows", "panels"]
Arithmetic = Literal["auto", "float32"]

FLOAT_STORAGE: dict[Storage, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
PANEL_COLUMNS = 64


@dataclass(frozen=True)
class Groups:
    """What codes of `bits` mean, in groups of `size` along C: weight = scale * (code - zero) +
    offset, times the column's own scale. `scale` and `offset` are float16, [ceil(N / P), G, P] in
    panels and [N, G] in rows; None: 1 and 0."""

    size: int
    bits: int
    zero: int
    scale: Tensor | None = None
    offset: Tensor | None = None


@dataclass(frozen=True)
class PackedLinear:
    """A weight in the order and precision that one face reads; only that face may use it.

    `rows` keeps [N, C]; `panels` keeps [ceil(N / P), C, P] with zero columns at the end, and of
    bfloat16 [ceil(N / P), ceil(C / 2), P, 2], which products of pairs read as it is; where that is
    `compact`, in the bytes of cpp/compact.h.
    int8 without groups is symmetric with one scale [N]: weight = code * scale. With them codes are
    uint8: [N, C] in rows; fours of C in panels, [ceil(N / P), ceil(C / 4), P, 4], of four bits two
    of those in each byte.
    """

    out_features: int
    in_features: int
    storage: Storage
    layout: Layout
    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None
    groups: Groups | None = None
    compact: bool = False

    @property
    def weight_bytes(self) -> int:
        held = [self.weight]
        if self.groups is not None:
            held += [each for each in (self.groups.scale, self.groups.offset) if each is not None]
        return sum(each.numel() * each.element_size() for each in held)


class Pack(Protocol):
    def __call__(
        self, weight_NC: Tensor, bias_N: Tensor | None, storage: Storage
    ) -> PackedLinear: ...


class Linear(Protocol):
    def __call__(self, x_TC: Tensor, packed: PackedLinear) -> Tensor: ...


class Embed(Protocol):
    def __call__(self, ids_T: Tensor, packed: PackedLinear) -> Tensor:
        """rows_TC of the weight as it was before packing: a tied head serves as embedding too.

        As exact as they are stored, in that precision or float32; int64 ids [T] below N.
        """
        ...


def check_pack(weight_NC: Tensor, bias_N: Tensor | None) -> None:
    if weight_NC.dim() != 2:
        raise KernelArgumentError("weight_NC", tuple(weight_NC.shape), "two axes [N, C]")
    if bias_N is not None and tuple(bias_N.shape) != (weight_NC.shape[0],):
        raise KernelArgumentError("bias_N", tuple(bias_N.shape), f"[{weight_NC.shape[0]}]")


def check_linear(x_TC: Tensor, packed: PackedLinear, layout: Layout) -> None:
    if packed.layout != layout:
        raise KernelArgumentError(
            "packed.layout", packed.layout, f"{layout}, as packed by the same Kernels object"
        )
    if x_TC.dim() != 2 or x_TC.shape[1] != packed.in_features:
        raise KernelArgumentError("x_TC", tuple(x_TC.shape), f"[T, {packed.in_features}]")
