"""The one decoder: token ids to hidden states over a paged KV pool, and those to logits.

Owns no state but its weights: the tokens, positions and blocks of a step come with it. It may hold
a share of the model only; then heads and features are those of its rank.
Axes: T packed tokens, C hidden, H query heads, K kv heads, D head dim, R wanted rows, V vocabulary,
N output features, B blocks, S slots a block; between the linears S tokens of one rank's share, and
X tokens: T or S.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.facts.model import ModelSpec
from tandem.kernels.attention import AttentionBatch
from tandem.kernels.collectives.contract import ALONE, Collectives
from tandem.kernels.draft_heads import DraftHeads, GuessAhead, HeadsLookUp
from tandem.kernels.faces import Kernels
from tandem.kernels.layers import LayerStep, RunLayers
from tandem.kernels.lora import AdapterRows, LowRankStack
from tandem.kernels.packed import PackedLinear
from tandem.kernels.rotary import QueryKeyValue, TokenPlaces, rotary_table
from tandem.kernels.steps import JoinedStep, SlotColumns, WholeModel
from tandem.models.adapter_weights import NO_DELTAS, AdaptedTokens
from tandem.models.parallel import WHOLE, Place, equal_share
from tandem.models.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class TensorParallelBoundary:
    """Where ranks exchange activations within a layer, for a step of `tokens` tokens.

    Column-parallel linears read the features of all tokens and row-parallel ones leave partial
    sums of them. In between, each rank holds all tokens, or (`by_token`) an equal share of them,
    the last filled up with rows of no meaning.
    """

    collectives: Collectives
    tokens: int
    by_token: bool

    @property
    def held_tokens(self) -> int:
        """Rows between the linears, on every rank alike."""
        return -(-self.tokens // self.collectives.size) if self.by_token else self.tokens

    def whole(self, held_SC: Tensor) -> Tensor:
        """x_TC of all tokens, from what each rank holds."""
        if not self.by_token:
            return held_SC
        return self.collectives.all_gather(held_SC, 0)[: self.tokens]

    def summed(self, partial_TC: Tensor) -> Tensor:
        """held_SC: the ranks' partial sums added up."""
        if not self.by_token:
            return self.collectives.all_reduce(partial_TC)
        missing = self.held_tokens * self.collectives.size - self.tokens
        return self.collectives.reduce_scatter(functional.pad(partial_TC, (0, 0, 0, missing)))


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """The tokens of one step, sequence after sequence as `attention` says.

    int64 [T]: ids, positions, and slots in the pool (block * block_size + offset, -1 = keep no KV).
    `wanted` (int64 [R]) are the tokens whose hidden states the caller wants; None means all.
    `adapted` says which tokens are computed with an adapter; None where none is.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    attention: AttentionBatch
    wanted: Tensor | None = None
    adapted: AdaptedTokens | None = None


class KvLayers(Protocol):
    """The KV pool, one layer at a time."""

    def layer(self, index: int) -> Tensor:
        """kv_B2KSD, to be read and written."""
        ...


class Decoder:
    """Runs a model, or the share of it that belongs to `place`, together with the other ranks of
    `collectives`. `spec` is that of the share; its `context_tokens` bounds the positions.

    No weight asks for gradients, so callers need no `no_grad`; `inference_mode` saves a little.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        kernels: Kernels,
        *,
        place: Place = WHOLE,
        collectives: Collectives = ALONE,
    ) -> None:
        assert len(weights.layers) == spec.layers
        assert (collectives.rank, collectives.size) == (place.tensor_rank, place.tensor_ranks)
        self.spec = spec
        self.weights = weights
        self.kernels = kernels
        self.place = place
        self._collectives = collectives
        self._rotary = rotary_table(
            spec.rope, spec.attention.head_dim, spec.context_tokens, weights.device
        )
        self._joined: RunLayers | None = None
        if kernels.join_layers is not None and place.tensor_ranks == 1:
            self._joined = kernels.join_layers(spec, weights.layers, self._rotary)

    def forward(self, batch: TokenBatch, kv: KvLayers, received_XC: Tensor | None = None) -> Tensor:
        """hidden_RC before the final norm, a row for each wanted token; writes the KV of all.

        A stage before the last returns hidden_XC of all tokens, from which the next stage goes on:
        its `received_XC`.
        """
        boundary = self._boundary(len(batch.token_ids))
        residual_XC = self._embed(batch.token_ids, boundary) if received_XC is None else received_XC
        if self._joined is None or batch.adapted is not None:
            return self._walk(batch, kv, residual_XC, boundary)
        layers = [kv.layer(index) for index in range(self.spec.layers)]
        places = TokenPlaces(batch.positions, batch.slots)
        wanted = batch.wanted if self.place.is_last else None
        return self._joined(residual_XC, LayerStep(places, batch.attention, layers, wanted))

    def _walk(
        self,
        batch: TokenBatch,
        kv: KvLayers,
        residual_XC: Tensor,
        boundary: TensorParallelBoundary,
    ) -> Tensor:
        """Layer by layer and operation by operation."""
        kernels, norm = self.kernels, self.spec.norm
        update_XC: Tensor | None = None
        places = TokenPlaces(batch.positions, batch.slots)
        last = self.spec.layers - 1 if self.place.is_last else None
        adapted, deltas, rows = batch.adapted, NO_DELTAS, None
        if adapted is not None:
            rows = adapted.rows
        for index, layer in enumerate(self.weights.layers):
            if update_XC is None:
                x_XC = kernels.rms_norm(residual_XC, layer.attention_norm, norm)
            else:
                x_XC, residual_XC = kernels.add_rms_norm(
                    update_XC, residual_XC, layer.attention_norm, norm
                )
            if adapted is not None:
                deltas = adapted.layers[index]
            qkv_TN = self._linear(boundary.whole(x_XC), layer.qkv, deltas.qkv, rows)
            heads = self._heads(layer, qkv_TN)
            kv_B2KSD = kv.layer(index)
            kernels.rotate_and_store(heads, kv_B2KSD, self._rotary, places)
            attended_TN = self._attend(index, heads.q, kv_B2KSD, batch.attention)
            if index == last and batch.wanted is not None:
                # Nothing after the last attention looks at other tokens.
                attended_TN = attended_TN.index_select(0, batch.wanted)
                residual_XC = boundary.whole(residual_XC).index_select(0, batch.wanted)
                boundary = TensorParallelBoundary(
                    self._collectives, len(batch.wanted), by_token=False
                )
                rows = None if adapted is None else adapted.wanted_rows
            update_XC = boundary.summed(
                self._linear(attended_TN, layer.attention_output, deltas.attention_output, rows)
            )
            x_XC, residual_XC = kernels.add_rms_norm(
                update_XC, residual_XC, layer.feed_forward_norm, norm
            )
            gate_up_TN = self._linear(boundary.whole(x_XC), layer.gate_up, deltas.gate_up, rows)
            gated_TN = kernels.gated_activation(gate_up_TN, self.spec.activation)
            update_XC = boundary.summed(self._linear(gated_TN, layer.down, deltas.down, rows))
        assert update_XC is not None
        hidden_XC = residual_XC + update_XC
        return boundary.whole(hidden_XC) if self.place.is_last else hidden_XC

    def join_step(self, slots: SlotColumns, kv: KvLayers) -> JoinedStep | None:
        """Whole steps of sequences in these slots in one call, with the bits that `forward` and
        `logits` have; None where there is no such call for this model."""
        weights, join = self.weights, self.kernels.join_step
        if join is None or not self.place.tensor_ranks == self.place.stages == 1:
            return None
        assert weights.final_norm is not None
        assert weights.head is not None
        model = WholeModel(
            self.spec,
            weights.embedding,
            weights.layers,
            weights.final_norm,
            weights.head,
            self._rotary,
        )
        return join(model, slots, [kv.layer(index) for index in range(self.spec.layers)])

    def join_draft_heads(
        self, layers: PackedLinear, look_up: HeadsLookUp, slots: SlotColumns
    ) -> GuessAhead | None:
        """Guesses of heads beside this model's own (see `DraftHeads`) in one call; None where
        there is no such call."""
        weights, join = self.weights, self.kernels.join_draft_heads
        if join is None or self.place.tensor_ranks > 1:
            return None
        assert weights.final_norm is not None
        assert weights.head is not None
        heads = DraftHeads(layers, weights.final_norm, self.spec.norm, weights.head)
        return join(heads, look_up, slots)

    def logits(self, hidden_RC: Tensor) -> Tensor:
        """logits_RV in float32 (float64 stays), from hidden states as the last stage's `forward`
        returns them; the same on all its ranks."""
        return self.head_logits(self.normed(hidden_RC))

    def normed(self, hidden_RC: Tensor) -> Tensor:
        """The final norm of hidden states as the last stage's `forward` returns them."""
        assert self.weights.final_norm is not None
        return self.kernels.rms_norm(hidden_RC, self.weights.final_norm, self.spec.norm)

    def head_logits(self, normed_RC: Tensor) -> Tensor:
        """logits_RV, as `logits`, of states that are normed already."""
        head = self.weights.head
        assert head is not None
        logits_RV = self._collectives.all_gather(self.kernels.linear(normed_RC, head), 1)
        # The ranks' shares of the vocabulary are of one size, so the last may be too long.
        logits_RV = logits_RV[:, : self.spec.vocabulary_tokens]
        return logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))

    def space_for(self, tokens: int) -> Tensor:
        """Memory for what the stage before returns of so many tokens."""
        weights = self.weights
        shape = (self._boundary(tokens).held_tokens, self.spec.hidden_features)
        return torch.empty(shape, dtype=weights.compute, device=weights.device)

    def _boundary(self, tokens: int) -> TensorParallelBoundary:
        return TensorParallelBoundary(self._collectives, tokens, self.place.sequence_parallel)

    def _embed(self, ids_T: Tensor, boundary: TensorParallelBoundary) -> Tensor:
        if self.place.tensor_ranks == 1:
            return self._look_up(ids_T)
        # Exactly one rank has the features of a token; the others add zeros.
        first, rows = equal_share(self.spec.vocabulary_tokens, self.place)
        own_T = (ids_T >= first) & (ids_T < first + rows)
        rows_TC = self._look_up(torch.where(own_T, ids_T - first, 0))
        return boundary.summed(rows_TC.masked_fill_(~own_T[:, None], 0))

    def embedded(self, ids_T: Tensor) -> Tensor:
        """x_TC of these tokens, on a rank that holds the whole embedding or head."""
        return self._look_up(ids_T)

    def _look_up(self, rows_T: Tensor) -> Tensor:
        weights, scale = self.weights, self.spec.embedding_scale
        if weights.embedding is not None:
            rows_TC = functional.embedding(rows_T, weights.embedding).to(weights.compute)
        else:
            assert weights.head is not None
            rows_TC = self.kernels.embed(rows_T, weights.head).to(weights.compute)
        return rows_TC if scale == 1.0 else rows_TC * scale

    def _linear(
        self,
        x_TC: Tensor,
        packed: PackedLinear,
        delta: LowRankStack | None,
        rows: AdapterRows | None,
    ) -> Tensor:
        """y_TN, with what the adapters of these rows add to it."""
        y_TN = self.kernels.linear(x_TC, packed)
        if delta is not None and rows is not None:
            self.kernels.add_low_rank(y_TN, x_TC, delta, rows)
        return y_TN

    def _heads(self, layer: LayerWeights, qkv_TN: Tensor) -> QueryKeyValue:
        return split_heads(self.spec, layer, qkv_TN, self.kernels)

    def _attend(self, index: int, q_THD: Tensor, kv_B2KSD: Tensor, batch: AttentionBatch) -> Tensor:
        attention = self.spec.attention
        out_THD = self.kernels.paged_attention(
            q_THD, kv_B2KSD, batch, scale=attention.scale, window=attention.window_tokens[index]
        )
        return out_THD.flatten(1)


def split_heads(
    spec: ModelSpec, layer: LayerWeights, qkv_TN: Tensor, kernels: Kernels
) -> QueryKeyValue:
    """Queries, keys and values of a layer, normed by head where the model does that."""
    attention, norm = spec.attention, spec.norm
    q_TN, k_TN, v_TN = torch.split(
        qkv_TN,
        [attention.query_features, attention.kv_features, attention.kv_features],
        dim=1,
    )
    q_THD = q_TN.view(-1, attention.heads, attention.head_dim)
    k_TKD = k_TN.view(-1, attention.kv_heads, attention.head_dim)
    v_TKD = v_TN.view(-1, attention.kv_heads, attention.head_dim)
    if layer.query_norm is not None:
        q_THD = kernels.rms_norm(q_THD, layer.query_norm, norm)
    if layer.key_norm is not None:
        k_TKD = kernels.rms_norm(k_TKD, layer.key_norm, norm)
    return QueryKeyValue(q_THD, k_TKD, v_TKD)
