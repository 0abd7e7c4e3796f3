"""Folders of random low-rank adapters, in the form in which PEFT writes them."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from tandem.facts.adapter import Adapter
from tandem.facts.model import ModelSpec
from tandem.models.adapters import read_adapter, tensor_name
from tandem.models.parameters import decoder_parts

ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapted_shapes(spec: ModelSpec, targets: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """(outputs, inputs) of each linear that these targets name."""
    weights = [
        part
        for layer in decoder_parts(spec).layers
        for fused in (layer.qkv, layer.attention_output, layer.gate_up, layer.down)
        for part in fused.weights
    ]
    names = {part.name.removesuffix(".weight"): part.shape for part in weights}
    return {name: shape for name, shape in names.items() if name.rpartition(".")[2] in targets}


def write_adapter(
    directory: Path,
    spec: ModelSpec,
    *,
    rank: int = 4,
    seed: int = 0,
    targets: Sequence[str] = ALL_TARGETS,
    dtype: torch.dtype = torch.float32,
    strength: float = 1.0,
    **config: object,
) -> Adapter:
    """Random matrices whose product changes what a linear says about as much as it says itself."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in adapted_shapes(spec, targets).items():
        down = torch.randn(rank, inputs, generator=generator) * inputs**-0.5
        up = torch.randn(outputs, rank, generator=generator) * strength * rank**-0.5
        tensors[tensor_name(name, "A")] = down.to(dtype)
        tensors[tensor_name(name, "B")] = up.to(dtype)
    directory.mkdir(parents=True, exist_ok=True)
    save_file(tensors, directory / "adapter_model.safetensors")
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(targets),
        "bias": "none",
        **config,
    }
    (directory / "adapter_config.json").write_text(json.dumps(fields))
    return read_adapter(directory, spec).adapter
