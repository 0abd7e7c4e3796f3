"""The gated activation in plain torch."""

from torch import Tensor
from torch.nn import functional

from tandem.kernels.activation.contract import check_gate_up


def silu_mul(gate_up_T2F: Tensor) -> Tensor:
    check_gate_up(gate_up_T2F)
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=1)
    return functional.silu(gate_TF) * up_TF
