"""What C++ takes on trust about a tensor, checked before its address is handed over."""

import torch
from torch import Tensor

from tandem.kernels.native import KernelArgumentError

# How the C++ code numbers element types.
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 3}


def require_rows(argument: str, tensor: Tensor) -> None:
    """float32 on the CPU with a contiguous last axis; the others may be strided."""
    require_strided(argument, tensor, torch.float32)


def require_strided(argument: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """A given dtype on the CPU with a contiguous last axis; the others may be strided."""
    last_stride = tensor.stride(-1) if tensor.shape[-1] > 1 else 1
    if tensor.dtype is not dtype or last_stride != 1 or not tensor.is_cpu:
        found = f"{tensor.dtype} on {tensor.device.type} with stride {last_stride}"
        raise KernelArgumentError(argument, found, f"{dtype} on cpu with a contiguous last axis")


def require_whole(argument: str, tensor: Tensor, dtype: torch.dtype) -> None:
    """One contiguous piece of a given dtype on the CPU."""
    if tensor.dtype is not dtype or not tensor.is_contiguous() or not tensor.is_cpu:
        found = f"{tensor.dtype} on {tensor.device.type} with strides {tensor.stride()}"
        raise KernelArgumentError(argument, found, f"contiguous {dtype} on cpu")


def address(tensor: Tensor | None) -> int | None:
    """Null where there is none."""
    return None if tensor is None else tensor.data_ptr()


def address_of_floats(argument: str, tensor: Tensor | None) -> int | None:
    """Of one contiguous piece of float32 on the CPU."""
    if tensor is not None:
        require_whole(argument, tensor, torch.float32)
    return address(tensor)
