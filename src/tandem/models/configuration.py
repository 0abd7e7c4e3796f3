"""Reads a model's config.json into its one description (`ModelSpec`), and says which models the
engine can run.

Reads the spellings of transformers 4 and 5; imports neither. Of the rotary embedding there are two:
`rope_theta` and `rope_scaling` with `type` or `rope_type`, and all in `rope_parameters`.
"""

import math
from dataclasses import replace
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import (
    AttentionSpec,
    ExpertsSpec,
    FactorScaling,
    LatentSpec,
    LinearScaling,
    Llama3Scaling,
    ModelSpec,
    RopeScaling,
    RopeSpec,
    YarnScaling,
)
from tandem.gguf.names import is_gguf
from tandem.models.directory import Fields, read_fields
from tandem.models.families import ARCHITECTURE_OF_TYPE, FAMILIES, Traits, read_unknown
from tandem.models.formats.choose import refuse_quantized
from tandem.models.gguf.configuration import read_gguf_config

CONFIG_NAME = "config.json"
CLASSIFIER = "ForSequenceClassification"
SILU = ("silu", "swish")
DEFAULT_THETA = 10_000.0
UNSCALED_ROPE = ("default", "none")
SUPPORTED_ROPE = (*UNSCALED_ROPE, "linear", "llama3", "yarn")
# As GGUF files have it instead of "llama3".
ROPE_BY_FACTORS = "factors"
# Of a model that is only described: no cost depends on it.
UNKNOWN_CONTEXT_TOKENS = 4096
# Two matrices in a feed-forward layer instead of three.
UNGATED_TYPES = ("bloom", "opt")
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
UNSUPPORTED_FIELDS = {
    "num_local_experts": "mixtures of experts",
    "num_experts": "mixtures of experts",
    "n_routed_experts": "mixtures of experts",
    "dual_chunk_attention_config": "dual chunk attention; take the model without it",
}


def read_model_spec(directory: Path) -> ModelSpec:
    """The model in a directory, or in a GGUF file, which the engine can run. Raises
    `InvalidConfiguration`, one line that names the field."""
    return parse_model_spec(read_config(directory))


def read_config(directory: Path) -> Fields:
    """The config.json of a directory, or what that of a GGUF file's model would say. Raises
    `InvalidConfiguration`."""
    is_file = is_gguf(directory)
    return read_gguf_config(directory) if is_file else read_fields(directory / CONFIG_NAME)


def parse_model_spec(config: Fields) -> ModelSpec:
    """As `read_model_spec`, of a file that was read."""
    architecture = _read_architecture(config)
    if architecture not in FAMILIES:
        # What keeps it from running tells more than its name.
        _refuse_unsupported(config)
        raise InvalidConfiguration(
            f"{config.label}: architecture {architecture or 'missing'!r} is not supported; "
            f"expected one of {', '.join(sorted(FAMILIES))}"
        )
    _refuse_unsupported(config)
    config.integer("max_position_embeddings")
    spec = describe_model(config)
    if spec.activation == "silu" and config.text("hidden_act", SILU[0]) not in SILU:
        config.refuse("hidden_act", "silu; no other activation is supported")
    _refuse_odd_rotation(config, spec)
    _refuse_few_factors(config, spec)
    return spec


def is_decoder(directory: Path) -> bool:
    """Whether a directory calls itself a model of a family that generates, with its head, with one
    for labels, or without. Raises `InvalidConfiguration` where there is no config.json."""
    architecture = _read_architecture(read_config(directory))
    return _with_head(architecture) in FAMILIES


def read_headless_spec(directory: Path) -> ModelSpec:
    """As `read_model_spec`, of a decoder that nobody asks for tokens: its embedding counts as its
    head."""
    config = read_config(directory)
    refuse_quantized(directory, "an encoder")
    architecture = _with_head(_read_architecture(config))
    config = Fields(config.label, {**config.values, "architectures": [architecture]})
    return replace(parse_model_spec(config), tied_embeddings=True)


def is_classifier(directory: Path) -> bool:
    """Whether what is in a directory has a head for labels."""
    return _read_architecture(read_config(directory)).endswith(CLASSIFIER)


def _with_head(architecture: str) -> str:
    """As the same model is called where it has a head."""
    for ending in ("Model", CLASSIFIER):
        if architecture.endswith(ending):
            return architecture.removesuffix(ending) + "ForCausalLM"
    return architecture


def describe_model(config: Fields) -> ModelSpec:
    """The model of a config.json, whether the engine can run it or not. Raises
    `InvalidConfiguration` naming the field."""
    architecture = _read_architecture(config)
    layers = config.integer("num_hidden_layers", other_name="n_layer")
    heads = config.integer("num_attention_heads", other_name="n_head")
    hidden_features = config.integer("hidden_size", other_name="n_embed")
    traits = FAMILIES.get(architecture, read_unknown)(config, layers)
    context_tokens = config.integer("max_position_embeddings", UNKNOWN_CONTEXT_TOKENS)
    rope = read_rope(config, context_tokens)
    gated = config.text("model_type", "") not in UNGATED_TYPES
    return ModelSpec(
        architecture=architecture,
        layers=layers,
        hidden_features=hidden_features,
        feed_forward_features=_feed_forward_features(config, gated, hidden_features),
        vocabulary_tokens=config.integer("vocab_size"),
        context_tokens=_stretched(context_tokens, rope),
        norm=replace(traits.norm, eps=config.number("rms_norm_eps", traits.norm.eps)),
        attention=_read_attention(config, traits, heads, hidden_features),
        rope=rope,
        # transformers ties the embeddings of these families where their configuration says nothing.
        tied_embeddings=config.flag("tie_word_embeddings", traits.tied_embeddings or not gated),
        feed_forward_bias=traits.feed_forward_bias,
        weight_dtype=config.text("dtype", config.text("torch_dtype", "float32")),
        activation=traits.activation,
        embedding_scale=traits.embedding_scale,
        gated=gated,
        latent=_read_latent(config),
        experts=_read_experts(config),
    )


def _read_architecture(config: Fields) -> str:
    names = config.texts("architectures")
    model_type = config.text("model_type", "")
    return names[0] if names else ARCHITECTURE_OF_TYPE.get(model_type, model_type)


def _refuse_unsupported(config: Fields) -> None:
    for name, what in UNSUPPORTED_FIELDS.items():
        if config.values.get(name):
            raise InvalidConfiguration(f"{config.label}: {name} is set; Tandem cannot run {what}")


def _feed_forward_features(config: Fields, gated: bool, hidden_features: int) -> int:
    if gated and not config.has("ffn_dim"):
        return config.integer("intermediate_size")
    default = 4 * hidden_features
    return config.integer("intermediate_size", default, other_name="ffn_dim")


def _read_attention(
    config: Fields, traits: Traits, heads: int, hidden_features: int
) -> AttentionSpec:
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        config.refuse("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
    default_head_dim = traits.default_head_dim
    if default_head_dim is None:
        if hidden_features % heads and not config.has("head_dim"):
            config.refuse("hidden_size", f"a multiple of num_attention_heads, which is {heads}")
        default_head_dim = max(1, hidden_features // heads)
    head_dim = config.integer("head_dim", default_head_dim)
    return AttentionSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        window_tokens=traits.window_tokens,
        qk_norm=traits.qk_norm,
        qkv_bias=traits.qkv_bias,
        output_bias=traits.output_bias,
    )


def _read_latent(config: Fields) -> LatentSpec | None:
    if not config.has("kv_lora_rank"):
        return None
    return LatentSpec(
        latent_features=config.integer("kv_lora_rank"),
        rotary_features=config.integer("qk_rope_head_dim"),
        plain_features=config.integer("qk_nope_head_dim"),
        value_features=config.integer("v_head_dim"),
        query_rank=config.whole("q_lora_rank", 0),
    )


def _read_experts(config: Fields) -> ExpertsSpec | None:
    experts = max(config.whole(name, 0) for name in EXPERT_COUNTS)
    if experts < 2:
        return None
    expert_features = config.integer("moe_intermediate_size", config.integer("intermediate_size"))
    shared_features = config.whole("shared_expert_intermediate_size", 0)
    experts_per_token = config.integer("num_experts_per_tok")
    if experts_per_token > experts:
        config.refuse("num_experts_per_tok", f"at most the {experts} experts")
    only_dense = config.values.get("mlp_only_layers")
    dense_layers = len(only_dense) if isinstance(only_dense, list) else 0
    return ExpertsSpec(
        experts=experts,
        experts_per_token=experts_per_token,
        expert_features=expert_features,
        shared_features=shared_features or config.whole("n_shared_experts", 0) * expert_features,
        dense_layers=dense_layers + config.whole("first_k_dense_replace", 0),
    )


def _refuse_odd_rotation(config: Fields, spec: ModelSpec) -> None:
    rotary_dim = spec.rope.rotary_dim(spec.attention.head_dim)
    if rotary_dim % 2 or not rotary_dim:
        raise InvalidConfiguration(
            f"{config.label}: {rotary_dim} dimensions of a head of {spec.attention.head_dim} are "
            "rotated; expected an even number, see head_dim and partial_rotary_factor"
        )


def _refuse_few_factors(config: Fields, spec: ModelSpec) -> None:
    pairs = spec.rope.rotary_dim(spec.attention.head_dim) // 2
    scaling = spec.rope.scaling
    if isinstance(scaling, FactorScaling) and len(scaling.factors) != pairs:
        raise InvalidConfiguration(
            f"{config.label}: {len(scaling.factors)} rotary frequencies have factors; expected "
            f"{pairs}, one for each rotated pair of a head"
        )


def _stretched(context_tokens: int, rope: RopeSpec) -> int:
    # A YaRN config may give either length as max_position_embeddings. A linear one may too, but
    # nothing in the file tells which, so there the smaller claim stands.
    if isinstance(rope.scaling, YarnScaling):
        return max(context_tokens, int(rope.scaling.original_context_tokens * rope.scaling.factor))
    return context_tokens


def read_rope(config: Fields, context_tokens: int) -> RopeSpec:
    """`context_tokens` stands in where the length of the original training is not given."""
    rope = config.group("rope_parameters") or config.group("rope_scaling") or Fields("rope", {})
    theta = rope.number("rope_theta", config.number("rope_theta", DEFAULT_THETA))
    if theta <= 1.0:
        raise InvalidConfiguration(f"{config.label}: rope_theta is {theta:g}; expected more than 1")
    partial_factor = rope.number(
        "partial_rotary_factor", config.number("partial_rotary_factor", 1.0)
    )
    if partial_factor > 1.0:
        raise InvalidConfiguration(
            f"{config.label}: partial_rotary_factor is {partial_factor:g}; expected at most 1"
        )
    original_tokens = config.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", context_tokens),
    )
    return RopeSpec(theta, _read_scaling(rope, original_tokens), partial_factor)


def _read_scaling(rope: Fields, original_tokens: int) -> RopeScaling | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind in UNSCALED_ROPE:
        if any(isinstance(value, dict) for value in rope.values.values()):
            raise InvalidConfiguration(
                f"{rope.label} differs by layer type, which is not supported; "
                "expected one set of parameters for all layers"
            )
        return None
    if kind == "linear":
        return LinearScaling(rope.number("factor"))
    if kind == "llama3":
        return _read_llama3(rope, original_tokens)
    if kind == "yarn":
        return _read_yarn(rope, original_tokens)
    if kind == ROPE_BY_FACTORS:
        return FactorScaling(rope.numbers("factors"))
    raise InvalidConfiguration(
        f"{rope.label}: rope_type is {kind!r}, which is not supported; "
        f"expected one of {', '.join(SUPPORTED_ROPE)}"
    )


def _read_llama3(rope: Fields, original_tokens: int) -> Llama3Scaling:
    low = rope.number("low_freq_factor")
    high = rope.number("high_freq_factor")
    if high <= low:
        rope.refuse("high_freq_factor", f"more than low_freq_factor, which is {low:g}")
    return Llama3Scaling(rope.number("factor"), low, high, original_tokens)


def _read_yarn(rope: Fields, original_tokens: int) -> YarnScaling:
    factor = rope.number("factor")
    if rope.has("attention_factor"):
        attention_factor = rope.number("attention_factor")
    elif rope.has("mscale") and rope.has("mscale_all_dim"):
        attention_factor = _temper(factor, rope.number("mscale")) / _temper(
            factor, rope.number("mscale_all_dim")
        )
    else:
        attention_factor = _temper(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_context_tokens=original_tokens,
        attention_factor=attention_factor,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _temper(factor: float, scale: float) -> float:
    """YaRN's softmax temperature for a context stretched by `factor`."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


# An EAGLE head looks back so far: of what lies before it can make little.
EAGLE_WINDOW_TOKENS = 256
# Which an EAGLE head has where its model norms queries and keys.
EAGLE_QUERY_NORM = "layers.0.self_attn.q_norm.weight"


def read_eagle_spec(config: Fields, spec: ModelSpec, *, qk_norm: bool) -> ModelSpec:
    """Of the head's one layer, beside a model of `spec`. Raises `InvalidConfiguration`."""
    hidden, vocabulary = config.integer("hidden_size"), config.integer("vocab_size")
    if (hidden, vocabulary) != (spec.hidden_features, spec.vocabulary_tokens):
        raise InvalidConfiguration(
            f"{config.label}: a head for a model of {hidden} hidden features and {vocabulary:,} "
            f"tokens; this one has {spec.hidden_features} and {spec.vocabulary_tokens:,}"
        )
    if config.integer("num_hidden_layers", 1) != 1:
        raise InvalidConfiguration(f"{config.label}: expected num_hidden_layers 1")
    heads = config.integer("num_attention_heads")
    head_dim = config.integer("head_dim", hidden // heads)
    attention = AttentionSpec(
        heads,
        config.integer("num_key_value_heads", heads),
        head_dim,
        head_dim**-0.5,
        (EAGLE_WINDOW_TOKENS,),
        qk_norm=qk_norm,
    )
    return replace(
        spec,
        layers=1,
        feed_forward_features=config.integer("intermediate_size"),
        attention=attention,
        norm=replace(spec.norm, eps=config.number("rms_norm_eps", spec.norm.eps)),
    )
