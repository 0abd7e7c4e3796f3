"""Qwen2 and Qwen2.5: biases on q, k and v alone; a window, if at all, on the upper layers."""

from tandem.models.config_file import Fields
from tandem.models.families.traits import Traits

ARCHITECTURE = "Qwen2ForCausalLM"
MODEL_TYPE = "qwen2"
DEFAULT_WINDOW_TOKENS = 4096
DEFAULT_FULL_LAYERS = 28
FULL, SLIDING = "full_attention", "sliding_attention"


def read_traits(config: Fields, layers: int) -> Traits:
    return Traits(window_tokens=read_windows(config, layers), qkv_bias=True)


def read_windows(config: Fields, layers: int) -> tuple[int | None, ...]:
    """The window of each layer. `layer_types` names them, else `max_window_layers` counts the
    layers below the first window; neither means anything unless `use_sliding_window`."""
    if not config.flag("use_sliding_window", False) or config.is_null("sliding_window"):
        return (None,) * layers
    window_tokens = config.integer("sliding_window", DEFAULT_WINDOW_TOKENS)
    kinds = config.texts("layer_types")
    if not kinds:
        full_layers = config.whole("max_window_layers", DEFAULT_FULL_LAYERS)
        return tuple(None if layer < full_layers else window_tokens for layer in range(layers))
    if len(kinds) != layers or not set(kinds) <= {FULL, SLIDING}:
        config.refuse("layer_types", f"{layers} entries of {FULL} or {SLIDING}")
    return tuple(window_tokens if kind == SLIDING else None for kind in kinds)
