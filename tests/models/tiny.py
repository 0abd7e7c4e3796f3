"""Tiny random checkpoints, written by transformers, which is also the oracle of their logits."""

import os
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SIZES = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "attn_implementation": "eager",
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "gemma": (GemmaConfig, GemmaForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@dataclass(frozen=True)
class Variant:
    family: str
    config: dict[str, object] = field(default_factory=dict)
    shard_bytes: int | None = None


VARIANTS = {
    "gemma": Variant("gemma", {"num_key_value_heads": 1, "head_dim": 24}),
    "llama2": Variant("llama", {"num_key_value_heads": 4}),
    "llama2_sharded": Variant("llama", {"num_key_value_heads": 4}, shard_bytes=40_000),
    "llama3": Variant("llama", {"num_key_value_heads": 2, "rope_parameters": LLAMA3_ROPE}),
    "llama3_tied": Variant("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama_linear": Variant(
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama_yarn": Variant("llama", {"num_key_value_heads": 2, "rope_parameters": YARN_ROPE}),
    "llama_biased": Variant("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral_window": Variant(
        "mistral", {"num_key_value_heads": 2, "head_dim": 24, "sliding_window": 11}
    ),
    "mistral_full": Variant(
        "mistral", {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": None}
    ),
    "qwen2": Variant("qwen2", {"num_key_value_heads": 2, "tie_word_embeddings": True}),
    "qwen2_yarn": Variant("qwen2", {"num_key_value_heads": 4, "rope_parameters": YARN_ROPE}),
    "qwen2_window": Variant(
        "qwen2",
        {
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
    ),
    "qwen3": Variant("qwen3", {"num_key_value_heads": 2, "head_dim": 32}),
    "qwen3_tied": Variant(
        "qwen3", {"num_key_value_heads": 1, "head_dim": 16, "tie_word_embeddings": True}
    ),
}


def build(variant: Variant, directory: Path) -> PreTrainedModel:
    """Writes the checkpoint and returns the model that it holds."""
    config_class, model_class = FAMILIES[variant.family]
    torch.manual_seed(len(directory.name))
    model = model_class(config_class(**{**SIZES, **variant.config})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(_random_like(name, parameter, variant.family))
    options = {"max_shard_size": variant.shard_bytes} if variant.shard_bytes else {}
    model.save_pretrained(directory, **options)
    return model


def _random_like(name: str, parameter: torch.Tensor, family: str) -> torch.Tensor:
    # Norms unlike one and biases unlike zero: a forgotten one must show in the logits.
    noise = torch.randn_like(parameter)
    if name.endswith("norm.weight"):
        # Gemma's are what is added to one.
        return 0.3 * noise if family == "gemma" else 1 + 0.3 * noise
    if name.endswith(".bias"):
        return 0.3 * noise
    return noise * 1.5 / parameter.shape[-1] ** 0.5
