"""Tokenizers as GGUF files without tensors, written by llama.cpp's own package."""

import json
from pathlib import Path

import gguf
from gguf import TokenType
from tandem.config.environment import BUNDLED_MODEL


def write_byte_pairs(path: Path, source: Path = BUNDLED_MODEL, **changes: object) -> Path:
    """The tokenizer of a checkpoint's folder; `changes` replace what is written of it, and None
    leaves it out."""
    return write(path, byte_pairs(source) | changes)


def byte_pairs(source: Path) -> dict[str, object]:
    """What a writer is told of the tokenizer of a checkpoint's folder."""
    described = json.loads((source / "tokenizer.json").read_text())
    config = json.loads((source / "tokenizer_config.json").read_text())
    tokens = described["model"]["vocab"] | {
        each["content"]: each["id"] for each in described["added_tokens"]
    }
    types = dict.fromkeys(tokens.values(), TokenType.NORMAL)
    for each in described["added_tokens"]:
        types[each["id"]] = TokenType.CONTROL if each["special"] else TokenType.USER_DEFINED
    return {
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "qwen2",
        "token_list": sorted(tokens, key=lambda text: tokens[text]),
        "token_types": [types[token_id] for token_id in range(len(tokens))],
        "token_merges": [" ".join(pair) for pair in described["model"]["merges"]],
        "eos_token_id": tokens[config["eos_token"]],
        "pad_token_id": tokens[config["pad_token"]],
        "add_bos_token": False,
        "chat_template": (source / "chat_template.jinja").read_text(),
    }


def write(path: Path, said: dict[str, object]) -> Path:
    """What each method `add_…` of the writer is to get."""
    writer = gguf.GGUFWriter(path, "qwen2")
    tell(writer, said)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tell(writer: gguf.GGUFWriter, said: dict[str, object]) -> None:
    for name, value in said.items():
        if value is not None:
            getattr(writer, f"add_{name}")(value)
