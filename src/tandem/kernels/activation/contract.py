"""Gated activations: y = activation(gate) * up, gate and up side by side.

silu(x) = x * sigmoid(x); gelu_tanh(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))).
Axes: T packed tokens, F features of the feed-forward layer.
"""

from typing import Protocol

from torch import Tensor

from tandem.facts.model import Activation
from tandem.kernels.errors import KernelArgumentError


class GatedActivation(Protocol):
    def __call__(self, gate_up_T2F: Tensor, activation: Activation) -> Tensor:
        """gate_up_T2F is [T, 2 * F], all gates first; returns y_TF."""
        ...


def check_gate_up(gate_up_T2F: Tensor) -> None:
    if gate_up_T2F.dim() != 2 or gate_up_T2F.shape[1] % 2:
        raise KernelArgumentError("gate_up_T2F", tuple(gate_up_T2F.shape), "[T, 2 * F]")
