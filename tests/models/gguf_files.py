"""Models as GGUF files, written by llama.cpp's own package, whose decoder of blocks is the
reference."""

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gguf
from gguf import GGMLQuantizationType as Type
from tandem.models.directory import Fields, read_fields

FLOAT_TYPES = (Type.F32, Type.F16, Type.BF16)
CODED_TYPES = (
    *(Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1),
    *(Type.Q4_K, Type.Q5_K, Type.Q6_K),
)
# Where the float16 scales lie in a block of each type.
SCALES_AT = {
    **dict.fromkeys((Type.Q8_0, Type.Q4_0, Type.Q5_0), (0,)),
    **dict.fromkeys((Type.Q4_1, Type.Q5_1, Type.Q4_K, Type.Q5_K), (0, 2)),
    Type.Q6_K: (208,),
}
# The largest code of a type, times its largest scale of a group.
REACH = {
    Type.Q8_0: 127,
    Type.Q4_0: 8,
    Type.Q4_1: 15,
    Type.Q5_0: 16,
    Type.Q5_1: 31,
    Type.Q4_K: 15 * 63,
    Type.Q5_K: 31 * 63,
    Type.Q6_K: 32 * 127,
}
KINDS = {
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "gemma": gguf.MODEL_ARCH.GEMMA,
}
# Adds to the metadata of a file.
More = Callable[[gguf.GGUFWriter], None]


def random_blocks(kind: Type, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Bytes [rows, bytes of a row] that use all codes; values stay near 1 / sqrt(columns)."""
    rows, columns = shape
    size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, columns // size, block_bytes), dtype=np.uint8)
    for at in SCALES_AT[kind]:
        scales = random.uniform(0.5, 1.5, blocks.shape[:2]) * 2 / (columns**0.5 * REACH[kind])
        blocks[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def in_pairs(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head: the first half in turns with the second, as llama.cpp wants them."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def in_halves(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Undoes `in_pairs`."""
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)


def write_gguf(
    path: Path,
    checkpoint: Path,
    kind: Type = Type.F32,
    *,
    more: More = lambda writer: None,
    tensors_a_file: int = 0,
    other_kinds: Mapping[str, Type] = MappingProxyType({}),
) -> Path:
    """The model of a checkpoint's folder with its matrices as `kind`, or those whose names hold a
    word of `other_kinds` as that; quantised they are random blocks instead, since not all types can
    be made."""
    config = read_fields(checkpoint / "config.json")
    architecture = KINDS[config.text("model_type", "")]
    name = gguf.MODEL_ARCH_NAMES[architecture]
    writer = gguf.GGUFWriter(path, name, split_max_tensors=tensors_a_file)
    _add_config(writer, config)
    more(writer)
    layers = config.integer("num_hidden_layers")
    names = gguf.get_tensor_name_map(architecture, layers)
    for number, (name, tensor) in enumerate(sorted(_tensors(checkpoint).items())):
        known = names.get_name(name, (".weight", ".bias"))
        assert known is not None
        array = tensor.float().numpy()
        if architecture is gguf.MODEL_ARCH.GEMMA and name.endswith("norm.weight"):
            array = array + 1
        heads = config.integer("num_attention_heads")
        if ".k_proj" in name:
            heads = config.integer("num_key_value_heads", heads)
        turned = architecture is gguf.MODEL_ARCH.LLAMA and ("q_proj" in name or "k_proj" in name)
        if array.ndim == 1 or kind is Type.F32:
            writer.add_tensor(known, in_pairs(array, heads) if turned else array)
        elif kind in FLOAT_TYPES:
            stored = in_pairs(array, heads) if turned else array
            writer.add_tensor(known, gguf.quantize(stored, kind), raw_dtype=kind)
        else:
            own = next((other_kinds[word] for word in other_kinds if word in name), kind)
            writer.add_tensor(known, random_blocks(own, array.shape, number), raw_dtype=own)
    rope = config.group("rope_parameters")
    if rope is not None and rope.text("rope_type", "default") == "llama3":
        head_dim = config.integer("hidden_size") // config.integer("num_attention_heads")
        writer.add_tensor("rope_freqs.weight", rope_factors(rope, head_dim))
    return finish(writer, path)


def rope_factors(rope: Fields, head_dim: int) -> np.ndarray:
    """Llama 3's scaling as what each frequency is divided by."""
    factor, original = rope.number("factor"), rope.integer("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    found = []
    for pair in range(head_dim // 2):
        turns = original / (2 * math.pi * rope.number("rope_theta") ** (2 * pair / head_dim))
        kept = min(max((turns - low) / (high - low), 0), 1)
        found.append(1 / (kept + (1 - kept) / factor))
    return np.array(found, np.float32)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_decoded(directory: Path, path: Path, checkpoint: Path) -> Path:
    """The folder of the model in a GGUF file, as the reference decodes it, in float32."""
    config = read_fields(checkpoint / "config.json")
    layers, heads = config.integer("num_hidden_layers"), config.integer("num_attention_heads")
    architecture = KINDS[config.text("model_type", "")]
    names = gguf.get_tensor_name_map(architecture, layers)
    stored = {each.name: each for each in gguf.GGUFReader(path).tensors}
    tensors = {}
    for name in _tensors(checkpoint):
        found = stored[names.get_name(name, (".weight", ".bias"))]
        values = gguf.dequantize(found.data, found.tensor_type)
        if architecture is gguf.MODEL_ARCH.LLAMA and "q_proj" in name:
            values = in_halves(values, heads)
        if architecture is gguf.MODEL_ARCH.LLAMA and "k_proj" in name:
            values = in_halves(values, config.integer("num_key_value_heads", heads))
        tensors[name] = torch.from_numpy(values.copy())
    directory.mkdir()
    shutil.copyfile(checkpoint / "config.json", directory / "config.json")
    save_file(tensors, directory / "model.safetensors")
    return directory


def _add_config(writer: gguf.GGUFWriter, config: Fields) -> None:
    heads = config.integer("num_attention_heads")
    writer.add_context_length(config.integer("max_position_embeddings"))
    writer.add_embedding_length(config.integer("hidden_size"))
    writer.add_block_count(config.integer("num_hidden_layers"))
    writer.add_feed_forward_length(config.integer("intermediate_size"))
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.integer("num_key_value_heads", heads))
    writer.add_layer_norm_rms_eps(config.number("rms_norm_eps"))
    if config.has("head_dim"):
        writer.add_key_length(config.integer("head_dim"))
        writer.add_value_length(config.integer("head_dim"))
        writer.add_rope_dimension_count(config.integer("head_dim"))
    rope = config.group("rope_parameters") or config
    writer.add_rope_freq_base(rope.number("rope_theta"))
    kind = rope.text("rope_type", "default")
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope.number("factor"))
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope.integer("original_max_position_embeddings"))
    if config.text("model_type", "") == "mistral" and config.has("sliding_window"):
        writer.add_sliding_window(config.integer("sliding_window"))


def _tensors(checkpoint: Path) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in checkpoint.glob("*.safetensors"):
        found |= load_file(path)
    return found
