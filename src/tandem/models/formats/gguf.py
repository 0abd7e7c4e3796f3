"""The block types of GGUF as a format: which of its matrices are codes.

Needs no torch: memory is counted from headers.
"""

from dataclasses import dataclass

from tandem.gguf.tensor_types import FLOAT_TYPES
from tandem.models.formats.contract import BlockMatrix, CodeForm, Headers
from tandem.models.parameters import TensorPart

# As `models.gguf.blocks` makes codes of them.
CODE_FORMS = {
    "Q8_0": CodeForm(8, 32, offsets=False, zero=128, levels=256),
    "Q4_0": CodeForm(4, 32, offsets=False, zero=8, levels=16),
    "Q4_1": CodeForm(4, 32, offsets=True, zero=0, levels=16),
    "Q5_0": CodeForm(8, 32, offsets=False, zero=16, levels=32),
    "Q5_1": CodeForm(8, 32, offsets=True, zero=0, levels=32),
    "Q4_K": CodeForm(4, 32, offsets=True, zero=0, levels=16),
    "Q5_K": CodeForm(8, 32, offsets=True, zero=0, levels=32),
    "Q6_K": CodeForm(8, 16, offsets=False, zero=32, levels=64),
}


@dataclass(frozen=True)
class GgufBlocks:
    """Every tensor says itself of which type it is."""

    def matrix(self, part: TensorPart, headers: Headers) -> BlockMatrix | None:
        header = headers.get(part.name)
        if header is None or header.dtype in FLOAT_TYPES or len(header.shape) != 2:
            return None
        return BlockMatrix((header.shape[0], header.shape[1]), CODE_FORMS[header.dtype])
