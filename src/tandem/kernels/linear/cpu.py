"""The native face of linear layers: panels of 64 columns, fp32 arithmetic, row-invariant bits."""

import torch
from torch import Tensor

from tandem.kernels.errors import KernelArgumentError
from tandem.kernels.linear import reference
from tandem.kernels.linear.choose import choose_block_rows, choose_threads
from tandem.kernels.linear.contract import PackedLinear, Storage, check_linear, check_pack
from tandem.kernels.native.arguments import DTYPE_CODES, require_rows, require_whole
from tandem.kernels.native.library import (
    Integer,
    IntegerArray,
    NativeLibrary,
    Pointer,
    integers,
)
from tandem.kernels.native.pages import advise_huge_pages

PANEL_COLUMNS = 64
PANELS_AT_ONCE = 16


class NativePack:
    """Rows first, then panels of 64 columns; panels of float64 do not exist."""

    def __init__(self, library: NativeLibrary) -> None:
        self._run = library.function(
            "tandem_pack",
            *(Pointer, Integer, Integer, Integer, Integer, IntegerArray, Pointer, Integer),
        )
        plain = torch.arange(PANEL_COLUMNS)[None, None]
        paired = interleave_halves(plain, library.number("tandem_lanes"))
        self._plain, self._paired = (integers(*each.flatten().tolist()) for each in (plain, paired))

    def __call__(self, weight_NC: Tensor, bias_N: Tensor | None, storage: Storage) -> PackedLinear:
        if storage == "float64":
            raise KernelArgumentError("storage", storage, "float32 or narrower on the native face")
        check_pack(weight_NC, bias_N)
        out_features, in_features = weight_NC.shape
        panels = -(-out_features // PANEL_COLUMNS)
        dtype = torch.int8 if storage == "int8" else reference.FLOAT_STORAGE[storage]
        packed_PCN = torch.empty((panels, in_features, PANEL_COLUMNS), dtype=dtype)
        advise_huge_pages(packed_PCN.data_ptr(), packed_PCN.nbytes)
        scales = []
        # A few panels at a time, so that packing takes little memory beside its result.
        for panel in range(0, panels, PANELS_AT_ONCE):
            rows = slice(panel * PANEL_COLUMNS, (panel + PANELS_AT_ONCE) * PANEL_COLUMNS)
            stored = reference.pack(weight_NC[rows], None, storage)
            self._into_panels(stored, packed_PCN[panel : panel + PANELS_AT_ONCE])
            scales.append(stored.scale)
        return PackedLinear(
            out_features=out_features,
            in_features=in_features,
            storage=storage,
            layout="panels",
            weight=packed_PCN,
            scale=torch.cat([s for s in scales if s is not None]) if storage == "int8" else None,
            bias=None if bias_N is None else bias_N.to(torch.float32).contiguous(),
        )

    def _into_panels(self, rows: PackedLinear, panel_PCN: Tensor) -> None:
        require_whole("rows.weight", rows.weight, rows.weight.dtype)
        elements = rows.weight.numel()
        self._run(
            rows.weight.data_ptr(),
            rows.weight.stride(0),
            rows.out_features,
            rows.in_features,
            rows.weight.element_size(),
            self._paired if rows.storage == "bfloat16" else self._plain,
            panel_PCN.data_ptr(),
            choose_threads(elements, torch.get_num_threads()),
        )


def interleave_halves(panel_PCN: Tensor, lanes: int) -> Tensor:
    """Columns j and j + lanes of each run become neighbours: one load gives both."""
    panels, in_features, _ = panel_PCN.shape
    runs = panel_PCN.reshape(panels, in_features, PANEL_COLUMNS // (2 * lanes), 2, lanes)
    return runs.transpose(3, 4).flatten(2)


class NativeEmbed:
    """Gathers columns of panels; a step embeds few tokens, so their stride does not matter."""

    def __init__(self, library: NativeLibrary) -> None:
        plain = torch.arange(PANEL_COLUMNS)[None, None]
        order = interleave_halves(plain, library.number("tandem_lanes")).flatten()
        self._plain_place = plain.flatten()
        self._interleaved_place = order.argsort()

    def __call__(self, ids_T: Tensor, packed: PackedLinear) -> Tensor:
        interleaved = packed.storage == "bfloat16"
        place = self._interleaved_place if interleaved else self._plain_place
        columns_T = place[ids_T % PANEL_COLUMNS]
        rows_TC = packed.weight[ids_T // PANEL_COLUMNS, :, columns_T]
        return rows_TC if packed.scale is None else rows_TC * packed.scale[ids_T, None]


def require_output(out_TN: Tensor, rows: int, out_features: int) -> None:
    require_rows("out_TN", out_TN)
    if tuple(out_TN.shape) != (rows, out_features):
        raise KernelArgumentError("out_TN", tuple(out_TN.shape), f"[{rows}, {out_features}]")


class NativeLinear:
    """x must be float32 with contiguous features; rows may be strided."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_linear",
            *(Pointer, Integer, Integer, Pointer, Integer, Pointer, Pointer, Pointer),
            *(Integer, Integer, Integer, Integer, Integer),
        )

    def __call__(self, x_TC: Tensor, packed: PackedLinear, out_TN: Tensor | None = None) -> Tensor:
        check_linear(x_TC, packed, "panels")
        require_rows("x_TC", x_TC)
        rows = x_TC.shape[0]
        if out_TN is None:
            out_TN = torch.empty(rows, packed.out_features)
        else:
            require_output(out_TN, rows, packed.out_features)
        multiply_adds = rows * packed.in_features * packed.out_features
        threads = choose_threads(multiply_adds, torch.get_num_threads())
        weight, scale, bias = packed.weight, packed.scale, packed.bias
        self.run(
            x_TC.data_ptr(),
            x_TC.stride(0),
            rows,
            weight.data_ptr(),
            DTYPE_CODES[weight.dtype],
            None if scale is None else scale.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out_TN.data_ptr(),
            out_TN.stride(0),
            packed.in_features,
            packed.out_features,
            choose_block_rows(rows, weight.shape[0], threads),
            threads,
        )
        return out_TN
