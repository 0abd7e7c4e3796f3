"""What model does a config.json describe? Turns the file into a `ModelSpec`, or says why not.

Reads the spellings of transformers 4 and 5; imports neither.
"""

from pathlib import Path

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import AttentionSpec, ModelSpec, RopeSpec, YarnScaling
from tandem.models.config_file import Fields, read_fields
from tandem.models.families.table import ARCHITECTURE_OF_TYPE, FAMILIES
from tandem.models.families.traits import Traits
from tandem.models.rope_configuration import read_rope

CONFIG_NAME = "config.json"
SILU = ("silu", "swish")
DEFAULT_RMS_EPS = 1e-6
UNSUPPORTED_FIELDS = {
    "quantization_config": "quantised checkpoints; take the original weights and choose a storage",
    "compression_config": "compressed checkpoints; take the original weights",
    "num_local_experts": "mixtures of experts",
    "num_experts": "mixtures of experts",
    "n_routed_experts": "mixtures of experts",
    "dual_chunk_attention_config": "dual chunk attention; take the model without it",
}


def read_model_spec(directory: Path) -> ModelSpec:
    """The model in a directory. Raises `InvalidConfiguration`, one line that names the field."""
    return parse_model_spec(read_fields(directory / CONFIG_NAME))


def parse_model_spec(config: Fields) -> ModelSpec:
    architecture = _read_architecture(config)
    _refuse_unsupported(config)
    layers = config.integer("num_hidden_layers")
    traits = FAMILIES[architecture](config, layers)
    attention = _read_attention(config, traits)
    context_tokens = config.integer("max_position_embeddings")
    rope = read_rope(config, context_tokens)
    _refuse_odd_rotation(config, attention, rope)
    return ModelSpec(
        architecture=architecture,
        layers=layers,
        hidden_features=config.integer("hidden_size"),
        feed_forward_features=config.integer("intermediate_size"),
        vocabulary_tokens=config.integer("vocab_size"),
        context_tokens=_stretched(context_tokens, rope),
        rms_eps=config.number("rms_norm_eps", DEFAULT_RMS_EPS),
        attention=attention,
        rope=rope,
        tied_embeddings=config.flag("tie_word_embeddings", False),
        feed_forward_bias=traits.feed_forward_bias,
        weight_dtype=config.text("dtype", config.text("torch_dtype", "float32")),
    )


def _read_architecture(config: Fields) -> str:
    names = config.texts("architectures")
    model_type = config.text("model_type", "")
    architecture = names[0] if names else ARCHITECTURE_OF_TYPE.get(model_type, model_type)
    if architecture not in FAMILIES:
        raise InvalidConfiguration(
            f"{config.label}: architecture {architecture or 'missing'!r} is not supported; "
            f"expected one of {', '.join(sorted(FAMILIES))}"
        )
    return architecture


def _refuse_unsupported(config: Fields) -> None:
    for name, what in UNSUPPORTED_FIELDS.items():
        if config.values.get(name):
            raise InvalidConfiguration(f"{config.label}: {name} is set; Tandem cannot run {what}")
    activation = config.text("hidden_act", SILU[0])
    if activation not in SILU:
        config.refuse("hidden_act", "silu; no other activation is supported")


def _read_attention(config: Fields, traits: Traits) -> AttentionSpec:
    heads = config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        config.refuse("num_key_value_heads", f"a divisor of num_attention_heads, which is {heads}")
    default_head_dim = traits.default_head_dim
    if default_head_dim is None:
        hidden_features = config.integer("hidden_size")
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


def _refuse_odd_rotation(config: Fields, attention: AttentionSpec, rope: RopeSpec) -> None:
    rotary_dim = rope.rotary_dim(attention.head_dim)
    if rotary_dim % 2 or not rotary_dim:
        raise InvalidConfiguration(
            f"{config.label}: {rotary_dim} dimensions of a head of {attention.head_dim} are "
            "rotated; expected an even number, see head_dim and partial_rotary_factor"
        )


def _stretched(context_tokens: int, rope: RopeSpec) -> int:
    # A YaRN config may give either length as max_position_embeddings. A linear one may too, but
    # nothing in the file tells which, so there the smaller claim stands.
    if isinstance(rope.scaling, YarnScaling):
        return max(context_tokens, int(rope.scaling.original_context_tokens * rope.scaling.factor))
    return context_tokens
