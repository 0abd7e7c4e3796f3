"""Checkpoints of the library compressed-tensors, as LLM Compressor writes them: integers packed in
words or one a byte, and floats of eight or four bits.

Which matrices are quantised, and how, is told by the tensors that are there; the configuration
bounds what they may be.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tandem.facts.errors import InvalidConfiguration
from tandem.models.directory import Fields
from tandem.models.formats.contract import (
    WEIGHT,
    WORD_BITS,
    Headers,
    IntegerMatrix,
    Integers,
    Scales,
    StoredMatrix,
    expect,
    groups,
)
from tandem.models.formats.fp8 import ONE, float_matrix, read_block
from tandem.models.formats.gptq import FLOATS
from tandem.models.parameters import TensorPart

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
    "mixed-precision",
    "dense",
)
# Twice the values of FP4 (E2M1) by their four bits are whole numbers; as codes of eight bits.
MAGNITUDES = (0, 1, 2, 3, 4, 6, 8, 12)
FP4_CODES = (*(128 + each for each in MAGNITUDES), *(128 - each for each in MAGNITUDES))
MX_INPUTS, NV_INPUTS = 32, 16


@dataclass(frozen=True, slots=True)
class CompressedTensors:
    """What the groups of a configuration have: `bits` of integers, `sizes` of groups of inputs, the
    `block` of floats, and whether there are zero points (`asymmetric`)."""

    bits: tuple[int, ...]
    sizes: tuple[int, ...]
    block: tuple[int, int] | None
    asymmetric: bool

    def matrix(self, part: TensorPart, headers: Headers) -> StoredMatrix | None:
        if len(part.shape) != 2:
            return None
        module = part.name.removesuffix(WEIGHT)
        packed, whole = headers.get(f"{module}.weight_packed"), headers.get(part.name)
        if packed is not None:
            if packed.dtype == "U8":
                return _four_bit_floats(module, part, headers)
            return self._packed(module, part, headers)
        if whole is not None and whole.dtype == "I8":
            expect(headers, part.name, ("I8",), part.shape)
            return self._integers(module, part, headers, Integers(part.name, 8, None))
        if whole is not None and whole.dtype.startswith("F8"):
            return float_matrix(part, headers, self.block)
        return None

    def _packed(self, module: str, part: TensorPart, headers: Headers) -> IntegerMatrix:
        outputs, inputs = part.shape
        name = f"{module}.weight_packed"
        words = {bits: -(-inputs * bits // WORD_BITS) for bits in self.bits or (4,)}
        bits = next((each for each in words if headers[name].shape == (outputs, words[each])), 0)
        if not bits:
            expect(headers, name, ("I32",), (outputs, next(iter(words.values()))))
        expect(headers, name, ("I32",), (outputs, words[bits]))
        return self._integers(module, part, headers, Integers(name, bits, "inputs"))

    def _integers(
        self, module: str, part: TensorPart, headers: Headers, codes: Integers
    ) -> IntegerMatrix:
        outputs, inputs = part.shape
        bits: Literal[4, 8] = 4 if codes.bits == 4 else 8
        scales = f"{module}.weight_scale"
        single = scales in headers and headers[scales].shape in ONE
        size = inputs if single else self._size(scales, headers, inputs)
        count = groups(inputs, size)
        if not single:
            expect(headers, scales, FLOATS, (outputs, count))
        order = f"{module}.weight_g_idx"
        order = order if order in headers else ""
        if order:
            expect(headers, order, ("I32", "I64"), (inputs,))
        return IntegerMatrix(
            (outputs, inputs),
            bits,
            size,
            codes,
            Scales(scales, single=single),
            self._zeros(f"{module}.weight_zero_point", headers, bits, (outputs, count)),
            group_of_input=order,
            reordered=bool(order) and count > 1,
        )

    def _size(self, scales: str, headers: Headers, inputs: int) -> int:
        found = headers.get(scales)
        if found is not None and len(found.shape) == 2 and found.shape[1] > 1:
            fitting = (each for each in self.sizes if groups(inputs, each) == found.shape[1])
            return next(fitting, inputs)
        return inputs

    def _zeros(
        self, name: str, headers: Headers, bits: int, shape: tuple[int, int]
    ) -> Integers | None:
        if not self.asymmetric or name not in headers:
            return None
        if headers[name].dtype == "I8":
            expect(headers, name, ("I8",), shape)
            return Integers(name, bits, None)
        expect(headers, name, ("I32",), (-(-shape[0] * bits // WORD_BITS), shape[1]))
        return Integers(name, bits, "outputs")


def _four_bit_floats(module: str, part: TensorPart, headers: Headers) -> IntegerMatrix:
    """MXFP4 (OCP Microscaling) or NVFP4: two of E2M1 to a byte, with a scale in eight bits for each
    32 or 16 inputs."""
    outputs, inputs = part.shape
    codes, scales = f"{module}.weight_packed", f"{module}.weight_scale"
    divisor = f"{module}.weight_global_scale"
    divisor = divisor if divisor in headers else ""
    size = NV_INPUTS if divisor else MX_INPUTS
    expect(headers, codes, ("U8",), (outputs, -(-inputs // 2)))
    wanted = ("F8_E4M3",) if divisor else ("U8", "F8_E8M0")
    expect(headers, scales, wanted, (outputs, groups(inputs, size)))
    if divisor and headers[divisor].shape not in ONE:
        expect(headers, divisor, ("F32",), (1,))
    return IntegerMatrix(
        (outputs, inputs),
        8,
        size,
        Integers(codes, 4, "inputs", levels=FP4_CODES),
        Scales(scales, exponents=headers[scales].dtype == "U8", factor=0.5, divisor=divisor),
    )


def read_compressed_tensors(config: Fields) -> CompressedTensors:
    """Raises `InvalidConfiguration`."""
    schemes = list(_schemes(config))
    for each in (config, *(group for group, _ in schemes)):
        if each.text("format", FORMATS[0]) not in FORMATS:
            each.refuse("format", f"one of {', '.join(FORMATS)}")
    sparsity = config.group("sparsity_config")
    if sparsity is not None and sparsity.text("format", "dense") != "dense":
        sparsity.refuse("format", "dense; sparse weights are not supported")
    if config.values.get("transform_config"):
        rotated = config.group("transform_config")
        if rotated is not None and rotated.values.get("config_groups"):
            raise InvalidConfiguration(
                f"{config.label}: transform_config is set; Tandem cannot run weights that were "
                "rotated"
            )
    weights = [weights for _, weights in schemes]
    integers = [each for each in weights if each.text("type", "int") == "int"]
    floats = [each for each in weights if each.text("type", "int") != "int"]
    for each in integers:
        if each.integer("num_bits") not in (4, 8):
            each.refuse("num_bits", "4 or 8; take a checkpoint of so many")
    sizes = {each.integer("group_size") for each in weights if _is_grouped(each)}
    blocks = {block for each in floats if (block := _block(each)) is not None}
    if len(blocks) > 1:
        raise InvalidConfiguration(
            f"{config.label}: config_groups have blocks of {sorted(blocks)}; expected one size"
        )
    return CompressedTensors(
        tuple(sorted({each.integer("num_bits") for each in integers})),
        tuple(sorted(sizes)),
        next(iter(blocks), None),
        not all(each.flag("symmetric", True) for each in integers),
    )


def _schemes(config: Fields) -> Iterator[tuple[Fields, Fields]]:
    """The groups of a configuration that quantise weights, each with how."""
    every = config.group("config_groups")
    for name in every.values if every is not None else ():
        group = every.group(name) if every is not None else None
        weights = group.group("weights") if group is not None else None
        if group is not None and weights is not None:
            yield group, weights


def _is_grouped(weights: Fields) -> bool:
    return weights.values.get("group_size") not in (None, -1)


def _block(weights: Fields) -> tuple[int, int] | None:
    block = read_block(weights, "block_structure")
    if block is None and _is_grouped(weights) and weights.integer("num_bits") == 8:
        return 1, weights.integer("group_size")
    return block
