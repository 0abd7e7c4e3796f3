"""The checkpoints of a comparison: one model of random weights in the shape of Qwen2.5-0.5B, as a
folder of transformers in bfloat16 and as GGUF files made from it."""

import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

import gguf
from model import HALF_BILLION
from tandem.config.environment import BUNDLED

QUANTIZED = {
    "F16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "BF16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "Q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "Q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
OF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_folder(folder: Path) -> None:
    """Random weights, made by the peer itself: always the same. Any tokenizer: what is asked and
    said are ids."""
    torch.manual_seed(0)
    attention = HALF_BILLION.attention
    config = Qwen2Config(
        vocab_size=HALF_BILLION.vocabulary_tokens,
        hidden_size=HALF_BILLION.hidden_features,
        intermediate_size=HALF_BILLION.feed_forward_features,
        num_hidden_layers=HALF_BILLION.layers,
        num_attention_heads=attention.heads,
        num_key_value_heads=attention.kv_heads,
        max_position_embeddings=HALF_BILLION.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": HALF_BILLION.rope.theta},
        rms_norm_eps=HALF_BILLION.norm.eps,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for file in (BUNDLED / "tandem-mini").glob("token*"):
        shutil.copy(file, folder)


def write_gguf(folder: Path, file: Path, kind: str) -> None:
    """The same weights; matrices in blocks of `kind`, vectors in float32."""
    tensors = load_file(folder / "model.safetensors")
    quantization, file_type = QUANTIZED[kind]
    writer = gguf.GGUFWriter(file, "qwen2")
    attention = HALF_BILLION.attention
    writer.add_name("half a billion random weights")
    writer.add_context_length(HALF_BILLION.context_tokens)
    writer.add_embedding_length(HALF_BILLION.hidden_features)
    writer.add_block_count(HALF_BILLION.layers)
    writer.add_feed_forward_length(HALF_BILLION.feed_forward_features)
    writer.add_head_count(attention.heads)
    writer.add_head_count_kv(attention.kv_heads)
    writer.add_rope_freq_base(HALF_BILLION.rope.theta)
    writer.add_layer_norm_rms_eps(HALF_BILLION.norm.eps)
    writer.add_file_type(file_type)
    _add_tokenizer(writer)
    _add_matrix(writer, "token_embd.weight", tensors["model.embed_tokens.weight"], quantization)
    _add_vector(writer, "output_norm.weight", tensors["model.norm.weight"])
    for layer in range(HALF_BILLION.layers):
        for name, theirs in OF_LAYER.items():
            for part in ("weight", "bias"):
                tensor = tensors.get(f"model.layers.{layer}.{theirs}.{part}")
                title = f"blk.{layer}.{name}.{part}"
                if tensor is not None and tensor.dim() == 2:
                    _add_matrix(writer, title, tensor, quantization)
                elif tensor is not None:
                    _add_vector(writer, title, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_matrix(
    writer: gguf.GGUFWriter, name: str, tensor: Tensor, kind: gguf.GGMLQuantizationType
) -> None:
    writer.add_tensor(name, gguf.quants.quantize(tensor.float().numpy(), kind), raw_dtype=kind)


def _add_vector(writer: gguf.GGUFWriter, name: str, tensor: Tensor) -> None:
    writer.add_tensor(name, tensor.float().numpy().astype(np.float32))


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Bytes and names of tokens: nobody asks in text, but files without one are refused."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [chr(256 + number) for number in range(256 - len(printable))]
    tokens = [*map(chr, printable), *others]
    merged = tokens[0] + tokens[1]
    tokens.append(merged)
    tokens += [f"<{number}>" for number in range(len(tokens), HALF_BILLION.vocabulary_tokens)]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([normal] * (len(tokens) - 1) + [control])
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_pad_token_id(len(tokens) - 1)
