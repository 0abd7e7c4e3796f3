"""The weights of a decoder as its forward pass uses them: fused, packed, on their device.

Axes: V vocabulary, C hidden, D head dim, N output features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.facts.model import ModelSpec
from tandem.kernels.linear.contract import Pack, PackedLinear, Storage
from tandem.models.checkpoint import SLAB_ROWS, WeightSource
from tandem.models.parameters import LayerParts, LinearParts, TensorPart, decoder_parts

FLOAT_STORAGE: dict[Storage, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass(frozen=True, slots=True)
class WeightForm:
    """`storage` is the precision of the matrices, `compute` that of everything else: norms, biases,
    activations and the residual stream."""

    storage: Storage
    compute: torch.dtype
    device: torch.device

    @property
    def embedding_dtype(self) -> torch.dtype:
        # Rows are looked up, not multiplied: int8 would need scales and save next to nothing.
        return FLOAT_STORAGE.get(self.storage, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Norms are [C], `query_norm` and `key_norm` [D]. Rows of `qkv`: all of q, then k, then v;
    rows of `gate_up`: the gates first."""

    attention_norm: Tensor
    qkv: PackedLinear
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: PackedLinear
    feed_forward_norm: Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """`embedding` is [V, C], or None when the head serves as embedding too; `compute` is the
    precision of activations and residual stream."""

    embedding: Tensor | None
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: PackedLinear
    compute: torch.dtype

    @property
    def bytes(self) -> int:
        """Of the matrices; norms and biases are left out."""
        matrices = sum(
            packed.weight_bytes
            for layer in self.layers
            for packed in (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        )
        embedding_bytes = 0 if self.embedding is None else self.embedding.nbytes
        return matrices + embedding_bytes + self.head.weight_bytes


def assemble_weights(
    spec: ModelSpec, source: WeightSource, form: WeightForm, pack: Pack
) -> DecoderWeights:
    """Reads, fuses and packs one matrix after the other, so that beside the result at most one
    unpacked matrix is in memory."""
    parts = decoder_parts(spec)
    assembly = _Assembly(source, form, pack)
    # The largest matrices come first, while little else is in memory beside their unpacked form.
    head = assembly.linear(LinearParts((parts.head or parts.embedding,)))
    # An int8 head is too coarse to look rows up in: each feeds the whole network.
    shared = parts.head is None and form.storage in FLOAT_STORAGE
    embedding_VC = None if shared else assembly.stack((parts.embedding,), form.embedding_dtype)
    return DecoderWeights(
        embedding=embedding_VC,
        layers=tuple(assembly.layer(layer) for layer in parts.layers),
        final_norm=assembly.stack((parts.final_norm,), form.compute),
        head=head,
        compute=form.compute,
    )


@dataclass(frozen=True, slots=True)
class _Assembly:
    source: WeightSource
    form: WeightForm
    pack: Pack

    def layer(self, parts: LayerParts) -> LayerWeights:
        return LayerWeights(
            attention_norm=self.vector(parts.attention_norm),
            qkv=self.linear(parts.qkv),
            query_norm=None if parts.query_norm is None else self.vector(parts.query_norm),
            key_norm=None if parts.key_norm is None else self.vector(parts.key_norm),
            attention_output=self.linear(parts.attention_output),
            feed_forward_norm=self.vector(parts.feed_forward_norm),
            gate_up=self.linear(parts.gate_up),
            down=self.linear(parts.down),
        )

    def linear(self, parts: LinearParts) -> PackedLinear:
        unpacked_NC = self.stack(parts.weights, FLOAT_STORAGE.get(self.form.storage, torch.float32))
        bias_N = self.stack(parts.biases, self.form.compute) if parts.biases else None
        return self.pack(unpacked_NC, bias_N, self.form.storage)

    def vector(self, part: TensorPart) -> Tensor:
        return self.stack((part,), self.form.compute)

    def stack(self, parts: Sequence[TensorPart], dtype: torch.dtype) -> Tensor:
        """The parts below each other, in memory of their own: never a view of a mapped file."""
        rows = sum(part.shape[0] for part in parts)
        stacked = torch.empty((rows, *parts[0].shape[1:]), dtype=dtype, device=self.form.device)
        start = 0
        for part in parts:
            for first in range(0, part.shape[0], SLAB_ROWS):
                slab = self.source.read(part, slice(first, first + SLAB_ROWS))
                stacked[start : start + len(slab)].copy_(slab)
                start += len(slab)
        return stacked
