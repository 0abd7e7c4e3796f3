"""The bundle of operations that models and the engine call, and which face serves a device.

The composition root picks a bundle once and passes it down; nothing is chosen by import.
"""

from dataclasses import dataclass

import torch

from tandem.kernels import (
    activation,
    attention,
    coded,
    linear,
    lora,
    masking,
    norm,
    penalties,
    prompt_lookup,
    repetition,
    rotary,
    sampling,
)
from tandem.kernels.activation import (
    GatedActivation,
    Gelu,
    NativeGatedActivation,
    NativeGelu,
)
from tandem.kernels.attention import NativePagedAttention, PagedAttention
from tandem.kernels.coded import NativePackCoded, PackCoded
from tandem.kernels.draft_heads import JoinDraftHeads, NativeJoinDraftHeads
from tandem.kernels.instructions import InstructionSet, require_instructions
from tandem.kernels.layers import JoinLayers, NativeJoinLayers
from tandem.kernels.linear import (
    NativeEmbed,
    NativeLinear,
    NativePack,
    has_bf16_products,
    has_int8_products,
)
from tandem.kernels.lora import (
    AddLowRank,
    JoinLowRank,
    NativeAddLowRank,
    NativePackLowRank,
    PackLowRank,
    native_join_low_rank,
)
from tandem.kernels.masking import MaskLogits, NativeMaskLogits
from tandem.kernels.native import BuildFailure, NativeLibrary, load_library
from tandem.kernels.norm import AddRmsNorm, NativeNorm, RmsNorm
from tandem.kernels.packed import Arithmetic, Embed, Linear, Pack
from tandem.kernels.penalties import NativePenalise, Penalise
from tandem.kernels.prompt_lookup import LookUpPrompt, NativeLookUpPrompt
from tandem.kernels.repetition import NativeRepeatedSuffixes, RepeatedSuffixes
from tandem.kernels.rotary import NativeRotateAndStore, RotateAndStore
from tandem.kernels.sampling import (
    NativeSample,
    NativeSampleCandidates,
    NativeTokenLogprobs,
    Sample,
    SampleCandidates,
    ScoreTokens,
)
from tandem.kernels.steps import JoinStep, NativeJoinStep
from tandem.kernels.weight_arguments import NarrowProducts


@dataclass(frozen=True)
class Kernels:
    """Every operation of one face. `batch_invariant`: a row's bits never depend on its company."""

    name: str
    batch_invariant: bool
    pack: Pack
    pack_coded: PackCoded
    linear: Linear
    embed: Embed
    rms_norm: RmsNorm
    add_rms_norm: AddRmsNorm
    rotate_and_store: RotateAndStore
    paged_attention: PagedAttention
    gated_activation: GatedActivation
    gelu: Gelu
    mask_logits: MaskLogits
    penalise: Penalise
    sample: Sample
    sample_candidates: SampleCandidates
    token_logprobs: ScoreTokens
    repeated_suffixes: RepeatedSuffixes
    look_up_prompt: LookUpPrompt
    pack_low_rank: PackLowRank
    join_low_rank: JoinLowRank
    add_low_rank: AddLowRank
    # Where these are one call each; None: operation by operation.
    join_layers: JoinLayers | None = None
    join_step: JoinStep | None = None
    join_draft_heads: JoinDraftHeads | None = None


def reference_kernels() -> Kernels:
    return Kernels(
        name="reference",
        batch_invariant=False,
        pack=linear.pack,
        pack_coded=coded.pack_coded,
        linear=linear.linear,
        embed=linear.embed,
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        rotate_and_store=rotary.rotate_and_store,
        paged_attention=attention.paged_attention,
        gated_activation=activation.gated_activation,
        gelu=activation.gelu,
        mask_logits=masking.mask_logits,
        penalise=penalties.penalise,
        sample=sampling.sample,
        sample_candidates=sampling.sample_candidates,
        token_logprobs=sampling.token_logprobs,
        repeated_suffixes=repetition.repeated_suffixes,
        look_up_prompt=prompt_lookup.look_up_prompt,
        pack_low_rank=lora.pack_low_rank,
        join_low_rank=lora.join_low_rank,
        add_low_rank=lora.add_low_rank,
    )


def native_kernels(library: NativeLibrary, *, narrow: bool = False) -> Kernels:
    """`narrow` as `NativeLinear` takes it."""
    norm = NativeNorm(library)
    products = NarrowProducts(
        bf16=narrow and has_bf16_products(library), coded=narrow and has_int8_products(library)
    )
    return Kernels(
        name="native",
        batch_invariant=True,
        pack=NativePack(library, narrow=narrow),
        pack_coded=NativePackCoded(library),
        linear=NativeLinear(library, narrow=narrow),
        embed=NativeEmbed(library),
        rms_norm=norm.rms_norm,
        add_rms_norm=norm.add_rms_norm,
        rotate_and_store=NativeRotateAndStore(library),
        paged_attention=NativePagedAttention(library, narrow=products.bf16),
        gated_activation=NativeGatedActivation(library),
        gelu=NativeGelu(library),
        mask_logits=NativeMaskLogits(library),
        penalise=NativePenalise(library),
        sample=NativeSample(library),
        sample_candidates=NativeSampleCandidates(library),
        token_logprobs=NativeTokenLogprobs(library),
        repeated_suffixes=NativeRepeatedSuffixes(library),
        look_up_prompt=NativeLookUpPrompt(library),
        pack_low_rank=NativePackLowRank(),
        join_low_rank=native_join_low_rank,
        add_low_rank=NativeAddLowRank(library),
        join_layers=NativeJoinLayers(library, products),
        join_step=NativeJoinStep(library, products),
        join_draft_heads=NativeJoinDraftHeads(library, products),
    )


def choose_kernels(
    device: torch.device,
    dtype: torch.dtype,
    allow_native: bool,
    arithmetic: Arithmetic = "float32",
    instruction_set: InstructionSet = "auto",
) -> tuple[Kernels, str]:
    """The bundle for a device and dtype, and one line that says why. With `auto` arithmetic a CPU
    multiplies matrices in bfloat16 and in codes as such, where it has instructions for that.
    `instruction_set` is what native kernels are compiled for. Raises `InvalidConfiguration`.

    A first native choice on a machine compiles for a few seconds; later ones load from the cache.
    """
    if not allow_native:
        return reference_kernels(), "plain torch: native kernels are switched off"
    if device.type != "cpu" or dtype is not torch.float32:
        return reference_kernels(), f"plain torch: no native kernels for {dtype} on {device.type}"
    require_instructions(instruction_set)
    library = load_library(instruction_set=instruction_set)
    if isinstance(library, BuildFailure):
        return reference_kernels(), f"plain torch: {library.reason}"
    narrow = arithmetic == "auto"
    products = {"bfloat16": has_bf16_products(library), "int8": has_int8_products(library)}
    found = [name for name, there in products.items() if narrow and there]
    how = f", products in {' and '.join(['float32', *found])}"
    return native_kernels(library, narrow=narrow), f"native kernels from {library.path}{how}"
