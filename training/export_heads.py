"""Heads as checkpoint folders, in vLLM's layout, and back.

The output layer is the main model's and not stored again; vLLM's Medusa wants a copy of it beside
the blocks (`lm_heads.0.weight`), which would be more than twice their size.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from export import CONTEXT_TOKENS
from heads import EagleHead, Head, MedusaHeads


def medusa_config(heads: MedusaHeads, vocabulary: int) -> dict[str, Any]:
    """`original_lm_head`: the heads' features go through the main model's own output layer."""
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": heads.hidden,
        "medusa_fc_bias": True,
        "num_heads": len(heads.blocks),
        "num_hidden_layers": 1,
        "original_lm_head": True,
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
    }


def eagle_config(head: EagleHead) -> dict[str, Any]:
    """The words of Qwen3 for the one layer."""
    shape = head.shape
    return {
        "architectures": ["EagleQwen3ForCausalLM"],
        "model_type": "eagle",
        "attention_bias": False,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": CONTEXT_TOKENS,
        "num_attention_heads": shape.query_heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_theta": shape.rope_theta,
        "torch_dtype": "bfloat16",
        "vocab_size": shape.vocabulary,
    }


def export_head(head: Head, vocabulary: int, out: Path) -> None:
    """Configuration and weights in bfloat16; weights are replaced atomically."""
    out.mkdir(parents=True, exist_ok=True)
    if isinstance(head, MedusaHeads):
        config = medusa_config(head, vocabulary)
    else:
        config = eagle_config(head)
    stored = {name: weight.to(torch.bfloat16) for name, weight in head.state_dict().items()}
    part = out / "model.safetensors.part"
    save_file(stored, part, metadata={"format": "pt"})
    part.chmod(0o644)
    part.replace(out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_head(folder: Path) -> Head:
    """A head with its weights as they are stored."""
    config = json.loads((folder / "config.json").read_text())
    head: Head
    head = MedusaHeads(heads=config["num_heads"]) if "num_heads" in config else EagleHead()
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name: weight.float() for name, weight in stored.items()})
    return head.eval()
