"""Checkpoints in FP8 (E4M3): with a scale for each block, as DeepSeek and Qwen publish them
(`weight_scale_inv`), for each matrix, or for each row (`weight_scale`)."""

from dataclasses import dataclass

from tandem.facts.errors import InvalidConfiguration
from tandem.models.directory import Fields
from tandem.models.formats.contract import WEIGHT, FloatMatrix, Headers, Scales, expect, groups
from tandem.models.parameters import TensorPart

EIGHT_BITS = ("F8_E4M3",)
SCALES = ("F32", "BF16", "F16", "F8_E8M0")
NAMES_OF_SCALES = ("weight_scale_inv", "weight_scale")
ONE = ((), (1,), (1, 1))


@dataclass(frozen=True, slots=True)
class Fp8:
    """`block` is None where each scale is of a whole matrix, or row."""

    block: tuple[int, int] | None

    def matrix(self, part: TensorPart, headers: Headers) -> FloatMatrix | None:
        found = headers.get(part.name)
        if found is None or len(part.shape) != 2 or not found.dtype.startswith("F8"):
            return None
        return float_matrix(part, headers, self.block)


def float_matrix(part: TensorPart, headers: Headers, block: tuple[int, int] | None) -> FloatMatrix:
    """Of values in FP8 under the part's own name, with whatever scales lie beside them. Raises
    `InvalidConfiguration`."""
    outputs, inputs = part.shape
    expect(headers, part.name, EIGHT_BITS, (outputs, inputs))
    module = part.name.removesuffix(WEIGHT)
    names = (f"{module}.{each}" for each in NAMES_OF_SCALES)
    name = next((each for each in names if each in headers), f"{module}.{NAMES_OF_SCALES[0]}")
    if name in headers and headers[name].shape in ONE:
        return FloatMatrix(
            (outputs, inputs), part.name, Scales(name, single=True), (outputs, inputs)
        )
    if block is None:
        block = (1, inputs)
    shape = (groups(outputs, block[0]), groups(inputs, block[1]))
    expect(headers, name, SCALES, shape)
    return FloatMatrix((outputs, inputs), part.name, Scales(name), block)


def read_fp8(config: Fields) -> Fp8:
    """Raises `InvalidConfiguration`."""
    if config.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        config.refuse("fmt", "e4m3")
    return Fp8(read_block(config, "weight_block_size"))


def read_block(config: Fields, name: str) -> tuple[int, int] | None:
    """Outputs and inputs that share a scale; None where nothing says it. Raises
    `InvalidConfiguration`."""
    block = config.values.get(name)
    if block is None:
        return None
    if isinstance(block, list) and len(block) == 2:
        outputs, inputs = block
        if isinstance(outputs, int) and isinstance(inputs, int) and min(outputs, inputs) > 0:
            return outputs, inputs
    raise InvalidConfiguration(
        f"{config.label}: {name} is {block!r}; expected two sizes, as [128, 128]"
    )
