"""The files of one GGUF model together: one, or several that llama.cpp's `gguf-split` made; its
tensors under the names that they have in the Hugging Face layout.

Needs no torch: launchers look at headers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.file import GgufFile, TensorPlace, open_gguf
from tandem.gguf.names import first_shard, shard_paths

# What a tensor's name begins with here and in the Hugging Face layout.
_WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_OF_A_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.(weight|bias)")
# Factors of rotary frequencies, which belong to the configuration.
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor and the file it lies in, with its own name there."""

    name: str
    file: GgufFile
    place: TensorPlace


@dataclass(frozen=True, slots=True)
class GgufCheckpoint:
    """`metadata` is the first file, which says everything of the model; `tensors` are those of all
    files, by their Hugging Face name where they have one, else their own."""

    metadata: GgufFile
    tensors: Mapping[str, StoredTensor]

    @property
    def architecture(self) -> str:
        return self.metadata.text("general.architecture")

    @property
    def path(self) -> Path:
        return self.metadata.path


def open_checkpoint(path: Path) -> GgufCheckpoint:
    """Maps the files of a model, of which `path` is one, and reads their headers. Raises
    `InvalidConfiguration`."""
    paths = shard_paths(first_shard(path))
    files = [open_gguf(each) for each in paths]
    tensors: dict[str, StoredTensor] = {}
    for number, file in enumerate(files):
        stated = file.whole("split.no", 0), file.whole("split.count", 1)
        if stated != (number, len(files)) and (len(files) > 1 or stated[1] > 1):
            raise InvalidConfiguration(
                f"{file.path} says that it is file {stated[0] + 1} of {stated[1]}; expected "
                f"{number + 1} of {len(files)}, as files are named that belong together"
            )
        for name, place in file.tensors.items():
            known = hugging_face_name(name)
            if known in tensors:
                raise InvalidConfiguration(f"{file.path}: {name} stands in another file, too")
            tensors[known] = StoredTensor(name, file, place)
    expected = files[0].whole("split.tensors.count", len(tensors))
    if expected != len(tensors):
        raise InvalidConfiguration(
            f"{files[0].path}: {expected:,} tensors are promised and {len(tensors):,} there; the "
            "files are of different models"
        )
    return GgufCheckpoint(files[0], tensors)


def hugging_face_name(name: str) -> str:
    """The same, where a tensor has none."""
    stem, _, kind = name.rpartition(".")
    if stem in _WHOLE_MODEL:
        return f"{_WHOLE_MODEL[stem]}.{kind}"
    found = _LAYER.fullmatch(name)
    if found is None or found[2] not in _OF_A_LAYER:
        return name
    return f"model.layers.{found[1]}.{_OF_A_LAYER[found[2]]}.{found[3]}"


def gguf_name(name: str) -> str:
    """What a tensor of this Hugging Face name is called in GGUF files."""
    stem, _, kind = name.rpartition(".")
    for ours, theirs in _WHOLE_MODEL.items():
        if theirs == stem:
            return f"{ours}.{kind}"
    layer, _, module = stem.removeprefix("model.layers.").partition(".")
    ours = next(ours for ours, theirs in _OF_A_LAYER.items() if theirs == module)
    return f"blk.{layer}.{ours}.{kind}"
