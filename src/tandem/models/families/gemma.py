"""Gemma (the first): GELU gates, norms times one plus their weight, scaled embeddings."""

from tandem.models.config_file import Fields
from tandem.models.families.traits import Traits

ARCHITECTURE = "GemmaForCausalLM"
MODEL_TYPE = "gemma"
DEFAULT_HEAD_DIM = 256
# The first files said "gelu" and meant its tanh approximation, in which the model was trained.
GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu")


def read_traits(config: Fields, layers: int) -> Traits:
    activation = config.text("hidden_activation", config.text("hidden_act", GELU[0]))
    if activation not in GELU:
        config.refuse("hidden_activation", "gelu_pytorch_tanh; Gemma has no other")
    biased = config.flag("attention_bias", False)
    return Traits(
        window_tokens=(None,) * layers,
        qkv_bias=biased,
        output_bias=biased,
        default_head_dim=DEFAULT_HEAD_DIM,
        activation="gelu_tanh",
        norm_offset=1.0,
        embedding_scale=config.integer("hidden_size") ** 0.5,
        tied_embeddings=True,
    )
