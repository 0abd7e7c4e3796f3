"""The shape of a model for costs: arithmetic and bytes of a token, from any config.json.

Wider than the models that the engine can run: also latent attention (MLA) and mixtures of experts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from tandem.facts.errors import InvalidConfiguration

# Two matrices in a feed-forward layer instead of three.
UNGATED_TYPES = ("bloom", "opt")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")


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


def model_shape(config: Mapping[str, object], label: str) -> ModelShape:
    """The shape that a config.json describes; `label` names it in errors. Raises
    `InvalidConfiguration` naming the field."""
    fields = _Fields(config, label)
    hidden = fields.integer("hidden_size", "n_embed")
    layers = fields.integer("num_hidden_layers", "n_layer")
    heads = fields.integer("num_attention_heads", "n_head")
    latent = config.get("kv_lora_rank") is not None
    attention = _latent(fields, hidden, heads) if latent else _grouped(fields, hidden, heads)
    windowed_layers, window_tokens = _windows(fields, layers)
    return ModelShape(
        label=label,
        layers=layers,
        hidden_features=hidden,
        vocabulary_tokens=fields.integer("vocab_size"),
        # transformers ties where a configuration of these families says nothing.
        tied_embeddings=fields.flag("tie_word_embeddings", fields.ungated),
        attention=attention,
        feed_forward=_feed_forward(fields, hidden, layers),
        windowed_layers=windowed_layers,
        window_tokens=window_tokens,
    )


def _grouped(fields: "_Fields", hidden: int, heads: int) -> AttentionShape:
    kv_heads = fields.integer("num_key_value_heads", default=heads)
    head_dim = fields.integer("head_dim", default=max(1, hidden // heads))
    normed = fields.kind.startswith("qwen3")
    return AttentionShape(
        heads=heads,
        kv_heads=kv_heads,
        kv_elements=2 * kv_heads * head_dim,
        parameters=2 * hidden * (heads + kv_heads) * head_dim,
        norm_parameters=2 * head_dim if normed else 0,
        prefill_pair_flops=4.0 * heads * head_dim,
        decode_pair_flops=4.0 * heads * head_dim,
    )


def _latent(fields: "_Fields", hidden: int, heads: int) -> AttentionShape:
    latent, rotary = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    plain, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    query_rank = fields.whole("q_lora_rank")
    query_features = heads * (plain + rotary)
    query = query_rank * (hidden + query_features) if query_rank else hidden * query_features
    keys = hidden * (latent + rotary) + latent * heads * (plain + value)
    return AttentionShape(
        heads=heads,
        kv_heads=1,
        kv_elements=latent + rotary,
        parameters=query + keys + heads * value * hidden,
        norm_parameters=query_rank + latent,
        prefill_pair_flops=2.0 * heads * (plain + rotary + value),
        decode_pair_flops=2.0 * heads * (2 * latent + rotary),
    )


def _feed_forward(fields: "_Fields", hidden: int, layers: int) -> FeedForwardShape:
    inner = fields.integer("intermediate_size", "ffn_dim", default=4 * hidden)
    matrices = 2 if fields.ungated else 3
    experts = max(fields.whole(name) for name in EXPERT_COUNTS)
    if experts < 2:
        return FeedForwardShape(layers, matrices * hidden * inner, inner)
    expert_inner = fields.integer("moe_intermediate_size", default=inner)
    shared_inner = fields.whole("shared_expert_intermediate_size")
    shared_inner = shared_inner or fields.whole("n_shared_experts") * expert_inner
    experts_per_token = fields.integer("num_experts_per_tok")
    if experts_per_token > experts:
        fields.refuse("num_experts_per_tok", f"at most the {experts} experts")
    only_dense = fields.config.get("mlp_only_layers")
    dense_layers = len(only_dense) if isinstance(only_dense, list) else 0
    return FeedForwardShape(
        dense_layers=min(layers, dense_layers + fields.whole("first_k_dense_replace")),
        dense_parameters=matrices * hidden * inner,
        inner_features=experts_per_token * expert_inner + shared_inner,
        experts=experts,
        experts_per_token=experts_per_token,
        expert_parameters=matrices * hidden * expert_inner,
        shared_parameters=experts * hidden + matrices * hidden * shared_inner,
    )


def _windows(fields: "_Fields", layers: int) -> tuple[int, int]:
    window_tokens = fields.whole("sliding_window")
    if not window_tokens or not fields.flag("use_sliding_window", True):
        return 0, 0
    kinds = fields.config.get("layer_types")
    if isinstance(kinds, list):
        return sum(kind == "sliding_attention" for kind in kinds), window_tokens
    return layers, window_tokens


@dataclass(frozen=True, slots=True)
class _Fields:
    """A config.json; null counts as missing."""

    config: Mapping[str, object]
    label: str

    @property
    def kind(self) -> str:
        return str(self.config.get("model_type", ""))

    @property
    def ungated(self) -> bool:
        return self.kind in UNGATED_TYPES

    def integer(self, *names: str, default: int = 0) -> int:
        """A positive number under the first of the names that is there."""
        for name in names:
            if self.config.get(name) is not None:
                return self._counted(name, 1)
        if not default:
            self.refuse(names[0], "a positive whole number")
        return default

    def whole(self, name: str) -> int:
        return 0 if self.config.get(name) is None else self._counted(name, 0)

    def flag(self, name: str, default: bool) -> bool:
        value = self.config.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def _counted(self, name: str, least: int) -> int:
        value = self.config[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.refuse(name, f"a whole number, {least} or more")
        return value

    def refuse(self, name: str, expected: str) -> NoReturn:
        raise InvalidConfiguration(
            f"{self.label}: {name} is {self.config.get(name)!r}; expected {expected}"
        )
