"""EAGLE heads: one layer beside a model that guesses its next hidden state, and so its next token,
from the last hidden state and the token drawn from it (Li et al., EAGLE: Speculative Sampling
Requires Rethinking Feature Uncertainty, 2024).

They are read as vLLM and EAGLE's authors write them: `fc` and `layers.0`, without embedding and
output head of their own. A *feature* is a hidden state after the model's final norm.
Axes: T packed tokens of D sequences, C hidden, N output features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from tandem.facts.model import ModelSpec
from tandem.kernels.faces import Kernels
from tandem.kernels.packed import FLOAT_STORAGE, PackedLinear
from tandem.kernels.rotary import TokenPlaces, rotary_table
from tandem.models.checkpoint import SafetensorsWeights
from tandem.models.configuration import EAGLE_QUERY_NORM, read_eagle_spec
from tandem.models.decoder import KvLayers, TokenBatch, split_heads
from tandem.models.directory import Fields
from tandem.models.parameters import TensorPart
from tandem.models.weights import LayerWeights, WeightForm

_LAYER = "layers.0"
# What a checkpoint may hold and the model has itself.
_OF_THE_MODEL = frozenset({"embed_tokens.weight", "lm_head.weight"})


@dataclass(frozen=True, slots=True)
class EagleWeights:
    """`fusion` makes one vector of a token's embedding and the feature before it. The layer has no
    norm before its attention; its `attention_norm` is not used."""

    fusion: PackedLinear
    layer: LayerWeights


class EagleHead:
    """Guesses features. Positions are those of the tokens."""

    def __init__(self, spec: ModelSpec, weights: EagleWeights, kernels: Kernels) -> None:
        self.spec = spec
        self._weights = weights
        self._kernels = kernels
        device = weights.layer.feed_forward_norm.device
        self._rotary = rotary_table(spec.rope, spec.attention.head_dim, spec.context_tokens, device)

    def forward(
        self, batch: TokenBatch, embedded_TC: Tensor, features_TC: Tensor, kv: KvLayers
    ) -> Tensor:
        """features_DC that follow the wanted tokens: guessed from the embedding of a token and the
        feature of the token before it. Writes the KV of all. With one layer, KV of a token depends
        on nothing but these, so where the last ones of the sequences are wanted only they attend.
        """
        kernels, layer, norm = self._kernels, self._weights.layer, self.spec.norm
        attention = self.spec.attention
        fused_TC = kernels.linear(torch.cat((embedded_TC, features_TC), 1), self._weights.fusion)
        heads = split_heads(self.spec, layer, kernels.linear(fused_TC, layer.qkv), kernels)
        places = TokenPlaces(batch.positions, batch.slots)
        kernels.rotate_and_store(heads, kv.layer(0), self._rotary, places)
        q_DHD, fused_DC, seen = heads.q, fused_TC, batch.attention
        some = batch.wanted is not None and len(batch.wanted) < len(fused_TC)
        if some and seen.parents is None:
            q_DHD = q_DHD[batch.wanted]
            rows = torch.arange(seen.sequences + 1, dtype=torch.int32, device=fused_TC.device)
            seen = replace(seen, query_start=rows)
        attended_DHD = kernels.paged_attention(
            q_DHD, kv.layer(0), seen, scale=attention.scale, window=attention.window_tokens[0]
        )
        if some:
            fused_DC = fused_TC[batch.wanted]
            attended_DHD = attended_DHD[batch.wanted] if seen.parents is not None else attended_DHD
        update_DC = kernels.linear(attended_DHD.flatten(1), layer.attention_output)
        x_DC, residual_DC = kernels.add_rms_norm(update_DC, fused_DC, layer.feed_forward_norm, norm)
        gated_DN = kernels.gated_activation(
            kernels.linear(x_DC, layer.gate_up), self.spec.activation
        )
        return residual_DC + kernels.linear(gated_DN, layer.down)


def load_eagle(
    directory: Path, config: Fields, spec: ModelSpec, form: WeightForm, kernels: Kernels
) -> EagleHead:
    """The head in a directory whose config.json is `config`, for a model of `spec`. Raises
    `InvalidConfiguration` where it is of another kind or for another model."""
    with SafetensorsWeights(directory) as checkpoint:
        reader = _Reader(checkpoint, form, kernels)
        head_spec = read_eagle_spec(config, spec, qk_norm=checkpoint.has(EAGLE_QUERY_NORM))
        return EagleHead(head_spec, reader.weights(head_spec), kernels)


@dataclass(frozen=True, slots=True)
class _Reader:
    checkpoint: SafetensorsWeights
    form: WeightForm
    kernels: Kernels

    def weights(self, spec: ModelSpec) -> EagleWeights:
        hidden, inner, attention = (
            spec.hidden_features,
            spec.feed_forward_features,
            spec.attention,
        )
        queries, keys = attention.query_features, attention.kv_features
        fusion = TensorPart("fc.weight", (hidden, 2 * hidden))
        matrices = {
            name: TensorPart(f"{_LAYER}.{name}.weight", shape)
            for name, shape in (
                ("self_attn.q_proj", (queries, hidden)),
                ("self_attn.k_proj", (keys, hidden)),
                ("self_attn.v_proj", (keys, hidden)),
                ("self_attn.o_proj", (hidden, queries)),
                ("mlp.gate_proj", (inner, hidden)),
                ("mlp.up_proj", (inner, hidden)),
                ("mlp.down_proj", (hidden, inner)),
            )
        }
        norm = TensorPart(f"{_LAYER}.post_attention_layernorm.weight", (hidden,))
        by_head = [
            TensorPart(f"{_LAYER}.self_attn.{name}_norm.weight", (attention.head_dim,))
            for name in ("q", "k")
            if attention.qk_norm
        ]
        self.checkpoint.check([fusion, *matrices.values(), norm, *by_head], _OF_THE_MODEL)
        query_norm, key_norm = map(self._vector, by_head) if by_head else (None, None)
        linear = {name: [matrices[f"self_attn.{name}_proj"]] for name in "qkvo"}
        layer = LayerWeights(
            attention_norm=self._vector(norm),
            qkv=self._linear(linear["q"] + linear["k"] + linear["v"]),
            query_norm=query_norm,
            key_norm=key_norm,
            attention_output=self._linear(linear["o"]),
            feed_forward_norm=self._vector(norm),
            gate_up=self._linear([matrices["mlp.gate_proj"], matrices["mlp.up_proj"]]),
            down=self._linear([matrices["mlp.down_proj"]]),
        )
        return EagleWeights(self._linear([fusion]), layer)

    def _linear(self, parts: Sequence[TensorPart]) -> PackedLinear:
        dtype = FLOAT_STORAGE.get(self.form.storage, torch.float32)
        rows = [self.checkpoint.read(part).to(self.form.device, dtype) for part in parts]
        return self.kernels.pack(torch.cat(rows), None, self.form.storage)

    def _vector(self, part: TensorPart) -> Tensor:
        return self.checkpoint.read(part).to(self.form.device, self.form.compute, copy=True)
