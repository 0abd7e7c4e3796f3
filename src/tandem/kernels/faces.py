"""The bundle of operations that models and the engine call, and which face serves a device.

The composition root picks a bundle once and passes it down; nothing is chosen by import.
"""

from dataclasses import dataclass

import torch

from tandem.kernels.activation import reference as activation_reference
from tandem.kernels.activation.contract import GatedActivation
from tandem.kernels.activation.cpu import NativeGatedActivation
from tandem.kernels.attention import reference as attention_reference
from tandem.kernels.attention.contract import PagedAttention
from tandem.kernels.attention.cpu import NativePagedAttention
from tandem.kernels.linear import reference as linear_reference
from tandem.kernels.linear.contract import Embed, Linear, Pack
from tandem.kernels.linear.cpu import NativeEmbed, NativeLinear, NativePack
from tandem.kernels.native.build import BuildFailure
from tandem.kernels.native.library import NativeLibrary, load_library
from tandem.kernels.norm import reference as norm_reference
from tandem.kernels.norm.contract import AddRmsNorm, RmsNorm
from tandem.kernels.norm.cpu import NativeNorm
from tandem.kernels.rotary import reference as rotary_reference
from tandem.kernels.rotary.contract import RotateAndStore
from tandem.kernels.rotary.cpu import NativeRotateAndStore
from tandem.kernels.sampling import reference as sampling_reference
from tandem.kernels.sampling.contract import Sample, ScoreTokens
from tandem.kernels.sampling.cpu import NativeSample, NativeTokenLogprobs


@dataclass(frozen=True)
class Kernels:
    """Every operation of one face. `batch_invariant`: a row's bits never depend on its company."""

    name: str
    batch_invariant: bool
    pack: Pack
    linear: Linear
    embed: Embed
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rotate_and_store: RotateAndStore
    paged_attention: PagedAttention
    gated_activation: GatedActivation
    sample: Sample
    token_logprobs: ScoreTokens


def reference_kernels() -> Kernels:
    return Kernels(
        name="reference",
        batch_invariant=False,
        pack=linear_reference.pack,
        linear=linear_reference.linear,
        embed=linear_reference.embed,
        rms_norm=norm_reference.rms_norm,
        add_rms_norm=norm_reference.add_rms_norm,
        rotate_and_store=rotary_reference.rotate_and_store,
        paged_attention=attention_reference.paged_attention,
        gated_activation=activation_reference.gated_activation,
        sample=sampling_reference.sample,
        token_logprobs=sampling_reference.token_logprobs,
    )


def native_kernels(library: NativeLibrary) -> Kernels:
    norm = NativeNorm(library)
    return Kernels(
        name="native",
        batch_invariant=True,
        pack=NativePack(library),
        linear=NativeLinear(library),
        embed=NativeEmbed(library),
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        rotate_and_store=NativeRotateAndStore(library),
        paged_attention=NativePagedAttention(library),
        gated_activation=NativeGatedActivation(library),
        sample=NativeSample(library),
        token_logprobs=NativeTokenLogprobs(library),
    )


def choose_kernels(
    device: torch.device, dtype: torch.dtype, allow_native: bool
) -> tuple[Kernels, str]:
    """The bundle for a device and dtype, and one line that says why.

    A first native choice on a machine compiles for a few seconds; later ones load from the cache.
    """
    if not allow_native:
        return reference_kernels(), "plain torch: native kernels are switched off"
    if device.type != "cpu" or dtype is not torch.float32:
        return reference_kernels(), f"plain torch: no native kernels for {dtype} on {device.type}"
    library = load_library()
    if isinstance(library, BuildFailure):
        return reference_kernels(), f"plain torch: {library.reason}"
    return native_kernels(library), f"native kernels from {library.path}"
