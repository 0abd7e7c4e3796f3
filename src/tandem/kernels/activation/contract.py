"""What the gate means: y = gate * sigmoid(gate) * up, gate and up side by side.

Axes: T packed tokens, F features of the feed-forward layer.
"""

from typing import Protocol

from torch import Tensor

from tandem.kernels.errors import KernelArgumentError


class SiluMul(Protocol):
    def __call__(self, gate_up_T2F: Tensor) -> Tensor:
        """gate_up_T2F is [T, 2 * F], all gates first; returns y_TF."""
        ...


def check_gate_up(gate_up_T2F: Tensor) -> None:
    if gate_up_T2F.dim() != 2 or gate_up_T2F.shape[1] % 2:
        raise KernelArgumentError("gate_up_T2F", tuple(gate_up_T2F.shape), "[T, 2 * F]")
