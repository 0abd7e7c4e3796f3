"""Linear layers in plain torch, for any device and dtype; the arithmetic is that of x."""

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.errors import KernelArgumentError
from tandem.kernels.linear.contract import PackedLinear, Storage, check_linear, check_pack

FLOAT_STORAGE: dict[Storage, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
INT8_LIMIT = 127.0


def quantise_rows(weight_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 codes [N, C] and float32 scales [N]; an all-zero row gets scale 1."""
    weight = weight_NC.to(torch.float32)
    peak_N = weight.abs().amax(dim=1)
    scale_N = torch.where(peak_N > 0, peak_N / INT8_LIMIT, torch.ones_like(peak_N))
    codes_NC = torch.round(weight / scale_N[:, None]).clamp(-INT8_LIMIT, INT8_LIMIT)
    return codes_NC.to(torch.int8), scale_N


def pack(weight_NC: Tensor, bias_N: Tensor | None, storage: Storage) -> PackedLinear:
    check_pack(weight_NC, bias_N)
    scale_N = None
    if storage == "int8":
        stored, scale_N = quantise_rows(weight_NC)
    elif storage in FLOAT_STORAGE:
        stored = weight_NC.to(FLOAT_STORAGE[storage])
    else:
        raise KernelArgumentError("storage", storage, f"int8 or one of {sorted(FLOAT_STORAGE)}")
    out_features, in_features = weight_NC.shape
    return PackedLinear(
        out_features=out_features,
        in_features=in_features,
        storage=storage,
        layout="rows",
        weight=stored.contiguous(),
        scale=scale_N,
        bias=bias_N,
    )


def embed(ids_T: Tensor, packed: PackedLinear) -> Tensor:
    rows_TC = functional.embedding(ids_T, packed.weight)
    return rows_TC if packed.scale is None else rows_TC * packed.scale[ids_T, None]


def linear(x_TC: Tensor, packed: PackedLinear, out_TN: Tensor | None = None) -> Tensor:
    check_linear(x_TC, packed, "rows")
    bias_N = None if packed.bias is None else packed.bias.to(x_TC.dtype)
    weight_NC = packed.weight.to(x_TC.dtype)
    if packed.scale is None:
        y_TN = functional.linear(x_TC, weight_NC, bias_N)
    else:
        y_TN = functional.linear(x_TC, weight_NC) * packed.scale.to(x_TC.dtype)
        if bias_N is not None:
            y_TN = y_TN + bias_N
    return y_TN if out_TN is None else out_TN.copy_(y_TN)
