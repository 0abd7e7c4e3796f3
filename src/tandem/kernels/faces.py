"""The bundle of operations that models and the engine call, and which face serves a device.

The composition root picks a bundle once and passes it down; nothing is chosen by import.
"""

from dataclasses import dataclass

import torch

from tandem.kernels.activation import reference as activation_reference
from tandem.kernels.activation.contract import SiluMul
from tandem.kernels.attention import reference as attention_reference
from tandem.kernels.attention.contract import PagedAttention
from tandem.kernels.linear import reference as linear_reference
from tandem.kernels.linear.contract import Linear, Pack
from tandem.kernels.norm import reference as norm_reference
from tandem.kernels.norm.contract import AddRmsNorm, RmsNorm
from tandem.kernels.rotary import reference as rotary_reference
from tandem.kernels.rotary.contract import RotateAndStore
from tandem.kernels.sampling import reference as sampling_reference
from tandem.kernels.sampling.contract import Sample, ScoreTokens


@dataclass(frozen=True)
class Kernels:
    """Every operation of one face. `batch_invariant`: a row's bits never depend on its company."""

    name: str
    batch_invariant: bool
    pack: Pack
    linear: Linear
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rotate_and_store: RotateAndStore
    paged_attention: PagedAttention
    silu_mul: SiluMul
    sample: Sample
    token_logprobs: ScoreTokens


def reference_kernels() -> Kernels:
    return Kernels(
        name="reference",
        batch_invariant=False,
        pack=linear_reference.pack,
        linear=linear_reference.linear,
        rms_norm=norm_reference.rms_norm,
        add_rms_norm=norm_reference.add_rms_norm,
        rotate_and_store=rotary_reference.rotate_and_store,
        paged_attention=attention_reference.paged_attention,
        silu_mul=activation_reference.silu_mul,
        sample=sampling_reference.sample,
        token_logprobs=sampling_reference.token_logprobs,
    )


def choose_kernels(
    device: torch.device, dtype: torch.dtype, allow_native: bool
) -> tuple[Kernels, str]:
    """The bundle for a device and dtype, and one line that says why."""
    if not allow_native:
        return reference_kernels(), "plain torch: native kernels are switched off"
    return reference_kernels(), f"plain torch: no native kernels for {dtype} on {device.type}"
