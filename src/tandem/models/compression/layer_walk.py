"""Texts on their way through a model, one layer in memory at a time: hidden states wait between two
layers, and what comes to the matrices of a layer is looked at.

A layer is a stage of a pipeline: its forward pass is the decoder's own.
Axes: T tokens of a text, C features, B blocks, S slots a block, K kv heads, D head dim.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from tandem.facts.model import ModelSpec
from tandem.kernels.attention import AttentionBatch
from tandem.kernels.coding import code_rows
from tandem.kernels.faces import Kernels
from tandem.kernels.packed import Linear, PackedLinear
from tandem.models.checkpoint import WeightSource
from tandem.models.decoder import Decoder, TokenBatch
from tandem.models.parallel import Place, local_spec
from tandem.models.parameters import LayerParts, LinearParts, TensorPart
from tandem.models.weights import LayerWeights, WeightForm, assemble_weights

FORM = WeightForm("float32", torch.float32, torch.device("cpu"))
BLOCK_SIZE = 16


def load_layer(spec: ModelSpec, index: int, source: WeightSource, kernels: Kernels) -> Decoder:
    """One layer as a decoder, in float32; the first with the embedding, the last with the head."""
    place = Place(stage=index, stages=spec.layers)
    weights = assemble_weights(spec, source, FORM, kernels, place=place)
    return Decoder(local_spec(spec, place), weights, kernels, place=place)


@dataclass(frozen=True, slots=True)
class NormedLinear:
    """Matrices that are multiplied with as one, and the norm whose output that is done to, if it is
    one."""

    parts: LinearParts
    norm: TensorPart | None = None


def linears_of(layer: LayerParts) -> tuple[NormedLinear, ...]:
    """In the order of the forward pass."""
    return (
        NormedLinear(layer.qkv, layer.attention_norm),
        NormedLinear(layer.attention_output),
        NormedLinear(layer.gate_up, layer.feed_forward_norm),
        NormedLinear(layer.down),
    )


def packed_linears(weights: LayerWeights) -> tuple[PackedLinear, ...]:
    """As `linears_of` has them."""
    return (weights.qkv, weights.attention_output, weights.gate_up, weights.down)


def module_name(part: TensorPart) -> str:
    """Of the module whose weight this is."""
    return part.name.removesuffix(".weight")


@dataclass(frozen=True, slots=True)
class _OneLayer:
    """The KV [B, 2, K, S, D] of one layer of one text."""

    kv: Tensor

    def layer(self, index: int) -> Tensor:
        assert index == 0
        return self.kv


@dataclass(slots=True)
class Stream:
    """Texts (int64 [T] each) and their hidden states before the next layer; at first none."""

    texts: Sequence[Tensor]
    states: list[Tensor] = field(default_factory=list)

    def advance(self, layer: Decoder) -> None:
        """All texts through one layer."""
        self.states = list(self.passed(layer))

    def passed(self, layer: Decoder) -> Iterator[Tensor]:
        """hidden_TC of each text after a layer; the stream stays where it is."""
        for number, ids_T in enumerate(self.texts):
            received_TC = self.states[number] if self.states else None
            yield _forward(layer, ids_T, received_TC)


def _forward(layer: Decoder, ids_T: Tensor, received_TC: Tensor | None) -> Tensor:
    tokens, attention = len(ids_T), layer.spec.attention
    blocks = -(-tokens // BLOCK_SIZE)
    kv = torch.empty(blocks, 2, attention.kv_heads, BLOCK_SIZE, attention.head_dim)
    batch = AttentionBatch(
        query_start=torch.tensor([0, tokens], dtype=torch.int32),
        context_lengths=torch.tensor([tokens], dtype=torch.int32),
        block_table=torch.arange(blocks, dtype=torch.int32)[None],
    )
    places_T = torch.arange(tokens)
    return layer.forward(TokenBatch(ids_T, places_T, places_T, batch), _OneLayer(kv), received_TC)


@dataclass(slots=True)
class InputSums:
    """What is kept of a matrix's inputs x [T, C]: of each feature [C] the largest magnitude and
    the sum of squares, and the sum of x x^T [C, C] if it is wanted."""

    peak: Tensor
    square: Tensor
    hessian: Tensor | None

    @classmethod
    def of_features(cls, features: int, *, hessian: bool) -> "InputSums":
        sums = torch.zeros(features, features) if hessian else None
        return cls(torch.zeros(features), torch.zeros(features), sums)

    def add(self, x_TC: Tensor) -> None:
        self.peak = torch.maximum(self.peak, x_TC.abs().amax(dim=0))
        self.square += x_TC.square().sum(dim=0)
        if self.hessian is not None:
            self.hessian.addmm_(x_TC.T, x_TC)

    @property
    def are_finite(self) -> bool:
        return bool(torch.isfinite(self.square).all())

    def divided(self, factor_C: Tensor) -> "InputSums":
        """Those of x / factor."""
        hessian_CC = self.hessian
        if hessian_CC is not None:
            hessian_CC = hessian_CC / factor_C / factor_C[:, None]
        return InputSums(self.peak / factor_C, self.square / factor_C.square(), hessian_CC)


def observing(layer: Decoder, sums: Sequence[tuple[PackedLinear, InputSums]]) -> Decoder:
    """The same layer; inputs of these matrices are added to their sums first."""

    def observed(x_TC: Tensor, packed: PackedLinear) -> Tensor:
        for each, inputs in sums:
            if packed is each:
                inputs.add(x_TC)
        return layer.kernels.linear(x_TC, packed)

    return _with_linear(layer, observed)


def rounding_inputs(layer: Decoder, matrices: Sequence[PackedLinear]) -> Decoder:
    """The same layer; inputs of these matrices are rounded to eight bits first."""

    def rounded(x_TC: Tensor, packed: PackedLinear) -> Tensor:
        if any(packed is each for each in matrices):
            x_TC = code_rows(x_TC).values()
        return layer.kernels.linear(x_TC, packed)

    return _with_linear(layer, rounded)


def _with_linear(layer: Decoder, linear: Linear) -> Decoder:
    kernels = replace(layer.kernels, linear=linear, join_layers=None)
    return Decoder(layer.spec, layer.weights, kernels, place=layer.place)
