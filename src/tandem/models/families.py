"""The families of models that the engine can run, and what distinguishes each from the common
decoder. A new one is a function and a line in each table at the end.
"""

from dataclasses import dataclass, field
from typing import Protocol

from tandem.facts.model import Activation, NormSpec
from tandem.models.directory import Fields

DEFAULT_WINDOW_TOKENS = 4096
QWEN_FULL_LAYERS = 28
QWEN3_HEAD_DIM = 128
GEMMA_HEAD_DIM = 256
FULL, SLIDING = "full_attention", "sliding_attention"
# The first files said "gelu" and meant its tanh approximation, in which the model was trained.
GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu")


@dataclass(frozen=True, slots=True)
class Traits:
    """`window_tokens` has one entry a layer; `default_head_dim` None means hidden / heads. The
    others as in `ModelSpec`; `tied_embeddings` and the `eps` of norms where the configuration does
    not say."""

    window_tokens: tuple[int | None, ...]
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    qk_norm: bool = False
    default_head_dim: int | None = None
    activation: Activation = "silu"
    norm: NormSpec = field(default_factory=NormSpec)
    embedding_scale: float = 1.0
    tied_embeddings: bool = False


class ReadTraits(Protocol):
    def __call__(self, config: Fields, layers: int) -> Traits: ...


def read_llama(config: Fields, layers: int) -> Traits:
    """Llama 2 and 3, and the many models of their shape: optional biases, no window."""
    biased = config.flag("attention_bias", False)
    return Traits(
        window_tokens=(None,) * layers,
        qkv_bias=biased,
        output_bias=biased,
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def read_mistral(config: Fields, layers: int) -> Traits:
    """Mistral: one sliding window on every layer (null in later models), never a bias."""
    # The first Mistral had a window without always saying so; its successors say null.
    if config.is_null("sliding_window"):
        return Traits(window_tokens=(None,) * layers)
    window_tokens = config.integer("sliding_window", DEFAULT_WINDOW_TOKENS)
    return Traits(window_tokens=(window_tokens,) * layers)


def read_qwen2(config: Fields, layers: int) -> Traits:
    """Qwen2 and Qwen2.5: biases on q, k and v alone; a window, if at all, on the upper layers."""
    return Traits(window_tokens=_qwen_windows(config, layers), qkv_bias=True)


def read_qwen3(config: Fields, layers: int) -> Traits:
    """Qwen3 (dense): q and k are normalised per head before rotation; an explicit head dim."""
    biased = config.flag("attention_bias", False)
    return Traits(
        window_tokens=_qwen_windows(config, layers),
        qkv_bias=biased,
        output_bias=biased,
        qk_norm=True,
        default_head_dim=QWEN3_HEAD_DIM,
    )


def _qwen_windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    """The window of each layer. `layer_types` names them, else `max_window_layers` counts the
    layers below the first window; neither means anything unless `use_sliding_window`."""
    if not config.flag("use_sliding_window", False) or config.is_null("sliding_window"):
        return (None,) * layers
    window_tokens = config.integer("sliding_window", DEFAULT_WINDOW_TOKENS)
    kinds = config.texts("layer_types")
    if not kinds:
        full_layers = config.whole("max_window_layers", QWEN_FULL_LAYERS)
        return tuple(None if layer < full_layers else window_tokens for layer in range(layers))
    if len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
        config.refuse("layer_types", f"{layers} entries of {FULL} or {SLIDING}")
    return tuple(window_tokens if kind == SLIDING else None for kind in kinds)


def read_gemma(config: Fields, layers: int) -> Traits:
    """Gemma (the first): GELU gates, norms times one plus their weight, scaled embeddings."""
    activation = config.text("hidden_activation", config.text("hidden_act", GELU[0]))
    if activation not in GELU:
        config.refuse("hidden_activation", "gelu_pytorch_tanh; Gemma has no other")
    biased = config.flag("attention_bias", False)
    return Traits(
        window_tokens=(None,) * layers,
        qkv_bias=biased,
        output_bias=biased,
        default_head_dim=GEMMA_HEAD_DIM,
        activation="gelu_tanh",
        norm=NormSpec(offset=1.0),
        embedding_scale=config.integer("hidden_size") ** 0.5,
        tied_embeddings=True,
    )


def read_unknown(config: Fields, layers: int) -> Traits:
    """Of a family that is only described: what its file says of windows and norms."""
    qk_norm = config.text("model_type", "").startswith("qwen3")
    windowed = config.flag("use_sliding_window", True) and config.whole("sliding_window", 0) > 0
    if not windowed:
        return Traits(window_tokens=(None,) * layers, qk_norm=qk_norm)
    window_tokens = config.integer("sliding_window")
    kinds = config.texts("layer_types") or (SLIDING,) * layers
    return Traits(
        window_tokens=tuple(window_tokens if kind == SLIDING else None for kind in kinds),
        qk_norm=qk_norm,
    )


FAMILIES: dict[str, ReadTraits] = {
    "GemmaForCausalLM": read_gemma,
    "LlamaForCausalLM": read_llama,
    "MistralForCausalLM": read_mistral,
    "Qwen2ForCausalLM": read_qwen2,
    "Qwen3ForCausalLM": read_qwen3,
}

# Some files name the model type alone.
ARCHITECTURE_OF_TYPE: dict[str, str] = {
    "gemma": "GemmaForCausalLM",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
