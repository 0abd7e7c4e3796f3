"""The description of an encoder: a model that turns each sequence of a batch into a vector or into
scores of labels, and what it is given: texts as tokens.
"""

from dataclasses import dataclass
from typing import Literal

from tandem.facts.model import RopeSpec

EncoderFamily = Literal["bert", "roberta", "modernbert"]
# Which tokens' hidden states make the vector of a sequence: all, the first or the last.
PoolingMode = Literal["mean", "cls", "last"]
HeadActivation = Literal["tanh", "gelu"]
LabelProblem = Literal["single_label_classification", "multi_label_classification", "regression"]


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A text, or a pair of texts, as the tokens that an encoder reads: special tokens included, and
    for each the number of the text that it belongs to, as the tokenizer counts."""

    token_ids: tuple[int, ...]
    token_types: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PoolingSpec:
    """How an embedding is made of hidden states; `normalised` ones have length 1."""

    mode: PoolingMode = "mean"
    normalised: bool = False


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """What scores are given for. `problem` says what they are: logits of a softmax over all labels,
    a logit of each label, or plain numbers."""

    labels: tuple[str, ...]
    problem: LabelProblem


@dataclass(frozen=True, slots=True)
class HeadSpec:
    """The classification head of an encoder: pooled states through a dense layer, `activation`, a
    norm if `normed` and a linear layer with one score a label of `scored`."""

    scored: LabelSpec
    pooling: PoolingMode
    activation: HeadActivation
    dense_bias: bool = True
    normed: bool = False


@dataclass(frozen=True, slots=True)
class EncoderAttention:
    """Of one layer. A token sees those up to `reach_tokens` away on either side, or with None all
    of its sequence. Without `rope` positions are in the embeddings alone."""

    reach_tokens: int | None = None
    rope: RopeSpec | None = None


@dataclass(frozen=True, slots=True)
class EncoderSpec:
    """An encoder with layer norms and GELU.

    With `pre_norm` attention and feed-forward layer read normed states and add to what was there,
    else their sums are normed; `gated`: gelu(gate) * up. `context_tokens` bounds a sequence.
    `position_rows` learned positions (0: none) start at 0, or behind `padding_token` where that is
    given: tokens of that id then have its position and count as none. There are `token_types`
    embeddings of token types (0: none); unless `reads_token_types` all tokens are of type 0.
    `weight_dtype` is the precision in which the checkpoint says its weights are stored.
    """

    family: EncoderFamily
    hidden_features: int
    feed_forward_features: int
    heads: int
    vocabulary_tokens: int
    context_tokens: int
    norm_eps: float
    attention: tuple[EncoderAttention, ...]
    position_rows: int = 0
    padding_token: int | None = None
    token_types: int = 0
    reads_token_types: bool = False
    pre_norm: bool = False
    gated: bool = False
    norm_bias: bool = True
    attention_bias: bool = True
    feed_forward_bias: bool = True
    head: HeadSpec | None = None
    weight_dtype: str = "float32"

    @property
    def layers(self) -> int:
        return len(self.attention)

    @property
    def head_dim(self) -> int:
        return self.hidden_features // self.heads
