"""Llama 2 and 3, and the many models of their shape: optional biases, no window."""

from tandem.models.config_file import Fields
from tandem.models.families.traits import Traits

ARCHITECTURE = "LlamaForCausalLM"
MODEL_TYPE = "llama"


def read_traits(config: Fields, layers: int) -> Traits:
    biased = config.flag("attention_bias", False)
    return Traits(
        window_tokens=(None,) * layers,
        qkv_bias=biased,
        output_bias=biased,
        feed_forward_bias=config.flag("mlp_bias", False),
    )
