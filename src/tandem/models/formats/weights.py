"""The tensors of a quantised checkpoint, as a model asks for them: by the names of its matrices,
whatever the files call what they are made of."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from tandem.facts.errors import InvalidConfiguration
from tandem.kernels.coded import CodedWeight
from tandem.models.checkpoint import EVERY, SafetensorsWeights
from tandem.models.formats.contract import (
    FloatMatrix,
    Format,
    Headers,
    IntegerMatrix,
    StoredMatrix,
    TensorHeader,
    codable,
)
from tandem.models.formats.decoding import code_slice, float_values, integer_values
from tandem.models.parameters import TensorPart

# What belongs to a quantised linear and not to its weights: the activations' own precision, which
# Tandem chooses itself, that of the KV cache, and what shapes and symmetry say already.
SPARE_ENDINGS = (
    ".input_scale",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    ".activation_scale",
    ".q_scale",
    ".k_scale",
    ".v_scale",
    ".kv_scale",
    ".weight_shape",
    ".weight_zero_point",
)
BIAS = ".bias"


@dataclass
class QuantizedWeights:
    """A checkpoint in some format; plain tensors in it are read as they are. It lives as long as
    the files of `checkpoint` are open."""

    checkpoint: SafetensorsWeights
    format: Format
    _headers: Headers = field(default_factory=dict)
    _found: dict[str, StoredMatrix | None] = field(default_factory=dict)

    def check(self, parts: Iterable[TensorPart], ignored: frozenset[str]) -> None:
        """As `SafetensorsWeights.check`."""
        expected = list(parts)
        matrices = {part.name: self._matrix(part) for part in expected}
        used = {name for each in matrices.values() if each is not None for name in each.tensors}
        modules = {name.rpartition(".")[0] for name, each in matrices.items() if each is not None}
        plain = [part for part in expected if matrices[part.name] is None]
        names = self.checkpoint.names - {part.name for part in plain} - used
        spare = {name for name in names if name.endswith(SPARE_ENDINGS)}
        unasked = {f"{module}{BIAS}" for module in modules} & names
        for name in sorted(unasked - ignored):
            # Some tools give every linear a bias, of zeros where it had none.
            if bool(self.checkpoint.stored(name).any()):
                raise InvalidConfiguration(
                    f"{self.checkpoint.directory}: {name} is not zero, and config.json says that "
                    "there is no bias"
                )
        self.checkpoint.check(plain, frozenset(ignored | used | spare | unasked))

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> Tensor:
        matrix = self._matrix(part)
        if matrix is None:
            return self.checkpoint.read(part, rows, columns)
        if isinstance(matrix, IntegerMatrix):
            return integer_values(matrix, self.checkpoint, rows, columns)
        assert isinstance(matrix, FloatMatrix)
        return float_values(matrix, self.checkpoint, rows, columns)

    def read_coded(
        self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY
    ) -> CodedWeight | None:
        matrix = self._matrix(part)
        if not isinstance(matrix, IntegerMatrix):
            return None
        coded = code_slice(matrix, self.checkpoint, rows, columns)
        if coded is None or not codable(coded.bits, coded.size, coded.codes.shape[1]):
            return None
        return coded

    def _matrix(self, part: TensorPart) -> StoredMatrix | None:
        if not self._headers:
            self._headers = {
                name: TensorHeader(*self.checkpoint.header(name)) for name in self.checkpoint.names
            }
        if part.name not in self._found:
            self._found[part.name] = self.format.matrix(part, self._headers)
        return self._found[part.name]
