"""Reads slices of matrices that `contract` describes: their codes with scales, or their values.

Axes: N output features, C input features, G groups along C.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.coded import CodedWeight
from tandem.models.formats.contract import (
    FloatMatrix,
    IntegerMatrix,
    Integers,
    Scales,
    cut_size,
    groups,
)

SIGN_BIT = 128
EXPONENT_BIAS = 127


class Tensors(Protocol):
    """The files of a checkpoint."""

    def stored(self, name: str, *spans: slice) -> Tensor:
        """A slice of a tensor as it is stored, on the CPU; read-only."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """A slice of an axis."""

    start: int
    stop: int

    @classmethod
    def of(cls, wanted: slice, extent: int) -> "Span":
        start, stop, _ = wanted.indices(extent)
        return cls(start, max(start, stop))

    @property
    def slice(self) -> slice:
        return slice(self.start, self.stop)

    def over(self, each: int) -> "Span":
        """The groups of `each` that it touches."""
        return Span(self.start // each, -(-self.stop // each))

    def groups(self, each: int, size: int = 1) -> Tensor:
        """In which of the touched groups of `each` lie the stretches of `size`."""
        return torch.arange(self.start, self.stop, size) // each - self.start // each

    def spread(self, numbers_NG: Tensor, each: int) -> Tensor:
        """[N, C], of numbers of all touched groups of `each`."""
        if self.start % each == 0:
            return numbers_NG.repeat_interleave(each, 1)[:, : self.stop - self.start]
        return numbers_NG.index_select(1, self.groups(each))


def code_slice(
    matrix: IntegerMatrix, tensors: Tensors, rows: slice, columns: slice
) -> CodedWeight | None:
    """Codes of a slice, in smaller groups where it cuts those of the matrix. None where groups are
    not in order."""
    if not _in_order(matrix, tensors):
        return None
    outputs, inputs = matrix.shape
    span_N, span_C = Span.of(rows, outputs), Span.of(columns, inputs)
    scale_NG, zero_NG = _scales_and_zeros(matrix, tensors, span_N, span_C.over(matrix.size))
    size = cut_size(matrix.size, span_C.start, span_C.stop, inputs)
    if matrix.size < inputs:
        group_G = span_C.groups(matrix.size, size)
        scale_NG = scale_NG[:, group_G]
        zero_NG = None if zero_NG is None else zero_NG[:, group_G]
    middle = 1 << (matrix.bits - 1)
    offset_NG = None
    if zero_NG is not None and bool((zero_NG != middle).any()):
        offset_NG = scale_NG * (middle - zero_NG)
    codes_NC = _integers(matrix.codes, tensors, span_N, span_C)
    return CodedWeight(codes_NC, scale_NG, offset_NG, middle, matrix.bits, size)


def integer_values(matrix: IntegerMatrix, tensors: Tensors, rows: slice, columns: slice) -> Tensor:
    """Values [N, C] of a slice, float32, each rounded once: of its scale times a whole number."""
    outputs, inputs = matrix.shape
    span_N, span_C = Span.of(rows, outputs), Span.of(columns, inputs)
    codes_NC = _integers(matrix.codes, tensors, span_N, span_C)
    if _in_order(matrix, tensors):
        touched = span_C.over(matrix.size)
        scale, zero = _scales_and_zeros(matrix, tensors, span_N, touched)
        scale_NC = span_C.spread(scale, matrix.size)
        zero_NC = None if zero is None else span_C.spread(zero, matrix.size)
    else:
        every = Span(0, groups(inputs, matrix.size))
        group_C = _group_of_input(matrix, tensors, span_C, every.stop)
        scale, zero = _scales_and_zeros(matrix, tensors, span_N, every)
        scale_NC = scale.index_select(1, group_C)
        zero_NC = None if zero is None else zero.index_select(1, group_C)
    values_NC = codes_NC.to(torch.float32, memory_format=torch.contiguous_format)
    values_NC -= 1 << (matrix.bits - 1) if zero_NC is None else zero_NC
    return values_NC.mul_(scale_NC)


def float_values(matrix: FloatMatrix, tensors: Tensors, rows: slice, columns: slice) -> Tensor:
    """Values [N, C] of a slice, float32."""
    (outputs, inputs), (block_N, block_C) = matrix.shape, matrix.block
    span_N, span_C = Span.of(rows, outputs), Span.of(columns, inputs)
    values_NC = tensors.stored(matrix.values, span_N.slice, span_C.slice).to(torch.float32)
    scale = _scales(matrix.scales, tensors, span_N.over(block_N), span_C.over(block_C))
    return values_NC.mul_(span_C.spread(scale[span_N.groups(block_N)], block_C))


def _in_order(matrix: IntegerMatrix, tensors: Tensors) -> bool:
    """Whether group g has the inputs from g * size on."""
    if not matrix.group_of_input:
        return True
    group_C = tensors.stored(matrix.group_of_input, slice(None))
    return torch.equal(group_C.long(), torch.arange(len(group_C)) // matrix.size)


def _group_of_input(matrix: IntegerMatrix, tensors: Tensors, columns: Span, count: int) -> Tensor:
    """[C], below `count`. Raises `InvalidConfiguration`."""
    group_C = tensors.stored(matrix.group_of_input, columns.slice).long()
    if len(group_C) and not 0 <= int(group_C.min()) <= int(group_C.max()) < count:
        raise InvalidConfiguration(
            f"{matrix.group_of_input} names groups beyond the {count} that there are"
        )
    return group_C


def _scales_and_zeros(
    matrix: IntegerMatrix, tensors: Tensors, rows: Span, touched: Span
) -> tuple[Tensor, Tensor | None]:
    """Both [N, G], float32."""
    scale_NG = _scales(matrix.scales, tensors, rows, touched)
    if matrix.zeros is None:
        return scale_NG, None
    zero_NG = _integers(matrix.zeros, tensors, rows, touched).to(torch.float32)
    return scale_NG, zero_NG


def _scales(scales: Scales, tensors: Tensors, rows: Span, columns: Span) -> Tensor:
    """[N, G], float32."""
    if scales.single:
        found = _number(scales.name, tensors).expand(
            rows.stop - rows.start, columns.stop - columns.start
        )
    else:
        spans = (columns, rows) if scales.transposed else (rows, columns)
        found = tensors.stored(scales.name, *(span.slice for span in spans))
        found = found.T if scales.transposed else found
    if scales.exponents:
        found = torch.exp2(found.to(torch.float32) - EXPONENT_BIAS)
    found = found.to(torch.float32) * scales.factor
    return found / _number(scales.divisor, tensors) if scales.divisor else found


def _number(name: str, tensors: Tensors) -> Tensor:
    return tensors.stored(name).to(torch.float32).reshape(())


def _integers(stored: Integers, tensors: Tensors, rows: Span, columns: Span) -> Tensor:
    """[N, columns], uint8."""
    spans = [columns, rows] if stored.transposed else [rows, columns]
    if stored.packed is None:
        signed = tensors.stored(stored.name, *(span.slice for span in spans))
        codes = signed.view(torch.uint8) ^ SIGN_BIT
        codes = codes - (SIGN_BIT - (1 << (stored.bits - 1)))
    else:
        axis = int((stored.packed == "inputs") is not stored.transposed)
        codes = _unpacked(stored, tensors, spans, axis)
    if stored.levels:
        codes = torch.tensor(stored.levels, dtype=torch.uint8)[codes.long()]
    return codes.T if stored.transposed else codes


def _unpacked(stored: Integers, tensors: Tensors, spans: list[Span], axis: int) -> Tensor:
    """The spans of what shares words along an axis. Words have their lowest byte first, as all
    processors that Tandem runs on have them."""
    each = _places(stored, tensors)
    wanted = spans[axis]
    words = [span.over(each) if index == axis else span for index, span in enumerate(spans)]
    raw = tensors.stored(stored.name, *(span.slice for span in words)).contiguous()
    if stored.plus:
        raw = raw + sum(stored.plus << (stored.bits * place) for place in range(each))
    fields = raw.view(torch.uint8).view(*raw.shape, raw.element_size())
    if stored.bits == 4:
        fields = torch.stack((fields & 0x0F, fields >> 4), dim=-1).flatten(-2)
    if stored.order:
        places = sorted(range(each), key=stored.order.__getitem__)
        fields = fields[..., places]
    along = fields.transpose(1, 2).flatten(0, 1) if axis == 0 else fields.flatten(1)
    return along.narrow(axis, wanted.start % each, wanted.stop - wanted.start)


def _places(stored: Integers, tensors: Tensors) -> int:
    """How many share a word."""
    word = tensors.stored(stored.name, slice(0, 0))
    return word.element_size() * 8 // stored.bits
