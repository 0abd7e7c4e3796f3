"""The one decoder: token ids to hidden states over a paged KV pool, and those to logits.

Owns no state but its weights: the tokens, positions and blocks of a step come with it.
Axes: T packed tokens, C hidden, H query heads, K kv heads, D head dim, R wanted rows, V vocabulary,
N output features, B blocks, S slots a block.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.facts.model import ModelSpec
from tandem.kernels.attention.contract import AttentionBatch
from tandem.kernels.faces import Kernels
from tandem.kernels.rotary.contract import QueryKeyValue, TokenPlaces
from tandem.models.rope import rotary_table
from tandem.models.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of one step, sequence after sequence as `attention` says.

    int64 [T]: ids, positions, and slots in the pool (block * block_size + offset, -1 = keep no KV).
    `wanted` (int64 [R]) are the tokens whose hidden states the caller wants; None means all.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    attention: AttentionBatch
    wanted: Tensor | None = None


class KvLayers(Protocol):
    """The KV pool, one layer at a time."""

    def layer(self, index: int) -> Tensor:
        """kv_B2KSD, to be read and written."""
        ...


class Decoder:
    """Runs a model. `spec.context_tokens` bounds the positions it can see.

    No weight asks for gradients, so callers need no `no_grad`; `inference_mode` saves a little.
    """

    def __init__(self, spec: ModelSpec, weights: DecoderWeights, kernels: Kernels) -> None:
        assert len(weights.layers) == spec.layers
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        self._rotary = rotary_table(
            spec.rope, spec.attention.head_dim, spec.context_tokens, weights.final_norm.device
        )

    def forward(self, batch: TokenBatch, kv: KvLayers) -> Tensor:
        """hidden_RC before the final norm, a row for each wanted token; writes the KV of all."""
        kernels, eps = self.kernels, self.spec.rms_eps
        residual_TC = self._embed(batch.token_ids)
        update_TC: Tensor | None = None
        places = TokenPlaces(batch.positions, batch.slots)
        last = self.spec.layers - 1
        for index, layer in enumerate(self.weights.layers):
            if update_TC is None:
                x_TC = kernels.rms_norm(residual_TC, layer.attention_norm, eps)
            else:
                x_TC, residual_TC = kernels.add_rms_norm(
                    update_TC, residual_TC, layer.attention_norm, eps
                )
            heads = self._project(layer, x_TC)
            kv_B2KSD = kv.layer(index)
            kernels.rotate_and_store(heads, kv_B2KSD, self._rotary, places)
            attended_TN = self._attend(index, heads.q, kv_B2KSD, batch.attention)
            if index == last and batch.wanted is not None:
                # Nothing after the last attention looks at other tokens.
                attended_TN = attended_TN.index_select(0, batch.wanted)
                residual_TC = residual_TC.index_select(0, batch.wanted)
            update_TC = kernels.linear(attended_TN, layer.attention_output)
            x_TC, residual_TC = kernels.add_rms_norm(
                update_TC, residual_TC, layer.feed_forward_norm, eps
            )
            gate_up_TN = kernels.linear(x_TC, layer.gate_up)
            update_TC = kernels.linear(kernels.silu_mul(gate_up_TN), layer.down)
        assert update_TC is not None
        return residual_TC + update_TC

    def logits(self, hidden_RC: Tensor) -> Tensor:
        """logits_RV in float32 (float64 stays), from hidden states as `forward` returns them."""
        normed_RC = self.kernels.rms_norm(hidden_RC, self.weights.final_norm, self.spec.rms_eps)
        logits_RV = self.kernels.linear(normed_RC, self.weights.head)
        return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))

    def _embed(self, ids_T: Tensor) -> Tensor:
        weights = self.weights
        if weights.embedding is None:
            return self.kernels.embed(ids_T, weights.head).to(weights.compute)
        return functional.embedding(ids_T, weights.embedding).to(weights.compute)

    def _project(self, layer: LayerWeights, x_TC: Tensor) -> QueryKeyValue:
        attention, eps = self.spec.attention, self.spec.rms_eps
        qkv_TN = self.kernels.linear(x_TC, layer.qkv)
        q_TN, k_TN, v_TN = torch.split(
            qkv_TN,
            [attention.query_features, attention.kv_features, attention.kv_features],
            dim=1,
        )
        q_THD = q_TN.view(-1, attention.heads, attention.head_dim)
        k_TKD = k_TN.view(-1, attention.kv_heads, attention.head_dim)
        v_TKD = v_TN.view(-1, attention.kv_heads, attention.head_dim)
        if layer.query_norm is not None:
            q_THD = self.kernels.rms_norm(q_THD, layer.query_norm, eps)
        if layer.key_norm is not None:
            k_TKD = self.kernels.rms_norm(k_TKD, layer.key_norm, eps)
        return QueryKeyValue(q_THD, k_TKD, v_TKD)

    def _attend(self, index: int, q_THD: Tensor, kv_B2KSD: Tensor, batch: AttentionBatch) -> Tensor:
        attention = self.spec.attention
        out_THD = self.kernels.paged_attention(
            q_THD, kv_B2KSD, batch, scale=attention.scale, window=attention.window_tokens[index]
        )
        return out_THD.flatten(1)
