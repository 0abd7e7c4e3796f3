"""Mistral: one sliding window on every layer (null in later models), never a bias."""

from tandem.models.config_file import Fields
from tandem.models.families.traits import Traits

ARCHITECTURE = "MistralForCausalLM"
MODEL_TYPE = "mistral"
DEFAULT_WINDOW_TOKENS = 4096


def read_traits(config: Fields, layers: int) -> Traits:
    # The first Mistral had a window without always saying so; its successors say null.
    if config.is_null("sliding_window"):
        return Traits(window_tokens=(None,) * layers)
    window_tokens = config.integer("sliding_window", DEFAULT_WINDOW_TOKENS)
    return Traits(window_tokens=(window_tokens,) * layers)
