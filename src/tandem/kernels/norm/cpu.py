"""The native face of normalisation: float32 rows whose features are contiguous."""

import torch
from torch import Tensor

from tandem.kernels.native.arguments import require_rows, require_whole
from tandem.kernels.native.library import Integer, NativeLibrary, Pointer, Real
from tandem.kernels.norm.contract import check_norm, check_residual


class NativeNorm:
    """Both operations run one C++ function; they differ in the residual alone."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_rms_norm",
            *(Pointer, Integer, Integer, Integer, Integer, Integer),
            *(Pointer, Pointer, Real, Pointer, Integer),
        )

    def rms_norm(self, x_TC: Tensor, weight_C: Tensor, eps: float) -> Tensor:
        return self.normalise(x_TC, None, weight_C, eps)

    def add_rms_norm(
        self, x_TC: Tensor, residual_TC: Tensor, weight_C: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        check_residual(x_TC, residual_TC)
        require_whole("residual_TC", residual_TC, torch.float32)
        return self.normalise(x_TC, residual_TC, weight_C, eps), residual_TC

    def normalise(
        self, x_TC: Tensor, residual_TC: Tensor | None, weight_C: Tensor, eps: float
    ) -> Tensor:
        check_norm(x_TC, weight_C)
        require_rows("x_TC", x_TC)
        require_whole("weight_C", weight_C, torch.float32)
        heads = x_TC.shape[1] if x_TC.dim() == 3 else 1
        out_TC = torch.empty(x_TC.shape)
        self.run(
            x_TC.data_ptr(),
            x_TC.stride(0),
            x_TC.stride(1),
            x_TC.shape[0] * heads,
            heads,
            weight_C.shape[0],
            None if residual_TC is None else residual_TC.data_ptr(),
            weight_C.data_ptr(),
            eps,
            out_TC.data_ptr(),
            torch.get_num_threads(),
        )
        return out_TC
