"""What a linear layer is: the packed weight, its storage, and the two operations on it.

Axes: T packed tokens, N output features, C input features, P columns of a panel.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from tandem.kernels.errors import KernelArgumentError

Storage = Literal["float64", "float32", "bfloat16", "float16", "int8"]
Layout = Literal["rows", "panels"]


@dataclass(frozen=True)
class PackedLinear:
    """A weight in the order and precision that one face reads; only that face may use it.

    `rows` keeps [N, C]; `panels` keeps [ceil(N / P), C, P] with zero columns at the end.
    int8 is symmetric with one scale [N]: weight = code * scale.
    """

    out_features: int
    in_features: int
    storage: Storage
    layout: Layout
    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    @property
    def weight_bytes(self) -> int:
        return self.weight.numel() * self.weight.element_size()


class Pack(Protocol):
    def __call__(
        self, weight_NC: Tensor, bias_N: Tensor | None, storage: Storage
    ) -> PackedLinear: ...


class Linear(Protocol):
    def __call__(
        self, x_TC: Tensor, packed: PackedLinear, out_TN: Tensor | None = None
    ) -> Tensor: ...


class Embed(Protocol):
    def __call__(self, ids_T: Tensor, packed: PackedLinear) -> Tensor:
        """rows_TC of the weight as it was before packing: a tied head serves as embedding too.

        In the storage's float precision; int64 ids [T] below N.
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
