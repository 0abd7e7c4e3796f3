"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them (Frantar et al., 2022): `qweight`,
`qzeros`, `scales` and `g_idx` beside each other."""

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
    expect,
    groups,
)
from tandem.models.parameters import TensorPart

FLOATS = ("F16", "BF16", "F32")
# Zero points are stored less one in the first, as they are in the second. GPTQModel subtracts from
# whole words, so that below a zero of none one is borrowed of the next, and adds to whole words.
ZERO_PLUS = {"gptq": 1, "gptq_v2": 0}


@dataclass(frozen=True, slots=True)
class Gptq:
    """`size` 0 is one group a row. Where modules differ (`dynamic`) bits and groups are taken from
    the shapes of their tensors."""

    bits: int
    size: int
    zero_plus: int
    reordered: bool
    dynamic: bool

    def matrix(self, part: TensorPart, headers: Headers) -> IntegerMatrix | None:
        module = part.name.removesuffix(WEIGHT)
        packed = headers.get(f"{module}.qweight")
        if packed is None or len(part.shape) != 2:
            return None
        outputs, inputs = part.shape
        bits = self.bits
        if self.dynamic and len(packed.shape) == 2:
            bits = packed.shape[0] * WORD_BITS // inputs
        width: Literal[4, 8] = 4 if bits == 4 else 8
        each = WORD_BITS // width
        size = self._size(f"{module}.scales", headers, inputs)
        count = groups(inputs, size)
        expect(headers, f"{module}.qweight", ("I32",), (-(-inputs // each), outputs))
        expect(headers, f"{module}.qzeros", ("I32",), (count, -(-outputs // each)))
        expect(headers, f"{module}.scales", FLOATS, (count, outputs))
        order = f"{module}.g_idx" if f"{module}.g_idx" in headers else ""
        if order:
            expect(headers, order, ("I32", "I64"), (inputs,))
        return IntegerMatrix(
            (outputs, inputs),
            width,
            size,
            Integers(f"{module}.qweight", width, "inputs", transposed=True),
            Scales(f"{module}.scales", transposed=True),
            Integers(f"{module}.qzeros", width, "outputs", transposed=True, plus=self.zero_plus),
            order,
            self.reordered and bool(order) and count > 1,
        )

    def _size(self, scales: str, headers: Headers, inputs: int) -> int:
        size = self.size or inputs
        if self.dynamic and scales in headers:
            count = headers[scales].shape[0]
            if count != groups(inputs, size) and count and inputs % count == 0:
                return inputs // count
        return size


def read_gptq(config: Fields) -> Gptq:
    """Raises `InvalidConfiguration`."""
    bits = config.integer("bits")
    if bits not in (4, 8):
        config.refuse("bits", "4 or 8; take a checkpoint of so many")
    layout = config.text("checkpoint_format", config.text("format", "gptq"))
    if config.values.get("is_marlin_format") is True:
        layout = "marlin"
    if layout not in ZERO_PLUS:
        raise InvalidConfiguration(
            f"{config.label}: checkpoint_format is {layout!r}; expected gptq or gptq_v2"
        )
    if config.text("pack_dtype", "int32") != "int32":
        config.refuse("pack_dtype", "int32")
    return Gptq(
        bits,
        read_group_size(config, "group_size"),
        ZERO_PLUS[layout],
        config.flag("desc_act", False),
        bool(config.values.get("dynamic")),
    )


def read_group_size(config: Fields, name: str) -> int:
    """Inputs that share a scale; 0 where all of a row do, which files spell -1. Raises
    `InvalidConfiguration`."""
    return 0 if config.values.get(name) == -1 else config.integer(name)
