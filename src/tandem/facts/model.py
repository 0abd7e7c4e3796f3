"""The description of a decoder-only model: sizes and features as numbers and flags.

Everything that shapes the arithmetic or the bytes of a model, whatever file it came from. The
engine computes by it and costs are counted from it; it describes more models than the engine runs.
"""

from dataclasses import dataclass
from typing import Literal

# Of the gate in the feed-forward layer.
Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context_tokens: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv:2309.00071): `attention_factor` multiplies cos and sin; `truncate` rounds the
    limits of the blended band to whole dimensions."""

    factor: float
    original_context_tokens: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """The frequency of each rotated pair is divided by its own factor."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FactorScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding over the first `partial_factor` of a head's dimensions."""

    theta: float = 10_000.0
    scaling: RopeScaling | None = None
    partial_factor: float = 1.0

    def rotary_dim(self, head_dim: int) -> int:
        return int(head_dim * self.partial_factor)


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """`window_tokens` has one entry a layer: how far back a token sees, itself included, or None
    for everything. `scale` multiplies the scores before the softmax."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window_tokens: tuple[int | None, ...]
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False

    @property
    def query_features(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_features(self) -> int:
        """Features of the keys alone; the values have as many."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True)
class NormSpec:
    """Root mean square norms: y = x / sqrt(mean(x^2) + eps) * (weight + offset)."""

    eps: float = 1e-6
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """Latent attention (MLA; DeepSeek-V2, arXiv:2405.04434): keys and values of a token are kept as
    `latent_features` for all heads and `rotary_features` of the key. A head's query and key have
    `plain_features` besides, its value `value_features`; queries are compressed to `query_rank`
    features (0: not)."""

    latent_features: int
    rotary_features: int
    plain_features: int
    value_features: int
    query_rank: int = 0


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """A mixture of experts in all layers but `dense_layers`: each token takes `experts_per_token`
    of `experts` of `expert_features`, and what all share, of `shared_features` (0: nothing)."""

    experts: int
    experts_per_token: int
    expert_features: int
    shared_features: int = 0
    dense_layers: int = 0


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder: pre-norm with RMS norms, rotary attention, gated feed-forward.

    `context_tokens` is the longest sequence the model is meant for, and sizes the rotary table.
    `weight_dtype` is the precision in which the checkpoint says its weights are stored. Embeddings
    are multiplied by `embedding_scale`. With `latent` attention or `experts`, or where the
    feed-forward is not `gated`, the engine cannot run the model (`models.configuration`): it is
    only described, for costs.
    """

    architecture: str
    layers: int
    hidden_features: int
    feed_forward_features: int
    vocabulary_tokens: int
    context_tokens: int
    norm: NormSpec
    attention: AttentionSpec
    rope: RopeSpec
    tied_embeddings: bool = False
    feed_forward_bias: bool = False
    weight_dtype: str = "float32"
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    gated: bool = True
    latent: LatentSpec | None = None
    experts: ExpertsSpec | None = None

    @property
    def kv_elements_per_token(self) -> int:
        """Numbers that one token leaves in the KV cache, over all layers."""
        return self.layers * 2 * self.attention.kv_features

    @property
    def layer_parameters(self) -> int:
        attention, hidden, inner = self.attention, self.hidden_features, self.feed_forward_features
        qkv_features = attention.query_features + 2 * attention.kv_features
        weights = hidden * (qkv_features + attention.query_features + 3 * inner)
        biases = (
            attention.qkv_bias * qkv_features
            + attention.output_bias * hidden
            + self.feed_forward_bias * (2 * inner + hidden)
        )
        norms = 2 * hidden + attention.qk_norm * 2 * attention.head_dim
        return weights + biases + norms

    @property
    def parameters(self) -> int:
        """All parameters; a tied embedding counts once."""
        embeddings = self.vocabulary_tokens * self.hidden_features
        copies = 1 if self.tied_embeddings else 2
        return copies * embeddings + self.layers * self.layer_parameters + self.hidden_features
