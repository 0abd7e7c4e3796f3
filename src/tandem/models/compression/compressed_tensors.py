"""The compressed-tensors format, as vLLM and transformers read it: the tensors of a coded matrix,
and what config.json says of them.

`pack-quantized` has codes, made positive, packed along the inputs into int32, the first in the
lowest bits; zero points are packed likewise, but along the outputs. `int-quantized` has int8.
Axes: N output features, C input features, G groups along C, W packed words.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from tandem.models.compression.rounding import CodedMatrix
from tandem.models.compression.scheme import Scheme

WORD_BITS = 32


def tensors_of(module: str, matrix: CodedMatrix) -> dict[str, Tensor]:
    """By name: those that take the place of `module`.weight."""
    scheme = matrix.scheme
    tensors = {"weight_scale": matrix.scale.contiguous()}
    if scheme.rounds_inputs:
        tensors["weight"] = matrix.codes.contiguous()
    else:
        tensors["weight_packed"] = pack_words(matrix.codes, scheme)
        tensors["weight_shape"] = torch.tensor(matrix.codes.shape, dtype=torch.int64)
        if matrix.zero is not None:
            packed_GW = pack_words(matrix.zero.T, scheme)
            tensors["weight_zero_point"] = packed_GW.T.contiguous()
    return {f"{module}.{name}": tensor for name, tensor in tensors.items()}


def pack_words(codes_NC: Tensor, scheme: Scheme) -> Tensor:
    """int32 [N, W] of int8 codes."""
    padding = -codes_NC.shape[1] % (WORD_BITS // scheme.bits)
    positive_NC = (codes_NC.to(torch.int16) - scheme.lowest).to(torch.uint8)
    bytes_NC = functional.pad(positive_NC, (0, padding))
    if scheme.bits == 4:
        bytes_NC = bytes_NC[:, ::2] | (bytes_NC[:, 1::2] << 4)
    # Lowest byte first, as files of safetensors are.
    return bytes_NC.contiguous().view(torch.int32)


def quantization_config(scheme: Scheme, ignored: Sequence[str]) -> dict[str, Any]:
    """For config.json; `ignored` are the names of all linear modules that stay as they were."""
    layout = "int-quantized" if scheme.rounds_inputs else "pack-quantized"
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": scheme.symmetric,
        "strategy": "channel" if scheme.group_size is None else "group",
        "group_size": scheme.group_size,
        "dynamic": False,
    }
    inputs = {
        "num_bits": 8,
        "type": "int",
        "symmetric": True,
        "strategy": "token",
        "group_size": None,
        "dynamic": True,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": layout,
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": inputs if scheme.rounds_inputs else None,
                "output_activations": None,
                "format": layout,
            }
        },
        "ignore": list(ignored),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
