"""Linear layers over packed weights: y = x W^T + b.

Axes: T packed tokens, N output features, C input features, P columns of a panel.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.arguments import DTYPE_CODES, require_rows, require_whole
from tandem.kernels.native import (
    Integer,
    IntegerArray,
    KernelArgumentError,
    NativeLibrary,
    Pointer,
    advise_huge_pages,
    integers,
)

Storage = Literal["float64", "float32", "bfloat16", "float16", "int8"]
Layout = Literal["rows", "panels"]

FLOAT_STORAGE: dict[Storage, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
INT8_LIMIT = 127.0
PANEL_COLUMNS = 64
PANELS_AT_ONCE = 16
# A block's tile of partial sums (256 bytes a row) should stay in the second-level cache.
MOST_ROWS = 384
LEAST_ROWS = 48
ITEMS_A_THREAD = 6
# Sharing work with another thread costs one or two microseconds: as much as so many multiply-adds.
THREAD_MULTIPLY_ADDS = 1 << 17


@dataclass(frozen=True)
class PackedLinear:
    """A weight in the order and precision that one face reads; only that face may use it.

    `rows` keeps [N, C]; `panels` keeps [ceil(N / P), C, P] with zero columns at the end.
    int8 is symmetric with one scale [N]: weight = code * scale.
    """

    out_features: int
    in_features: int
    storage: Storage
    layout: Layout
    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    @property
    def weight_bytes(self) -> int:
        return self.weight.numel() * self.weight.element_size()


class Pack(Protocol):
    def __call__(
        self, weight_NC: Tensor, bias_N: Tensor | None, storage: Storage
    ) -> PackedLinear: ...


class Linear(Protocol):
    def __call__(self, x_TC: Tensor, packed: PackedLinear) -> Tensor: ...


class Embed(Protocol):
    def __call__(self, ids_T: Tensor, packed: PackedLinear) -> Tensor:
        """rows_TC of the weight as it was before packing: a tied head serves as embedding too.

        In the storage's float precision; int64 ids [T] below N.
        """
        ...


def check_pack(weight_NC: Tensor, bias_N: Tensor | None) -> None:
    if weight_NC.dim() != 2:
        raise KernelArgumentError("weight_NC", tuple(weight_NC.shape), "two axes [N, C]")
    if bias_N is not None and tuple(bias_N.shape) != (weight_NC.shape[0],):
        raise KernelArgumentError("bias_N", tuple(bias_N.shape), f"[{weight_NC.shape[0]}]")


def check_linear(x_TC: Tensor, packed: PackedLinear, layout: Layout) -> None:
    if packed.layout != layout:
        raise KernelArgumentError(
            "packed.layout", packed.layout, f"{layout}, as packed by the same Kernels object"
        )
    if x_TC.dim() != 2 or x_TC.shape[1] != packed.in_features:
        raise KernelArgumentError("x_TC", tuple(x_TC.shape), f"[T, {packed.in_features}]")


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


def linear(x_TC: Tensor, packed: PackedLinear) -> Tensor:
    """The reference, for any device and dtype; the arithmetic is that of x."""
    check_linear(x_TC, packed, "rows")
    bias_N = None if packed.bias is None else packed.bias.to(x_TC.dtype)
    weight_NC = packed.weight.to(x_TC.dtype)
    if packed.scale is None:
        y_TN = functional.linear(x_TC, weight_NC, bias_N)
    else:
        y_TN = functional.linear(x_TC, weight_NC) * packed.scale.to(x_TC.dtype)
        if bias_N is not None:
            y_TN = y_TN + bias_N
    return y_TN


def choose_block_rows(rows: int, panels: int, threads: int) -> int:
    """Large blocks reuse a widened panel more often; enough items keep all threads busy."""
    wanted_items = ITEMS_A_THREAD * threads if threads > 1 else 1
    blocks = max(-(-rows // MOST_ROWS), -(-wanted_items // panels))
    return max(LEAST_ROWS, -(-rows // blocks))


def choose_threads(multiply_adds: int, threads: int) -> int:
    return max(1, min(threads, multiply_adds // THREAD_MULTIPLY_ADDS))


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
        dtype = torch.int8 if storage == "int8" else FLOAT_STORAGE[storage]
        packed_PCN = torch.empty((panels, in_features, PANEL_COLUMNS), dtype=dtype)
        advise_huge_pages(packed_PCN.data_ptr(), packed_PCN.nbytes)
        scales = []
        # A few panels at a time, so that packing takes little memory beside its result.
        for panel in range(0, panels, PANELS_AT_ONCE):
            rows = slice(panel * PANEL_COLUMNS, (panel + PANELS_AT_ONCE) * PANEL_COLUMNS)
            stored = pack(weight_NC[rows], None, storage)
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


class NativeLinear:
    """fp32 arithmetic, row-invariant bits. x must be float32 with contiguous features; rows may be
    strided."""

    def __init__(self, library: NativeLibrary) -> None:
        self.run = library.function(
            "tandem_linear",
            *(Pointer, Integer, Integer, Pointer, Integer, Pointer, Pointer, Pointer),
            *(Integer, Integer, Integer, Integer, Integer),
        )

    def __call__(self, x_TC: Tensor, packed: PackedLinear) -> Tensor:
        check_linear(x_TC, packed, "panels")
        require_rows("x_TC", x_TC)
        rows = x_TC.shape[0]
        out_TN = torch.empty(rows, packed.out_features)
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
