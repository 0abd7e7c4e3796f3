"""Writes a trained model as a Hugging Face folder: weights, configuration, tokenizer, template.

python training/export.py --weights FOLDER/model.pt --size main --tokenizer T.json --out DIR
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from model import DRAFT, MAIN, Shape
from tokenizer import MARKUP_TOKENS, SPECIAL_TOKENS

TEMPLATE = Path(__file__).parent / "chat_template.jinja"
CONTEXT_TOKENS = 4096
END_OF_TEXT, _, END_OF_TURN = SPECIAL_TOKENS


def model_config(shape: Shape, tokenizer: Tokenizer) -> dict[str, Any]:
    """The configuration in the words of Qwen3, readable by transformers 4 and 5."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": tokenizer.token_to_id(END_OF_TURN),
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": CONTEXT_TOKENS,
        "max_window_layers": shape.layers,
        "num_attention_heads": shape.query_heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.norm_epsilon,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocabulary,
    }


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    added = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": token in SPECIAL_TOKENS,
        }
        for token in (*SPECIAL_TOKENS, *MARKUP_TOKENS)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": added,
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT_TOKENS,
    }


def generation_config(tokenizer: Tokenizer) -> dict[str, Any]:
    ends = [tokenizer.token_to_id(token) for token in (END_OF_TURN, END_OF_TEXT)]
    return {"do_sample": False, "eos_token_id": ends, "pad_token_id": ends[1]}


def export(weights: dict[str, torch.Tensor], shape: Shape, tokenizer_path: Path, out: Path) -> None:
    """The whole folder; weights are stored in bfloat16, the output layer shares the embedding."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(tokenizer_path))
    stored = {
        f"model.{name}": weight.to(torch.bfloat16).contiguous() for name, weight in weights.items()
    }
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    shutil.copy(tokenizer_path, out / "tokenizer.json")
    shutil.copy(TEMPLATE, out / "chat_template.jinja")
    for name, content in (
        ("config.json", model_config(shape, tokenizer)),
        ("tokenizer_config.json", tokenizer_config(tokenizer)),
        ("generation_config.json", generation_config(tokenizer)),
    ):
        (out / name).write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--size", choices=("main", "draft"), required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    weights = torch.load(options.weights, weights_only=True)
    export(weights, MAIN if options.size == "main" else DRAFT, options.tokenizer, options.out)


if __name__ == "__main__":
    main()
