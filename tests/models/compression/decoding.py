"""Decodes compressed-tensors folders bit by bit, as the format is described, without a line of what
writes them."""

import json
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor


def unpack(words: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Signed integers [rows, count] of int32 words [rows, W]."""
    rows = []
    for row in words.tolist():
        whole = sum((word & 0xFFFFFFFF) << (32 * place) for place, word in enumerate(row))
        mask, half = (1 << bits) - 1, 1 << (bits - 1)
        rows.append([((whole >> (bits * place)) & mask) - half for place in range(count)])
    return np.array(rows)


def files_of(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, through the index if there is one."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return load_file(folder / "model.safetensors")
    weight_map = json.loads(index.read_text())["weight_map"]
    files = {name: load_file(folder / name) for name in set(weight_map.values())}
    assert sum(map(len, files.values())) == len(weight_map)
    return {name: files[file_name][name] for name, file_name in weight_map.items()}


def decoded(folder: Path) -> dict[str, Tensor]:
    """Every tensor under the name that it had in the original, matrices as float32."""
    tensors = files_of(folder)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    bits = config["config_groups"]["group_0"]["weights"]["num_bits"]
    result = {}
    for name, tensor in tensors.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight_packed":
            rows, columns = tensors[f"{module}.weight_shape"].tolist()
            codes = unpack(tensor.numpy(), bits, columns)
            assert codes.shape == (rows, columns)
            result[f"{module}.weight"] = _scaled(codes, tensors, module, bits)
        elif kind == "weight" and tensor.dtype is torch.int8:
            result[name] = _scaled(tensor.numpy().astype(int), tensors, module, bits)
        elif not kind.startswith("weight_"):
            result[name] = tensor
    return result


def _scaled(codes: np.ndarray, tensors: dict[str, Tensor], module: str, bits: int) -> Tensor:
    scale = tensors[f"{module}.weight_scale"].float().numpy()
    size = codes.shape[1] // scale.shape[1]
    zeros = np.zeros(scale.shape, dtype=int)
    if f"{module}.weight_zero_point" in tensors:
        words = tensors[f"{module}.weight_zero_point"].numpy()
        zeros = unpack(words.T, bits, codes.shape[0]).T
    values = np.empty(codes.shape, dtype=np.float32)
    for column in range(codes.shape[1]):
        group = column // size
        values[:, column] = (codes[:, column] - zeros[:, group]) * scale[:, group]
    return torch.from_numpy(values)
