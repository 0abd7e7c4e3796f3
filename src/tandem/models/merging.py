"""Writes a checkpoint whose weights are those of a model and a low-rank adapter together:
W + scaling * B A, in the precision in which W is stored. It needs no adapter any more.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from tandem.facts.errors import InvalidConfiguration
from tandem.models.adapters import AdapterFiles, read_adapter, tensor_name
from tandem.models.checkpoint import FLOATS, SafetensorsWeights, weight_files
from tandem.models.configuration import read_model_spec
from tandem.models.formats.choose import refuse_quantized
from tandem.models.new_folder import copy_texts, new_folder, require_absent
from tandem.models.parameters import all_parts, decoder_parts

TIED_HEAD = frozenset({"lm_head.weight"})


def merge_adapter(model: Path, adapter: Path, out: Path) -> int:
    """Makes the folder `out` of the folders of a model and an adapter; gives how many matrices
    were changed. One file of the checkpoint is in memory at a time. Raises `InvalidConfiguration`
    when the two do not fit, or `out` is there already."""
    require_absent(out)
    refuse_quantized(model, "tandem merge")
    spec = read_model_spec(model)
    with SafetensorsWeights(model) as checkpoint:
        ignored = TIED_HEAD if spec.tied_embeddings else frozenset()
        checkpoint.check(all_parts(decoder_parts(spec)), ignored)
    files = read_adapter(adapter, spec)
    matrices = load(files.data)
    with new_folder(out) as folder:
        for path in weight_files(model):
            if path.suffix == ".safetensors":
                tensors = load_file(path)
                _merge_into(tensors, files, matrices, path)
                save_file(tensors, folder / path.name, {"format": "pt"})
        copy_texts(model, folder)
    return len(files.linears)


def _merge_into(
    tensors: dict[str, Tensor], files: AdapterFiles, matrices: Mapping[str, Tensor], path: Path
) -> None:
    for name, linear in files.linears.items():
        stored = tensors.get(f"{name}.weight")
        if stored is None:
            continue
        if stored.dtype not in FLOATS:
            raise InvalidConfiguration(
                f"{path}: {name}.weight is stored as {stored.dtype}; only floats can be merged with"
            )
        wide = torch.promote_types(stored.dtype, torch.float32)
        down_RC, up_NR = (matrices[tensor_name(name, each)].to(wide) for each in "AB")
        merged_NC = stored.to(wide).addmm(up_NR, down_RC, alpha=linear.scaling)
        tensors[f"{name}.weight"] = merged_NC.to(stored.dtype)
