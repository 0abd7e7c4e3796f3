"""Gated activations in plain torch."""

from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn import functional

from tandem.facts.model import Activation
from tandem.kernels.activation.contract import check_gate_up

ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}


def gated_activation(gate_up_T2F: Tensor, activation: Activation) -> Tensor:
    check_gate_up(gate_up_T2F)
    gate_TF, up_TF = gate_up_T2F.chunk(2, dim=1)
    return ACTIVATIONS[activation](gate_TF) * up_TF
