"""The families that the engine can run. A new one is a new file and a line in each table here."""

from tandem.models.config_file import Fields
from tandem.models.families import gemma, llama, mistral, qwen2, qwen3
from tandem.models.families.traits import ReadTraits, Traits

FAMILIES: dict[str, ReadTraits] = {
    gemma.ARCHITECTURE: gemma.read_traits,
    llama.ARCHITECTURE: llama.read_traits,
    mistral.ARCHITECTURE: mistral.read_traits,
    qwen2.ARCHITECTURE: qwen2.read_traits,
    qwen3.ARCHITECTURE: qwen3.read_traits,
}

# Some files name the model type alone.
ARCHITECTURE_OF_TYPE: dict[str, str] = {
    gemma.MODEL_TYPE: gemma.ARCHITECTURE,
    llama.MODEL_TYPE: llama.ARCHITECTURE,
    mistral.MODEL_TYPE: mistral.ARCHITECTURE,
    qwen2.MODEL_TYPE: qwen2.ARCHITECTURE,
    qwen3.MODEL_TYPE: qwen3.ARCHITECTURE,
}


def read_unknown(config: Fields, layers: int) -> Traits:
    """Of a family that is only described: what its file says of windows and norms."""
    qk_norm = config.text("model_type", "").startswith("qwen3")
    windowed = config.flag("use_sliding_window", True) and config.whole("sliding_window", 0) > 0
    if not windowed:
        return Traits(window_tokens=(None,) * layers, qk_norm=qk_norm)
    window_tokens = config.integer("sliding_window")
    kinds = config.texts("layer_types") or (qwen2.SLIDING,) * layers
    return Traits(
        window_tokens=tuple(window_tokens if kind == qwen2.SLIDING else None for kind in kinds),
        qk_norm=qk_norm,
    )
