"""Linear layers over packed weights: y = x W^T + b.

Axes: T packed tokens, N output features, C input features, P columns of a panel.
"""

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.arguments import require_rows, require_whole
from tandem.kernels.coded import (
    NativeCodedLinear,
    NativePackCoded,
    coded_of,
    pack_coded,
)
from tandem.kernels.coding import NativeCode, code
from tandem.kernels.compact import NativeCompact
from tandem.kernels.native import (
    Integer,
    KernelArgumentError,
    NativeLibrary,
    Pointer,
    advise_huge_pages,
)
from tandem.kernels.packed import (
    FLOAT_STORAGE,
    PANEL_COLUMNS,
    PackedLinear,
    Storage,
    check_linear,
    check_pack,
)
from tandem.kernels.weight_arguments import NarrowProducts, storage_code

PANELS_AT_ONCE = 16


def pack(weight_NC: Tensor, bias_N: Tensor | None, storage: Storage) -> PackedLinear:
    check_pack(weight_NC, bias_N)
    if storage in ("int8", "int4"):
        return pack_coded(code(weight_NC, storage), bias_N)
    if storage not in FLOAT_STORAGE:
        known = f"int8, int4 or one of {sorted(FLOAT_STORAGE)}"
        raise KernelArgumentError("storage", storage, known)
    out_features, in_features = weight_NC.shape
    return PackedLinear(
        out_features=out_features,
        in_features=in_features,
        storage=storage,
        layout="rows",
        weight=weight_NC.to(FLOAT_STORAGE[storage]).contiguous(),
        scale=None,
        bias=bias_N,
    )


def embed(ids_T: Tensor, packed: PackedLinear) -> Tensor:
    if packed.groups is not None:
        return coded_of(packed).rows(ids_T).values()
    return functional.embedding(ids_T, packed.weight)


def linear(x_TC: Tensor, packed: PackedLinear) -> Tensor:
    """The reference, for any device and dtype; the arithmetic is that of x."""
    check_linear(x_TC, packed, "rows")
    bias_N = None if packed.bias is None else packed.bias.to(x_TC.dtype)
    weight_NC = packed.weight if packed.groups is None else coded_of(packed).values()
    return functional.linear(x_TC, weight_NC.to(x_TC.dtype), bias_N)


class NativePack:
    """Rows first, then panels of 64 columns; panels of float64 do not exist. With `narrow`, codes
    of eight bits are in fours, for products of bytes. bfloat16 becomes compact where the processor
    has instructions for it, unless told not to."""

    def __init__(
        self, library: NativeLibrary, *, narrow: bool = False, compact: bool = True
    ) -> None:
        self._fours = narrow and has_int8_products(library)
        self._compact = NativeCompact(library) if compact else None
        self._code = NativeCode(library)
        self._pack_coded = NativePackCoded(library)
        self._run = library.function(
            "tandem_pack", *(Pointer, Integer, Integer, Integer, Integer, Pointer, Integer)
        )

    def __call__(self, weight_NC: Tensor, bias_N: Tensor | None, storage: Storage) -> PackedLinear:
        if storage == "float64":
            raise KernelArgumentError("storage", storage, "float32 or narrower on the native face")
        check_pack(weight_NC, bias_N)
        if storage == "int4" or (storage == "int8" and self._fours):
            return self._pack_coded(self._code(weight_NC, storage), bias_N)
        out_features, in_features = weight_NC.shape
        panels = -(-out_features // PANEL_COLUMNS)
        bias = None if bias_N is None else bias_N.to(torch.float32).contiguous()
        if storage == "bfloat16" and self._compact is not None:
            compact = self._compact(weight_NC)
            if compact is not None:
                return PackedLinear(
                    out_features, in_features, storage, "panels", compact, None, bias, compact=True
                )
        shape: tuple[int, ...] = (panels, in_features, PANEL_COLUMNS)
        if storage == "bfloat16":
            shape = (panels, -(-in_features // 2), PANEL_COLUMNS, 2)
        packed = torch.empty(
            shape, dtype=torch.int8 if storage == "int8" else FLOAT_STORAGE[storage]
        )
        advise_huge_pages(packed.data_ptr(), packed.nbytes)
        scales = []
        # A few panels at a time, so that packing takes little memory beside its result.
        for panel in range(0, panels, PANELS_AT_ONCE):
            rows = slice(panel * PANEL_COLUMNS, (panel + PANELS_AT_ONCE) * PANEL_COLUMNS)
            stored_NC = weight_NC[rows]
            if storage == "int8":
                coded = self._code(stored_NC, storage)
                stored_NC = (coded.codes ^ 128).view(torch.int8)
                scales.append(coded.scale[:, 0])
            else:
                stored_NC = stored_NC.to(FLOAT_STORAGE[storage]).contiguous()
            self._into_panels(stored_NC, packed[panel : panel + PANELS_AT_ONCE])
        return PackedLinear(
            out_features=out_features,
            in_features=in_features,
            storage=storage,
            layout="panels",
            weight=packed,
            scale=torch.cat(scales) if scales else None,
            bias=bias,
        )

    def _into_panels(self, stored_NC: Tensor, panels: Tensor) -> None:
        if stored_NC.dtype is torch.bfloat16:
            # A pair of values is moved as one.
            if stored_NC.shape[1] % 2:
                stored_NC = functional.pad(stored_NC, (0, 1))
            stored_NC = stored_NC.view(torch.int32)
        require_whole("stored_NC", stored_NC, stored_NC.dtype)
        self._run(
            stored_NC.data_ptr(),
            stored_NC.stride(0),
            stored_NC.shape[0],
            stored_NC.shape[1],
            stored_NC.element_size(),
            panels.data_ptr(),
            torch.get_num_threads(),
        )


class NativeEmbed:
    """A step embeds few tokens, so that their stride in panels does not matter."""

    def __init__(self, library: NativeLibrary) -> None:
        self._run = library.function("tandem_embed", Pointer, Integer, Pointer, Pointer)

    def __call__(self, ids_T: Tensor, packed: PackedLinear) -> Tensor:
        require_whole("ids_T", ids_T, torch.int64)
        weight = NarrowProducts(bf16=False, coded=False).arguments(packed)
        rows_TC = torch.empty(len(ids_T), packed.in_features)
        self._run(ids_T.data_ptr(), len(ids_T), ctypes.addressof(weight), rows_TC.data_ptr())
        return rows_TC


def has_bf16_products(library: NativeLibrary) -> bool:
    """Whether the processor multiplies in bfloat16."""
    return bool(library.number("tandem_bf16_products"))


def has_int8_products(library: NativeLibrary) -> bool:
    """Whether the processor multiplies bytes, with sums in int32."""
    return bool(library.number("tandem_int8_products"))


class NativeLinear:
    """Row-invariant bits. Sums are fp32; with `narrow`, products are in the precision that weights
    are stored in where the processor multiplies in it: of x rounded to bfloat16, or coded in bytes.
    x must be float32 with contiguous features; rows may be strided."""

    def __init__(self, library: NativeLibrary, *, narrow: bool = False) -> None:
        self._narrow = narrow and has_bf16_products(library)
        self._coded = NativeCodedLinear(library, narrow=narrow and has_int8_products(library))
        self.run = library.function(
            "tandem_linear",
            *(Pointer, Integer, Integer, Pointer, Integer, Integer, Pointer, Pointer, Pointer),
            *(Integer, Integer, Integer, Integer),
        )

    def __call__(self, x_TC: Tensor, packed: PackedLinear) -> Tensor:
        check_linear(x_TC, packed, "panels")
        require_rows("x_TC", x_TC)
        if packed.groups is not None:
            return self._coded(x_TC, packed)
        weight, scale, bias = packed.weight, packed.scale, packed.bias
        out_TN = torch.empty(x_TC.shape[0], packed.out_features)
        self.run(
            x_TC.data_ptr(),
            x_TC.stride(0),
            x_TC.shape[0],
            weight.data_ptr(),
            storage_code(packed),
            self._narrow and packed.storage == "bfloat16",
            None if scale is None else scale.data_ptr(),
            None if bias is None else bias.data_ptr(),
            out_TN.data_ptr(),
            out_TN.stride(0),
            packed.in_features,
            packed.out_features,
            torch.get_num_threads(),
        )
        return out_TN
