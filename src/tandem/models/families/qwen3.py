"""Qwen3 (dense): q and k are normalised per head before rotation; an explicit head dim."""

from tandem.models.config_file import Fields
from tandem.models.families.qwen2 import read_windows
from tandem.models.families.traits import Traits

ARCHITECTURE = "Qwen3ForCausalLM"
MODEL_TYPE = "qwen3"
DEFAULT_HEAD_DIM = 128


def read_traits(config: Fields, layers: int) -> Traits:
    biased = config.flag("attention_bias", False)
    return Traits(
        window_tokens=read_windows(config, layers),
        qkv_bias=biased,
        output_bias=biased,
        qk_norm=True,
        default_head_dim=DEFAULT_HEAD_DIM,
    )
