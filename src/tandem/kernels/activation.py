"""Activations of the feed-forward layer: y = activation(gate) * up, gate and up side by side, and
for encoders y = gelu(x) or gelu(gate) * up.

silu(x) = x * sigmoid(x); gelu_tanh(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)));
gelu(x) = x / 2 * (1 + erf(x / sqrt(2))).

Axes: T packed tokens, F features of the feed-forward layer.
"""

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.facts.model import Activation
from tandem.kernels.arguments import require_rows
from tandem.kernels.native import Integer, KernelArgumentError, NativeLibrary, Pointer

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
# As activation.cpp numbers them.
NUMBERS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


class GatedActivation(Protocol):
    def __call__(self, gate_up_T2F: Tensor, activation: Activation) -> Tensor:
        """gate_up_T2F is [T, 2 * F], all gates first; returns y_TF."""
        ...


class Gelu(Protocol):
    def __call__(self, x_TN: Tensor, *, gated: bool = False) -> Tensor:
        """y_TF: of x_TF, or of `gated` gate_up_T2F, all gates first, times the rest."""
        ...


def check_gate_up(gate_up_T2F: Tensor) -> None:
    if gate_up_T2F.dim() != 2 or gate_up_T2F.shape[1] % 2:
        raise KernelArgumentError("gate_up_T2F", tuple(gate_up_T2F.shape), "[T, 2 * F]")


def gated_activation(gate_up_T2F: Tensor, activation: Activation) -> Tensor:
    """The reference."""
    check_gate_up(gate_up_T2F)
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=1)
    return ACTIVATIONS[activation](gate_TF) * up_TF


def gelu(x_TN: Tensor, *, gated: bool = False) -> Tensor:
    """The reference."""
    if not gated:
        return functional.gelu(x_TN)
    check_gate_up(x_TN)
    gate_TF, up_TF = x_TN.chunk(2, dim=1)
    return functional.gelu(gate_TF) * up_TF


class NativeGatedActivation:
    """float32 with contiguous features; rows may be strided."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_gated_activation",
            *(Pointer, Integer, Integer, Integer, Integer, Pointer, Integer),
        )

    def __call__(self, gate_up_T2F: Tensor, activation: Activation) -> Tensor:
        check_gate_up(gate_up_T2F)
        require_rows("gate_up_T2F", gate_up_T2F)
        rows, features = gate_up_T2F.shape[0], gate_up_T2F.shape[1] // 2
        out_TF = torch.empty(rows, features)
        self.run(
            gate_up_T2F.data_ptr(),
            gate_up_T2F.stride(0),
            rows,
            features,
            NUMBERS[activation],
            out_TF.data_ptr(),
            torch.get_num_threads(),
        )
        return out_TF


class NativeGelu:
    """float32 with contiguous features; rows may be strided."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_gelu", *(Pointer, Pointer, Integer, Integer, Integer, Pointer, Integer)
        )

    def __call__(self, x_TN: Tensor, *, gated: bool = False) -> Tensor:
        if gated:
            check_gate_up(x_TN)
        require_rows("x_TN", x_TN)
        rows, features = x_TN.shape[0], x_TN.shape[1] // (2 if gated else 1)
        out_TF = torch.empty(rows, features)
        self.run(
            x_TN.data_ptr(),
            x_TN.data_ptr() + features * x_TN.element_size() if gated else None,
            x_TN.stride(0),
            rows,
            features,
            out_TF.data_ptr(),
            torch.get_num_threads(),
        )
        return out_TF
