"""The one encoder: packed token ids to hidden states, and those to a vector or to scores of labels
for each sequence.

Owns no state but its weights. On the CPU what a sequence gives does not depend on the others of its
batch, to the last bit, with kernels of which that is true.
Axes: T packed tokens, D sequences, C hidden, H heads, E head dim, N output features, R half the
rotary dim, S labels.
"""

import torch
from torch import Tensor
from torch.nn import functional

from tandem.facts.encoder import EncoderSpec, LabelSpec, PoolingSpec
from tandem.facts.model import RopeSpec
from tandem.kernels.faces import Kernels
from tandem.kernels.rotary import RotaryTable, rotary_table, rotate_in_place
from tandem.models.encoders.attention import attend
from tandem.models.encoders.batch import EncoderBatch
from tandem.models.encoders.pooling import normalised, pool, tanh
from tandem.models.encoders.weights import EncoderLayerWeights, EncoderWeights, NormWeights

_Rotations = dict[RopeSpec, tuple[Tensor, Tensor]]


class Encoder:
    """Runs an encoder over batches on the device of its weights. No sequence may have more than
    `spec.context_tokens` tokens, no token an id outside the vocabulary.

    No weight asks for gradients, so callers need no `no_grad`; `inference_mode` saves a little.
    """

    def __init__(
        self, spec: EncoderSpec, weights: EncoderWeights, kernels: Kernels, pooling: PoolingSpec
    ) -> None:
        assert len(weights.layers) == spec.layers
        self.spec = spec
        self.pooling = pooling
        self.device = weights.device
        self._weights = weights
        self._kernels = kernels
        ropes = {attention.rope for attention in spec.attention}
        self._tables: dict[RopeSpec, RotaryTable] = {
            rope: rotary_table(rope, spec.head_dim, spec.context_tokens, weights.device)
            for rope in ropes
            if rope is not None
        }

    @property
    def labels(self) -> LabelSpec | None:
        """What `scores` are of; None where there is no head."""
        return None if self.spec.head is None else self.spec.head.scored

    def embed(self, batch: EncoderBatch) -> Tensor:
        """vectors_DC in float32 (float64 stays), pooled as the encoder's `pooling` says."""
        vectors_DC = _widened(pool(self.forward(batch), batch, self.pooling.mode))
        return normalised(vectors_DC) if self.pooling.normalised else vectors_DC

    def scores(self, batch: EncoderBatch) -> Tensor:
        """scores_DS in float32 (float64 stays), for the labels of `spec.head`, which there must be:
        before any softmax or sigmoid."""
        spec, weights = self.spec.head, self._weights.head
        assert spec is not None
        assert weights is not None
        pooled_DC = pool(self.forward(batch), batch, spec.pooling)
        x_DC = self._kernels.linear(pooled_DC, weights.dense)
        x_DC = tanh(x_DC) if spec.activation == "tanh" else self._kernels.gelu(x_DC)
        if weights.norm is not None:
            x_DC = self._norm(x_DC, weights.norm)
        return _widened(self._kernels.linear(x_DC, weights.classifier))

    def forward(self, batch: EncoderBatch) -> Tensor:
        """hidden_TC of the last layer, after the final norm where there is one."""
        assert batch.longest_tokens <= self.spec.context_tokens
        x_TC = self._norm(self._embedded(batch), self._weights.embedding_norm)
        rotations = self._rotations(batch)
        for index in range(self.spec.layers):
            x_TC = self._layer(index, x_TC, batch, rotations)
        final_norm = self._weights.final_norm
        return x_TC if final_norm is None else self._norm(x_TC, final_norm)

    def _layer(
        self, index: int, x_TC: Tensor, batch: EncoderBatch, rotations: _Rotations
    ) -> Tensor:
        layer = self._weights.layers[index]
        before, behind = layer.attention_norm, layer.feed_forward_norm
        if self.spec.pre_norm:
            read_TC = x_TC if before is None else self._norm(x_TC, before)
            x_TC = x_TC + self._attend(index, read_TC, batch, rotations)
            return x_TC + self._feed_forward(layer, self._norm(x_TC, behind))
        assert before is not None
        x_TC = self._norm(x_TC + self._attend(index, x_TC, batch, rotations), before)
        return self._norm(x_TC + self._feed_forward(layer, x_TC), behind)

    def _attend(
        self, index: int, x_TC: Tensor, batch: EncoderBatch, rotations: _Rotations
    ) -> Tensor:
        spec, layer, attention = self.spec, self._weights.layers[index], self.spec.attention[index]
        qkv_TN = self._kernels.linear(x_TC, layer.qkv)
        qkv_T3HE = qkv_TN.view(-1, 3, spec.heads, spec.head_dim)
        if attention.rope is not None:
            cos_T1R, sin_T1R = rotations[attention.rope]
            rotate_in_place(qkv_T3HE[:, 0], cos_T1R, sin_T1R)
            rotate_in_place(qkv_T3HE[:, 1], cos_T1R, sin_T1R)
        attended_THE = attend(qkv_T3HE, batch, attention.reach_tokens)
        return self._kernels.linear(attended_THE.flatten(1), layer.attention_output)

    def _feed_forward(self, layer: EncoderLayerWeights, x_TC: Tensor) -> Tensor:
        up_TN = self._kernels.linear(x_TC, layer.up)
        return self._kernels.linear(self._kernels.gelu(up_TN, gated=self.spec.gated), layer.down)

    def _norm(self, x_XC: Tensor, norm: NormWeights) -> Tensor:
        shape = (self.spec.hidden_features,)
        return functional.layer_norm(x_XC, shape, norm.weight, norm.bias, self.spec.norm_eps)

    def _embedded(self, batch: EncoderBatch) -> Tensor:
        spec, weights = self.spec, self._weights
        x_TC = functional.embedding(batch.token_ids, weights.token_embedding).to(weights.compute)
        if weights.type_embedding is not None:
            # A RoBERTa has one type, whatever its tokenizer says.
            read = spec.reads_token_types
            types_T = batch.token_types if read else torch.zeros_like(batch.token_types)
            x_TC = x_TC + functional.embedding(types_T, weights.type_embedding).to(weights.compute)
        if weights.position_embedding is not None:
            rows_TC = functional.embedding(self._position_rows(batch), weights.position_embedding)
            x_TC = x_TC + rows_TC.to(weights.compute)
        return x_TC

    def _position_rows(self, batch: EncoderBatch) -> Tensor:
        """Where each token's position lies in the table, int64 [T]."""
        padding = self.spec.padding_token
        if padding is None:
            return batch.positions
        # Text may hold the padding token; it has no position and is not counted by others.
        counts_T = batch.token_ids != padding
        counted_T = counts_T.cumsum(0)
        first_T = torch.arange(len(counts_T), device=counts_T.device) - batch.positions
        before_T = (counted_T - counts_T.long())[first_T]
        return torch.where(counts_T, counted_T - before_T, 0) + padding

    def _rotations(self, batch: EncoderBatch) -> _Rotations:
        """cos and sin [T, 1, R] at the tokens' positions."""
        return {
            rope: (table.cos[batch.positions][:, None], table.sin[batch.positions][:, None])
            for rope, table in self._tables.items()
        }


def _widened(x_DX: Tensor) -> Tensor:
    return x_DX.to(torch.promote_types(x_DX.dtype, torch.float32))
