"""The metadata of a GGUF file as the config.json that its model has in the Hugging Face layout, so
that one reader makes a description of both. Errors name the keys of the file.

Needs no torch.
"""

import math
from pathlib import Path
from typing import NoReturn

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.file import GgufFile
from tandem.models.directory import Fields
from tandem.models.gguf.checkpoint import ROPE_FACTORS, GgufCheckpoint, open_checkpoint

# By `general.architecture`; llama.cpp calls Mistral a llama.
ARCHITECTURES = {
    "gemma": "GemmaForCausalLM",
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
FIRST_LAYER = "model.layers.0"
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Frequencies of half the dimensions of a head.
MOST_FACTORS = 4096


def read_gguf_config(path: Path) -> Fields:
    """What the config.json of the model would say. Raises `InvalidConfiguration`."""
    checkpoint = open_checkpoint(path)
    name = checkpoint.architecture
    if name not in ARCHITECTURES:
        raise InvalidConfiguration(
            f"{checkpoint.path}: general.architecture is {name!r}, which is not supported; "
            f"expected one of {', '.join(sorted(ARCHITECTURES))}"
        )
    keys = _Keys(checkpoint.metadata, name)
    tensors = checkpoint.tensors
    heads = keys.whole("attention.head_count")
    config: dict[str, object] = {
        "architectures": [ARCHITECTURES[name]],
        "hidden_size": keys.whole("embedding_length"),
        "num_hidden_layers": _layers(keys, checkpoint),
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "max_position_embeddings": keys.whole("context_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "vocab_size": _vocabulary_tokens(checkpoint),
        "tie_word_embeddings": HEAD not in tensors,
        "attention_bias": f"{FIRST_LAYER}.self_attn.q_proj.bias" in tensors,
        "mlp_bias": f"{FIRST_LAYER}.mlp.up_proj.bias" in tensors,
        "dtype": _dtype(checkpoint),
        **_rope(keys, checkpoint),
    }
    if keys.whole("expert_count", 0):
        keys.refuse("expert_count", "none; Tandem cannot run mixtures of experts")
    head_dim = keys.head_dim(heads)
    config["head_dim"] = head_dim
    if keys.whole("attention.value_length", head_dim) != head_dim:
        keys.refuse("attention.value_length", f"{head_dim}, as attention.key_length is")
    window_tokens = keys.whole("attention.sliding_window", 0)
    if window_tokens and name != "llama":
        keys.refuse("attention.sliding_window", f"none; which layers of a {name} have it is unsaid")
    if window_tokens:
        config |= {"architectures": ["MistralForCausalLM"], "sliding_window": window_tokens}
    return Fields(str(checkpoint.path), config)


class _Keys:
    """The keys of an architecture, without its name."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.file, self.architecture = file, architecture

    def has(self, key: str) -> bool:
        return self.file.has(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        """One number, or one for each layer if all are the same."""
        full = f"{self.architecture}.{key}"
        if full not in self.file.arrays:
            return self.file.whole(full, default)
        found = set(self.file.numbers(full))
        if len(found) != 1 or not isinstance(value := found.pop(), int) or value < 0:
            self.file.refuse(full, "one number for all layers")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        return self.file.number(f"{self.architecture}.{key}", default)

    def text(self, key: str, default: str) -> str:
        return self.file.text(f"{self.architecture}.{key}", default)

    def refuse(self, key: str, expected: str) -> NoReturn:
        self.file.refuse(f"{self.architecture}.{key}", expected)

    def head_dim(self, heads: int) -> int:
        if self.has("attention.key_length"):
            return self.whole("attention.key_length")
        hidden_features = self.whole("embedding_length")
        if not heads or hidden_features % heads:
            self.refuse("attention.head_count", f"a divisor of {hidden_features} features")
        return hidden_features // heads


def _layers(keys: _Keys, checkpoint: GgufCheckpoint) -> int:
    layers = keys.whole("block_count")
    # Descriptions of models are as long as they have layers.
    if layers > len(checkpoint.tensors):
        keys.refuse("block_count", f"fewer, as there are {len(checkpoint.tensors):,} tensors")
    return layers


def _vocabulary_tokens(checkpoint: GgufCheckpoint) -> int:
    embedding = checkpoint.tensors.get(EMBEDDING)
    if embedding is None or len(embedding.place.shape) != 2:
        raise InvalidConfiguration(
            f"{checkpoint.path}: there is no matrix token_embd.weight; the file holds no whole "
            "model (the first of several files is to be named)"
        )
    return embedding.place.shape[0]


def _dtype(checkpoint: GgufCheckpoint) -> str:
    """In which precision all matrices can be held without loss."""
    matrices = (each.place for each in checkpoint.tensors.values() if len(each.place.shape) > 1)
    types = {place.type.name for place in matrices}
    return DTYPES.get(types.pop(), "float32") if len(types) == 1 else "float32"


def _rope(keys: _Keys, checkpoint: GgufCheckpoint) -> dict[str, object]:
    values: dict[str, object] = {"rope_theta": keys.number("rope.freq_base", 10_000.0)}
    head_dim = keys.head_dim(keys.whole("attention.head_count"))
    rotary_dim = keys.whole("rope.dimension_count", head_dim)
    if rotary_dim != head_dim and head_dim:
        values["partial_rotary_factor"] = rotary_dim / head_dim
    kind = keys.text("rope.scaling.type", "none")
    scaling: dict[str, object] = {"rope_type": kind}
    if kind in ("linear", "yarn"):
        scaling["factor"] = keys.number("rope.scaling.factor")
    if kind == "yarn":
        scaling |= _yarn(keys)
    if ROPE_FACTORS in checkpoint.tensors:
        if kind != "none":
            keys.refuse("rope.scaling.type", f"none beside {ROPE_FACTORS}")
        scaling = {"rope_type": "factors", "factors": _rope_factors(checkpoint)}
    return values | {"rope_scaling": scaling}


def _yarn(keys: _Keys) -> dict[str, object]:
    given: dict[str, object] = {}
    if keys.has("rope.scaling.original_context_length"):
        original_tokens = keys.whole("rope.scaling.original_context_length")
        given["original_max_position_embeddings"] = original_tokens
    for name in ("beta_fast", "beta_slow"):
        if keys.has(f"rope.scaling.yarn_{name}"):
            given[name] = keys.number(f"rope.scaling.yarn_{name}")
    if keys.has("rope.scaling.attn_factor"):
        # Here it multiplies what YaRN has anyway, in config.json it stands instead of it.
        usual = 1.0 + 0.1 * math.log(max(1.0, keys.number("rope.scaling.factor")))
        given["attention_factor"] = usual * keys.number("rope.scaling.attn_factor")
    return given


def _rope_factors(checkpoint: GgufCheckpoint) -> list[float]:
    """What frequencies are divided by; converters make them of Llama 3's scaling."""
    stored = checkpoint.tensors[ROPE_FACTORS]
    place = stored.place
    if place.type.name != "F32" or len(place.shape) != 1 or place.shape[0] > MOST_FACTORS:
        raise InvalidConfiguration(
            f"{stored.file.path}: {ROPE_FACTORS} is {place.type.name} of shape "
            f"{list(place.shape)}; expected F32, one for each rotated pair of a head"
        )
    piece = stored.file.data[place.start : place.start + place.bytes]
    return list(memoryview(bytes(piece)).cast("f"))
