"""The shape of a model for costs: arithmetic and bytes of a token, counted from its description.

Wider than the models that the engine can run: also latent attention (MLA) and mixtures of experts.
"""

from dataclasses import dataclass

from tandem.facts.model import ExpertsSpec, LatentSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One layer. `kv_elements` are the numbers that a token leaves in the KV cache, in `kv_heads`
    equal parts; a pair is one query token with one key token, over all heads. Latent attention
    decodes on the compressed keys (DeepSeek-V2, arXiv:2405.04434), hence another price a pair."""

    heads: int
    kv_heads: int
    kv_elements: int
    parameters: int
    norm_parameters: int
    prefill_pair_flops: float
    decode_pair_flops: float


@dataclass(frozen=True, slots=True)
class FeedForwardShape:
    """`dense_layers` of `dense_parameters`, the rest a mixture: each token takes
    `experts_per_token` of `experts` and, in `shared_parameters`, the router and what all share."""

    dense_layers: int
    dense_parameters: int
    inner_features: int
    experts: int = 0
    experts_per_token: int = 0
    expert_parameters: int = 0
    shared_parameters: int = 0


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer as counts. In `windowed_layers` a token sees `window_tokens` at
    most. Biases and learned positions (below 0.1 %) are left out."""

    label: str
    layers: int
    hidden_features: int
    vocabulary_tokens: int
    tied_embeddings: bool
    attention: AttentionShape
    feed_forward: FeedForwardShape
    windowed_layers: int = 0
    window_tokens: int = 0

    @property
    def expert_layers(self) -> int:
        return self.layers - self.feed_forward.dense_layers

    @property
    def dense_parameters(self) -> int:
        """Parameters of the layers' matrices that every token passes."""
        inner = self.feed_forward
        return (
            self.layers * self.attention.parameters
            + inner.dense_layers * inner.dense_parameters
            + self.expert_layers * inner.shared_parameters
        )

    @property
    def head_parameters(self) -> int:
        return self.vocabulary_tokens * self.hidden_features

    @property
    def parameters(self) -> int:
        """All parameters; a tied embedding counts once."""
        inner = self.feed_forward
        return (
            (1 if self.tied_embeddings else 2) * self.head_parameters
            + self.dense_parameters
            + self.expert_layers * inner.experts * inner.expert_parameters
            + self.layers * (2 * self.hidden_features + self.attention.norm_parameters)
            + self.hidden_features
        )

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses, embeddings included as publishers count them."""
        inner = self.feed_forward
        idle_experts = inner.experts - inner.experts_per_token
        return self.parameters - self.expert_layers * idle_experts * inner.expert_parameters

    @property
    def kv_elements_per_token(self) -> int:
        return self.layers * self.attention.kv_elements

    @property
    def linear_flops_per_token(self) -> float:
        """Of all layers' matrices; the vocabulary projection is extra, for sampled rows only."""
        inner = self.feed_forward
        chosen = self.expert_layers * inner.experts_per_token * inner.expert_parameters
        return 2.0 * (self.dense_parameters + chosen)

    def touched_experts(self, tokens: int) -> float:
        """Experts of one layer that at least one of `tokens` chooses, on average, if all are
        equally liked: E (1 - (1 - k/E)^tokens)."""
        inner = self.feed_forward
        if not inner.experts:
            return 0.0
        idle = power(1.0 - inner.experts_per_token / inner.experts, tokens)
        return inner.experts * (1.0 - idle)


def power(base: float, exponent: int) -> float:
    """`base ** exponent` by squaring: products round alike everywhere, libm's pow need not."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


def chunk_pairs(start: int, count: int) -> int:
    """Query-key pairs of tokens `start .. start + count` under a causal mask."""
    return count * start + count * (count + 1) // 2


def model_shape(spec: ModelSpec, label: str) -> ModelShape:
    """The counts of a model, called `label` in reports and errors."""
    windows = [tokens for tokens in spec.attention.window_tokens if tokens is not None]
    return ModelShape(
        label=label,
        layers=spec.layers,
        hidden_features=spec.hidden_features,
        vocabulary_tokens=spec.vocabulary_tokens,
        tied_embeddings=spec.tied_embeddings,
        attention=_grouped(spec) if spec.latent is None else _latent(spec, spec.latent),
        feed_forward=_dense(spec) if spec.experts is None else _mixture(spec, spec.experts),
        windowed_layers=len(windows),
        window_tokens=max(windows, default=0),
    )


def _grouped(spec: ModelSpec) -> AttentionShape:
    attention = spec.attention
    query_features, kv_features = attention.query_features, attention.kv_features
    return AttentionShape(
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        kv_elements=2 * kv_features,
        parameters=2 * spec.hidden_features * (query_features + kv_features),
        norm_parameters=2 * attention.head_dim if attention.qk_norm else 0,
        prefill_pair_flops=4.0 * query_features,
        decode_pair_flops=4.0 * query_features,
    )


def _latent(spec: ModelSpec, latent: LatentSpec) -> AttentionShape:
    hidden, heads = spec.hidden_features, spec.attention.heads
    kept, rotary = latent.latent_features, latent.rotary_features
    plain, value = latent.plain_features, latent.value_features
    query_features = heads * (plain + rotary)
    query = hidden * query_features
    if latent.query_rank:
        query = latent.query_rank * (hidden + query_features)
    keys = hidden * (kept + rotary) + kept * heads * (plain + value)
    return AttentionShape(
        heads=heads,
        kv_heads=1,
        kv_elements=kept + rotary,
        parameters=query + keys + heads * value * hidden,
        norm_parameters=latent.query_rank + kept,
        prefill_pair_flops=2.0 * heads * (plain + rotary + value),
        decode_pair_flops=2.0 * heads * (2 * kept + rotary),
    )


def _dense(spec: ModelSpec) -> FeedForwardShape:
    inner = spec.feed_forward_features
    return FeedForwardShape(spec.layers, _matrices(spec) * spec.hidden_features * inner, inner)


def _mixture(spec: ModelSpec, experts: ExpertsSpec) -> FeedForwardShape:
    hidden, matrices = spec.hidden_features, _matrices(spec)
    return FeedForwardShape(
        dense_layers=min(spec.layers, experts.dense_layers),
        dense_parameters=matrices * hidden * spec.feed_forward_features,
        inner_features=(
            experts.experts_per_token * experts.expert_features + experts.shared_features
        ),
        experts=experts.experts,
        experts_per_token=experts.experts_per_token,
        expert_parameters=matrices * hidden * experts.expert_features,
        shared_parameters=experts.experts * hidden + matrices * hidden * experts.shared_features,
    )


def _matrices(spec: ModelSpec) -> int:
    return 3 if spec.gated else 2
