"""The native face of the gated activations."""

import torch
from torch import Tensor

from tandem.facts.model import Activation
from tandem.kernels.activation.contract import check_gate_up
from tandem.kernels.native.arguments import require_rows
from tandem.kernels.native.library import Integer, NativeLibrary, Pointer

# As activation.cpp numbers them.
NUMBERS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1}


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
