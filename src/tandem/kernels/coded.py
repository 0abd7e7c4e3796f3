"""Weights as codes of eight or four bits, with a scale (and an offset) for each group of inputs.

Products are of bytes where the processor has instructions for that: each row of x is coded in the
same groups, symmetrically with 8 bits, as llama.cpp does; sums of a group are exact, and those of
all groups are float32. Elsewhere products are in float32.

Axes: T packed tokens, N output features, C input features, G groups along C, P columns of a panel.
"""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tandem.kernels.arguments import require_rows
from tandem.kernels.native import (
    Integer,
    KernelArgumentError,
    NativeLibrary,
    Pointer,
    advise_huge_pages,
)
from tandem.kernels.packed import PANEL_COLUMNS, Groups, PackedLinear, Storage

Bits = Literal[4, 8]
STORAGE_OF_BITS: dict[int, Storage] = {4: "int4", 8: "int8"}
# In which x is coded where a weight has one scale a column.
X_GROUP = 128
PANELS_AT_ONCE = 16


@dataclass(frozen=True)
class CodedWeight:
    """weight[n, c] = scale[n, g] * (code[n, c] - zero) + offset[n, g] with g = c // size.

    Codes [N, C] are uint8 below 2 ** bits, and below `levels` where these are fewer; scale and
    offset are float32 [N, G]. A `size` of at least C is one scale a row.
    """

    codes: Tensor
    scale: Tensor
    offset: Tensor | None
    zero: int
    bits: Bits
    size: int
    levels: int | None = None

    def __post_init__(self) -> None:
        rows, columns = self.codes.shape
        groups = -(-columns // self.size)
        for name, each in (("scale", self.scale), ("offset", self.offset)):
            if each is not None and tuple(each.shape) != (rows, groups):
                raise KernelArgumentError(name, tuple(each.shape), f"[{rows}, {groups}]")

    @property
    def whole_rows(self) -> bool:
        return self.size >= self.codes.shape[1]

    def rows(self, rows: slice | Tensor) -> "CodedWeight":
        offset = None if self.offset is None else self.offset[rows]
        return replace(self, codes=self.codes[rows], scale=self.scale[rows], offset=offset)

    def values(self) -> Tensor:
        """The weight itself [N, C], float32."""
        rows, columns = self.codes.shape
        size, groups = min(self.size, columns), self.scale.shape[1]
        padded_NC = functional.pad(self.codes, (0, groups * size - columns))
        values_NGS = padded_NC.to(torch.float32).view(rows, groups, size)
        values_NGS.sub_(self.zero).mul_(self.scale[..., None])
        if self.offset is not None:
            values_NGS.add_(self.offset[..., None])
        return values_NGS.view(rows, groups * size)[:, :columns]


class PackCoded(Protocol):
    def __call__(self, coded: CodedWeight, bias_N: Tensor | None) -> PackedLinear: ...


def power_above(scale_NG: Tensor) -> Tensor:
    """Of each row [N] the power of two above all its numbers: dividing by it rounds nothing."""
    peak_N = scale_NG.abs().amax(dim=1).to(torch.float32)
    return torch.exp2(torch.ceil(torch.log2(torch.where(peak_N > 0, peak_N, 1.0))))


def pack_coded(coded: CodedWeight, bias_N: Tensor | None) -> PackedLinear:
    """For the reference face."""
    out_features, in_features = coded.codes.shape
    return PackedLinear(
        out_features=out_features,
        in_features=in_features,
        storage=STORAGE_OF_BITS[coded.bits],
        layout="rows",
        weight=coded.codes.contiguous(),
        scale=None,
        bias=bias_N,
        groups=Groups(coded.size, coded.bits, coded.zero, coded.scale, coded.offset),
    )


def coded_of(packed: PackedLinear) -> CodedWeight:
    """What the reference face has packed."""
    groups = packed.groups
    assert groups is not None and groups.scale is not None
    bits: Bits = 4 if groups.bits == 4 else 8
    return CodedWeight(packed.weight, groups.scale, groups.offset, groups.zero, bits, groups.size)


class NativePackCoded:
    """Codes in fours of C, and float16 scales as parts of a power of two of their column."""

    def __init__(self, library: NativeLibrary) -> None:
        self._into_panels = library.function(
            "tandem_pack", *(Pointer, Integer, Integer, Integer, Integer, Pointer, Integer)
        )

    def __call__(self, coded: CodedWeight, bias_N: Tensor | None) -> PackedLinear:
        out_features, in_features = coded.codes.shape
        panels = -(-out_features // PANEL_COLUMNS)
        step = 32 // coded.bits
        if not coded.whole_rows and coded.size % step:
            raise KernelArgumentError("coded.size", coded.size, f"a multiple of {step}")
        words = -(-in_features // step)
        packed = torch.empty((panels, words, PANEL_COLUMNS, 4), dtype=torch.uint8)
        advise_huge_pages(packed.data_ptr(), packed.nbytes)
        for panel in range(0, panels, PANELS_AT_ONCE):
            rows = slice(panel * PANEL_COLUMNS, (panel + PANELS_AT_ONCE) * PANEL_COLUMNS)
            self._pack_rows(coded.rows(rows), packed[panel : panel + PANELS_AT_ONCE], step)
        if coded.whole_rows and coded.offset is None:
            column_N = coded.scale[:, 0].to(torch.float32).contiguous()
            groups = Groups(X_GROUP, coded.bits, coded.zero)
        else:
            column_N = power_above(coded.scale)
            groups = Groups(
                words * step if coded.whole_rows else coded.size,
                coded.bits,
                coded.zero,
                _in_panels(coded.scale / column_N[:, None]),
                None if coded.offset is None else _in_panels(coded.offset / column_N[:, None]),
            )
        return PackedLinear(
            out_features=out_features,
            in_features=in_features,
            storage=STORAGE_OF_BITS[coded.bits],
            layout="panels",
            weight=packed,
            scale=column_N,
            bias=None if bias_N is None else bias_N.to(torch.float32).contiguous(),
            groups=groups,
        )

    def _pack_rows(self, coded: CodedWeight, panels: Tensor, step: int) -> None:
        rows, columns = coded.codes.shape
        codes = coded.codes
        if columns % step:
            codes = functional.pad(codes, (0, -columns % step))
        words = codes.view(rows, -1).view(torch.int32)
        if coded.bits == 4:
            # Codes are below 16: shifted, none of a word's four reaches the next.
            words = words[:, 0::2] | (words[:, 1::2] << 4)
        self._into_panels(
            words.data_ptr(),
            words.stride(0),
            rows,
            words.shape[1],
            words.element_size(),
            panels.data_ptr(),
            torch.get_num_threads(),
        )


def _in_panels(numbers_NG: Tensor) -> Tensor:
    """[ceil(N / P), G, P], float16."""
    rows, groups = numbers_NG.shape
    padded = functional.pad(numbers_NG, (0, 0, 0, -rows % PANEL_COLUMNS))
    panels = padded.view(-1, PANEL_COLUMNS, groups).transpose(1, 2)
    return panels.to(torch.float16).contiguous()


class NativeCodedLinear:
    """Row-invariant bits. With `narrow` products are of bytes. x must be float32 with contiguous
    features; rows may be strided."""

    def __init__(self, library: NativeLibrary, *, narrow: bool) -> None:
        self._narrow = narrow
        self._run = library.function(
            "tandem_coded_linear",
            *(Pointer, Integer, Integer, Pointer, Integer, Integer, Integer, Pointer, Pointer),
            *(Pointer, Pointer, Integer, Pointer, Integer, Integer, Integer, Integer),
        )

    def __call__(self, x_TC: Tensor, packed: PackedLinear) -> Tensor:
        require_rows("x_TC", x_TC)
        groups, scale, bias = packed.groups, packed.scale, packed.bias
        assert groups is not None and scale is not None
        out_TN = torch.empty(x_TC.shape[0], packed.out_features)
        self._run(
            x_TC.data_ptr(),
            x_TC.stride(0),
            x_TC.shape[0],
            packed.weight.data_ptr(),
            groups.bits,
            groups.size,
            groups.zero,
            None if groups.scale is None else groups.scale.data_ptr(),
            None if groups.offset is None else groups.offset.data_ptr(),
            scale.data_ptr(),
            None if bias is None else bias.data_ptr(),
            self._narrow,
            out_TN.data_ptr(),
            out_TN.stride(0),
            packed.in_features,
            packed.out_features,
            torch.get_num_threads(),
        )
        return out_TN
