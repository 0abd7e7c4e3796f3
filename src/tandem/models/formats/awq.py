"""AWQ checkpoints in the layout "gemm", as AutoAWQ writes them (Lin et al., 2023): `qweight`,
`qzeros` and `scales` of inputs by outputs, eight outputs to a word."""

from dataclasses import dataclass

from tandem.models.directory import Fields
from tandem.models.formats.contract import (
    WEIGHT,
    Headers,
    IntegerMatrix,
    Integers,
    Scales,
    expect,
    groups,
)
from tandem.models.formats.gptq import FLOATS, read_group_size
from tandem.models.parameters import TensorPart

OUTPUTS_A_WORD = 8
# Which output of a word lies where, from the lowest four bits on.
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True)
class Awq:
    """Four bits with zero points; `size` 0 is one group a row."""

    size: int

    def matrix(self, part: TensorPart, headers: Headers) -> IntegerMatrix | None:
        module = part.name.removesuffix(WEIGHT)
        if f"{module}.qweight" not in headers or len(part.shape) != 2:
            return None
        outputs, inputs = part.shape
        size = self.size or inputs
        count, words = groups(inputs, size), -(-outputs // OUTPUTS_A_WORD)
        expect(headers, f"{module}.qweight", ("I32",), (inputs, words))
        expect(headers, f"{module}.qzeros", ("I32",), (count, words))
        expect(headers, f"{module}.scales", FLOATS, (count, outputs))
        return IntegerMatrix(
            (outputs, inputs),
            4,
            size,
            Integers(f"{module}.qweight", 4, "outputs", transposed=True, order=ORDER),
            Scales(f"{module}.scales", transposed=True),
            Integers(f"{module}.qzeros", 4, "outputs", transposed=True, order=ORDER),
        )


def read_awq(config: Fields) -> Awq:
    """Of config.json, or as older files of AutoAWQ spell it. Raises `InvalidConfiguration`."""
    if config.integer("bits", other_name="w_bit") != 4:
        config.refuse("bits" if config.has("bits") else "w_bit", "4")
    if config.text("version", "gemm").lower() != "gemm":
        config.refuse("version", "gemm")
    named = "group_size" if config.has("group_size") else "q_group_size"
    return Awq(read_group_size(config, named))
