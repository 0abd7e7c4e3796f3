"""How weights move: Muon for matrices, AdamW for the rest; and in which numbers products are made.

torch's own Muon makes its products in bfloat16, which a CPU without instructions for that does at
a hundredth of the speed of float32.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

PEAK_MATRIX_RATE = 4e-3
PEAK_OTHER_RATE = 3e-3
MOMENTUM = 0.95
DECAY = 0.01
# Of the quintic iteration: its slope at zero is as steep as can be.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# Updates have the root mean square that AdamW's usually have.
UPDATE_RMS = 0.2


class Muon(torch.optim.Optimizer):
    """Momentum whose singular values are made about one (Jordan et al. 2024); sizes of updates
    after "Muon is Scalable for LLM Training" (Moonshot AI 2025). Float32 throughout."""

    def __init__(self, matrices: list[nn.Parameter], lr: float) -> None:
        super().__init__(matrices, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update. No closure is called."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"].lerp_(weight.grad, 1 - MOMENTUM)
                update = orthogonal(weight.grad.lerp(momentum, MOMENTUM))
                rate = UPDATE_RMS * max(weight.shape) ** 0.5 * group["lr"]
                weight.mul_(1 - group["lr"] * DECAY).sub_(update, alpha=rate)


def orthogonal(matrix: Tensor) -> Tensor:
    """The nearest orthogonal matrix, about: singular values between 0.5 and 1.5."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def optimizers_for(
    model: nn.Module,
    peak_matrix_rate: float = PEAK_MATRIX_RATE,
    peak_other_rate: float = PEAK_OTHER_RATE,
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for the embedding and the norms."""
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        (matrices if weight.dim() == 2 and "embed" not in name else others).append(weight)
    adam = torch.optim.AdamW(
        others, lr=peak_other_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    optimizers = [Muon(matrices, peak_matrix_rate), adam]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def fast_products() -> AbstractContextManager[Any]:
    """Products in bfloat16 where the CPU multiplies them as such, else in float32."""
    fast = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=fast)
