"""The weights of a low-rank adapter as a decoder uses them: cut for a rank, packed beside the fused
linears; and the adapters of one step, put together for all its layers.

Axes: R rank, C input features, N output features, T packed tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from safetensors.torch import load
from torch import Tensor

from tandem.facts.model import ModelSpec
from tandem.kernels.faces import Kernels
from tandem.kernels.lora import AdapterRows, LowRankPart, LowRankStack, PackedLowRank
from tandem.models.adapters import AdaptedLinear, AdapterFiles, tensor_name
from tandem.models.parallel import WHOLE, Place, cut, layers_of
from tandem.models.parameters import LayerParts, LinearParts, decoder_parts


@dataclass(frozen=True, slots=True)
class LayerAdapter:
    """What one adapter has beside the linears of a layer; None where it has nothing."""

    qkv: PackedLowRank | None
    attention_output: PackedLowRank | None
    gate_up: PackedLowRank | None
    down: PackedLowRank | None


@dataclass(frozen=True, slots=True)
class LayerDeltas:
    """What the adapters of a step have there together."""

    qkv: LowRankStack | None = None
    attention_output: LowRankStack | None = None
    gate_up: LowRankStack | None = None
    down: LowRankStack | None = None


# Of a step, or layer, in which nothing is adapted.
NO_DELTAS = LayerDeltas()


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """Of one rank's layers, on its device."""

    layers: tuple[LayerAdapter, ...]

    @property
    def held_bytes(self) -> int:
        packed = (
            each
            for layer in self.layers
            for each in (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        )
        return sum(each.weight_bytes for each in packed if each is not None)


@dataclass(frozen=True, slots=True)
class AdaptedTokens:
    """The adapters of a step: `layers` of them together, which tokens (`rows`) have which, and the
    same of the wanted tokens alone."""

    layers: tuple[LayerDeltas, ...]
    rows: AdapterRows
    wanted_rows: AdapterRows


def assemble_adapter(
    spec: ModelSpec,
    files: AdapterFiles,
    kernels: Kernels,
    device: torch.device,
    *,
    place: Place = WHOLE,
) -> AdapterWeights:
    """`spec` is that of the whole model; what belongs to `place` is taken. On the side where a
    linear is split its matrix is cut alike: B by outputs, or A by inputs, of which the ranks'
    results are summed as those of the linear are."""
    assembly = _Assembly(load(files.data), files.linears, kernels, device, place)
    layers = layers_of(decoder_parts(spec), place)
    return AdapterWeights(tuple(assembly.layer(parts) for parts in layers))


def unreadable_adapter(spec: ModelSpec, kernels: Kernels, device: torch.device) -> AdapterWeights:
    """In place of one that cannot be had: what it touches is not a number, and so is never taken
    for an answer. `spec` is that of the rank's share."""
    hidden, inner = spec.hidden_features, spec.feed_forward_features
    nothing = torch.full((1, inner), torch.nan, device=device)
    part = LowRankPart(nothing, torch.full((hidden, 1), torch.nan, device=device), 1.0)
    down = kernels.pack_low_rank([part], hidden)
    untouched = LayerAdapter(None, None, None, None)
    return AdapterWeights((replace(untouched, down=down), *[untouched] * (spec.layers - 1)))


def join_adapters(adapters: Sequence[AdapterWeights], kernels: Kernels) -> tuple[LayerDeltas, ...]:
    """By layer, in the order in which a step numbers them."""
    join = kernels.join_low_rank
    return tuple(
        LayerDeltas(
            join([layer.qkv for layer in layers]),
            join([layer.attention_output for layer in layers]),
            join([layer.gate_up for layer in layers]),
            join([layer.down for layer in layers]),
        )
        for layers in zip(*(adapter.layers for adapter in adapters), strict=True)
    )


@dataclass(frozen=True, slots=True)
class _Assembly:
    tensors: Mapping[str, Tensor]
    linears: Mapping[str, AdaptedLinear]
    kernels: Kernels
    device: torch.device
    place: Place

    def layer(self, parts: LayerParts) -> LayerAdapter:
        return LayerAdapter(
            self.linear(parts.qkv),
            self.linear(parts.attention_output),
            self.linear(parts.gate_up),
            self.linear(parts.down),
        )

    def linear(self, fused: LinearParts) -> PackedLowRank | None:
        parts, first_output = [], 0
        for weight in fused.weights:
            piece = cut(weight, self.place)
            name = weight.name.removesuffix(".weight")
            if (linear := self.linears.get(name)) is not None:
                down_RC, up_NR = (self.tensors[tensor_name(name, each)] for each in "AB")
                down_RC = _filled(down_RC[:, piece.columns], (linear.rank, piece.shape[1]))
                up_NR = _filled(up_NR[piece.rows], (piece.shape[0], linear.rank))
                parts.append(
                    LowRankPart(
                        down_RC.to(self.device),
                        up_NR.to(self.device),
                        linear.scaling,
                        first_output,
                    )
                )
            first_output += piece.shape[0]
        return self.kernels.pack_low_rank(parts, first_output) if parts else None


def _filled(matrix: Tensor, shape: tuple[int, int]) -> Tensor:
    """In memory of its own, with zeros where a rank holds more than there is."""
    filled = torch.zeros(shape, dtype=matrix.dtype)
    filled[: matrix.shape[0], : matrix.shape[1]] = matrix
    return filled
