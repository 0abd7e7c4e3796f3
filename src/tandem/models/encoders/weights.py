"""The weights of an encoder as its forward pass uses them: fused, packed, on their device.

Axes: V vocabulary, P positions, Y token types, C hidden.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem.kernels.packed import PackedLinear
from tandem.models.encoders.parameters import EncoderLayerParts, EncoderParts, HeadParts, NormParts
from tandem.models.parameters import TensorPart
from tandem.models.weights import Assembly


@dataclass(frozen=True, slots=True)
class NormWeights:
    """Of a layer norm, both [C]."""

    weight: Tensor
    bias: Tensor | None


@dataclass(frozen=True, slots=True)
class EncoderLayerWeights:
    """Rows of `qkv`: all of q, then k, then v; rows of a gated `up`: the gates first."""

    attention_norm: NormWeights | None
    qkv: PackedLinear
    attention_output: PackedLinear
    feed_forward_norm: NormWeights
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class HeadWeights:
    dense: PackedLinear
    norm: NormWeights | None
    classifier: PackedLinear


@dataclass(frozen=True, slots=True)
class EncoderWeights:
    """`token_embedding` [V, C], `position_embedding` [P, C], `type_embedding` [Y, C]; `compute` is
    the precision of activations and residual stream."""

    token_embedding: Tensor
    position_embedding: Tensor | None
    type_embedding: Tensor | None
    embedding_norm: NormWeights
    layers: tuple[EncoderLayerWeights, ...]
    final_norm: NormWeights | None
    head: HeadWeights | None
    compute: torch.dtype

    @property
    def device(self) -> torch.device:
        return self.token_embedding.device


def assemble_encoder(parts: EncoderParts, assembly: Assembly) -> EncoderWeights:
    """Reads, fuses and packs one matrix after the other."""
    positions, types, final_norm = parts.position_embedding, parts.type_embedding, parts.final_norm
    return EncoderWeights(
        token_embedding=_table(assembly, parts.token_embedding),
        position_embedding=None if positions is None else _table(assembly, positions),
        type_embedding=None if types is None else _table(assembly, types),
        embedding_norm=_norm(assembly, parts.embedding_norm),
        layers=tuple(_layer(assembly, layer) for layer in parts.layers),
        final_norm=None if final_norm is None else _norm(assembly, final_norm),
        head=None if parts.head is None else _head(assembly, parts.head),
        compute=assembly.form.compute,
    )


def _layer(assembly: Assembly, parts: EncoderLayerParts) -> EncoderLayerWeights:
    attention_norm = parts.attention_norm
    return EncoderLayerWeights(
        attention_norm=None if attention_norm is None else _norm(assembly, attention_norm),
        qkv=assembly.linear(parts.qkv),
        attention_output=assembly.linear(parts.attention_output),
        feed_forward_norm=_norm(assembly, parts.feed_forward_norm),
        up=assembly.linear(parts.up),
        down=assembly.linear(parts.down),
    )


def _head(assembly: Assembly, parts: HeadParts) -> HeadWeights:
    return HeadWeights(
        dense=assembly.linear(parts.dense),
        norm=None if parts.norm is None else _norm(assembly, parts.norm),
        classifier=assembly.linear(parts.classifier),
    )


def _table(assembly: Assembly, part: TensorPart) -> Tensor:
    return assembly.stack((part,), assembly.form.embedding_dtype)


def _norm(assembly: Assembly, parts: NormParts) -> NormWeights:
    bias_C = None if parts.bias is None else assembly.vector(parts.bias)
    return NormWeights(assembly.vector(parts.weight), bias_C)
