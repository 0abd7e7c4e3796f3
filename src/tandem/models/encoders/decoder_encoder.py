"""A decoder read as an encoder: a text becomes the hidden states of its tokens, each of which has
seen those before it, behind the final norm (as Qwen3-Embedding or E5-mistral are used); or scores
of labels, which the last token has (as in rerankers and reward models).

Axes: T packed tokens, D sequences, C hidden, B blocks, K kv heads, S slots a block, E head dim, L
labels.
"""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from tandem.facts.encoder import LabelSpec, PoolingSpec
from tandem.kernels.attention import AttentionBatch
from tandem.kernels.packed import PackedLinear
from tandem.models.decoder import Decoder, TokenBatch
from tandem.models.encoders.batch import EncoderBatch
from tandem.models.encoders.pooling import normalised, pool

BLOCK_SLOTS = 16
# What is not said by files of sentence-transformers: only the last token has seen all others.
LAST_TOKEN = PoolingSpec("last", normalised=True)


@dataclass(frozen=True, slots=True)
class OneLayer:
    """`kv` [B, 2, K, S, E] of one layer at a time: no other token will ever look at it."""

    kv: Tensor

    def layer(self, index: int) -> Tensor:
        """The same memory for all layers."""
        del index
        return self.kv


class DecoderEncoder:
    """Embeds batches with `decoder`, whose weights may be in use elsewhere. On the CPU what a
    sequence gives does not depend on the others of its batch, to the last bit, with kernels of
    which that is true."""

    def __init__(
        self,
        decoder: Decoder,
        pooling: PoolingSpec = LAST_TOKEN,
        labels: LabelSpec | None = None,
        classifier: PackedLinear | None = None,
    ) -> None:
        assert (labels is None) == (classifier is None)
        self.device = decoder.weights.device
        self.spec = decoder.spec
        self.pooling = pooling
        self.labels = labels
        self._classifier = classifier
        self._decoder = decoder

    def embed(self, batch: EncoderBatch) -> Tensor:
        """vectors_DC in float32 (float64 stays), pooled as `pooling` says."""
        hidden_TC = self._decoder.normed(self._forward(batch))
        pooled_DC = pool(hidden_TC, batch, self.pooling.mode)
        vectors_DC = pooled_DC.to(torch.promote_types(pooled_DC.dtype, torch.float32))
        return normalised(vectors_DC) if self.pooling.normalised else vectors_DC

    def scores(self, batch: EncoderBatch) -> Tensor:
        """scores_DL in float32 (float64 stays), for the `labels` that there must be."""
        assert self._classifier is not None
        pooled_DC = pool(self._decoder.normed(self._forward(batch)), batch, "last")
        scores_DL = self._decoder.kernels.linear(pooled_DC, self._classifier)
        return scores_DL.to(torch.promote_types(scores_DL.dtype, torch.float32))

    def _forward(self, batch: EncoderBatch) -> Tensor:
        """hidden_TC before the final norm."""
        attention, weights = self.spec.attention, self._decoder.weights
        lengths = [stop - start for start, stop in batch.spans]
        blocks = [-(-length // BLOCK_SLOTS) for length in lengths]
        first_blocks = list(accumulate(blocks, initial=0))
        shape = (first_blocks[-1], 2, attention.kv_heads, BLOCK_SLOTS, attention.head_dim)
        kv_B2KSE = torch.zeros(shape, dtype=weights.compute, device=self.device)
        places = torch.tensor(first_blocks[:-1]).repeat_interleave(torch.tensor(lengths))
        slots_T = places.to(self.device) * BLOCK_SLOTS + batch.positions
        tokens = TokenBatch(
            token_ids=batch.token_ids,
            positions=batch.positions,
            slots=slots_T,
            attention=AttentionBatch(
                query_start=self._int32(batch.query_start),
                context_lengths=self._int32(lengths),
                block_table=self._block_table(first_blocks),
            ),
        )
        return self._decoder.forward(tokens, OneLayer(kv_B2KSE))

    def _block_table(self, first_blocks: list[int]) -> Tensor:
        most = max(behind - first for first, behind in pairwise(first_blocks))
        return self._int32(first_blocks[:-1])[:, None] + self._int32(range(most))

    def _int32(self, numbers: "range | tuple[int, ...] | list[int]") -> Tensor:
        return torch.tensor(list(numbers), dtype=torch.int32, device=self.device)
