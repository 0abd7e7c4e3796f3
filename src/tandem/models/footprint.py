"""How much memory a model's weights take, before any of them is read: from the headers of its
files, for the precision they are stored in once they are loaded.

Follows `weights.assemble_weights` matrix by matrix. Knows sizes only, so it needs no torch.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from tandem.facts.errors import InvalidConfiguration
from tandem.facts.model import ModelSpec
from tandem.gguf.names import is_gguf
from tandem.models.formats.choose import read_quantization
from tandem.models.formats.contract import (
    WORD_BITS,
    CodeForm,
    TensorHeader,
    groups,
    joint_form,
)
from tandem.models.gguf.checkpoint import open_checkpoint
from tandem.models.parallel import Place, cut, layers_of
from tandem.models.parameters import (
    SLAB_ROWS,
    DecoderParts,
    LayerParts,
    TensorPart,
    all_parts,
    decoder_parts,
)

Shapes = Mapping[str, tuple[int, ...]]
# By the name of a matrix, for those that the files hold as codes.
CodeForms = Mapping[str, CodeForm]
NO_CODES: CodeForms = {}

# Of one weight; four bits share a float16 scale with 31 others. bfloat16 may be compact, then these
# are a third more than it takes.
STORAGE_BYTES = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int8": 1.0,
    "int4": 0.5 + 2 / 32,
}
QUANTISED = ("int8", "int4")
# The native kernels fill rows up to whole panels.
PANEL_ROWS = 64
FLOAT32_BYTES = 4
HALF_BYTES = 2
# A slab as it is read, converted to fp32, and what quantising or drawing makes of it on the way.
SLAB_COPIES = 3
# The format's own limit of a header.
HEADER_LIMIT_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Of one rank, or of several together: what the loaded weights hold, and the most that is in
    use while they are read, converted and packed."""

    held: int = 0
    peak: int = 0

    def __add__(self, other: "WeightBytes") -> "WeightBytes":
        """Of both where they load at the same time."""
        return WeightBytes(self.held + other.held, self.peak + other.peak)


def weight_bytes(
    spec: ModelSpec,
    shapes: Shapes,
    ranks: Iterable[Place],
    *,
    storage: str,
    compute_bytes: int,
    codes: CodeForms = NO_CODES,
) -> WeightBytes:
    """Of these ranks of a worker. `shapes` are those of the checkpoint's headers, empty for weights
    that are made up; `codes` says which matrices stay codes, `storage` is that of the others,
    `compute_bytes` the width of all that is no matrix."""
    parts = decoder_parts(spec)
    together = WeightBytes()
    for place in ranks:
        together += _Loading(shapes, codes, storage, compute_bytes, place).load(parts)
    return together


class _Loading:
    """Adds up one rank's weights in the order in which they are loaded."""

    def __init__(
        self, shapes: Shapes, codes: CodeForms, storage: str, compute_bytes: int, place: Place
    ) -> None:
        self._shapes, self._storage, self._place = shapes, storage, place
        self._codes = codes
        self._compute_bytes = compute_bytes
        self._held = self._peak = 0

    def load(self, parts: DecoderParts) -> WeightBytes:
        storage_bytes = STORAGE_BYTES[self._storage]
        if self._place.is_last:
            self._linear((parts.head or parts.embedding,), ())
        shared = self._place.is_last and parts.head is None and self._storage not in QUANTISED
        if self._place.is_first and not shared:
            # Rows are looked up in 16 bits where the matrices have fewer.
            self._plain(parts.embedding, max(int(storage_bytes), 2))
        for layer in layers_of(parts, self._place):
            self._layer(layer)
        if self._place.is_last:
            self._plain(parts.final_norm, self._compute_bytes)
        return WeightBytes(self._held, self._peak)

    def _layer(self, layer: LayerParts) -> None:
        for vector in (
            layer.attention_norm,
            layer.query_norm,
            layer.key_norm,
            layer.feed_forward_norm,
        ):
            if vector is not None:
                self._plain(vector, self._compute_bytes)
        for linear in (layer.qkv, layer.attention_output, layer.gate_up, layer.down):
            self._linear(linear.weights, linear.biases)

    def _plain(self, part: TensorPart, element_bytes: int) -> None:
        shape = self._cut(part)
        self._hold(math.prod(shape) * element_bytes, 0, shape[-1])

    def _linear(self, weights: Sequence[TensorPart], biases: Sequence[TensorPart]) -> None:
        shapes = [self._cut(part) for part in weights]
        rows, columns = sum(shape[0] for shape in shapes), shapes[0][-1]
        bias_bytes = sum(self._cut(part)[0] for part in biases) * self._compute_bytes
        if (form := self._code_form(weights)) is not None:
            held, unpacked = _coded_bytes(form, rows, columns)
            self._hold(held + bias_bytes, unpacked, columns)
            return
        quantised = self._storage in QUANTISED
        unpacked_bytes = FLOAT32_BYTES if quantised else STORAGE_BYTES[self._storage]
        packed = -(-rows // PANEL_ROWS) * PANEL_ROWS * columns * STORAGE_BYTES[self._storage]
        packed += rows * FLOAT32_BYTES if quantised else 0
        self._hold(int(packed) + bias_bytes, int(rows * columns * unpacked_bytes), columns)

    def _code_form(self, weights: Sequence[TensorPart]) -> CodeForm | None:
        """As which codes `Assembly.linear` packs these together."""
        forms: list[CodeForm] = []
        columns = 0
        for part in weights:
            form, piece = self._codes.get(part.name), cut(self._whole(part), self._place)
            if form is None or piece.is_filled_up:
                return None
            start, stop = piece.columns.start, piece.columns.stop
            own, columns = form.cut(start, stop, self._whole(part).shape[1]), stop - start
            if own is None:
                return None
            forms.append(own)
        return joint_form(forms, columns)

    def _hold(self, held: int, beside: int, columns: int) -> None:
        """So much stays; `beside` is there only while it is made."""
        self._held += held
        slab = min(SLAB_ROWS * columns, held) * FLOAT32_BYTES * SLAB_COPIES
        self._peak = max(self._peak, self._held + beside + slab)

    def _cut(self, part: TensorPart) -> tuple[int, ...]:
        return cut(self._whole(part), self._place).shape

    def _whole(self, part: TensorPart) -> TensorPart:
        found = self._shapes.get(part.name, part.shape)
        # One that has other axes is refused, with its name, when the checkpoint is read.
        return replace(part, shape=found) if len(found) == len(part.shape) else part


def _coded_bytes(form: CodeForm, rows: int, columns: int) -> tuple[int, int]:
    """Of codes as they are packed, and before that."""
    step = WORD_BITS // form.bits
    filled = -(-rows // PANEL_ROWS) * PANEL_ROWS
    numbers = groups(columns, form.size) * (1 + form.offsets)
    # One scale a row, and no offset, needs no part of it in 16 bits.
    shared = numbers if form.size < columns or form.offsets else 0
    packed = filled * (-(-columns // step) * step * form.bits // 8 + shared * HALF_BYTES)
    return packed + rows * FLOAT32_BYTES, rows * (columns + numbers * FLOAT32_BYTES)


@dataclass(frozen=True, slots=True)
class CheckpointSizes:
    """The `shapes` of the tensors of a checkpoint, of quantised matrices those that they have when
    they are decoded; and which of them it holds as `codes`."""

    shapes: Shapes
    codes: CodeForms = field(default_factory=dict)


def checkpoint_sizes(directory: Path, spec: ModelSpec) -> CheckpointSizes:
    """Of a model's directory. Reads headers only. Raises `InvalidConfiguration` for files that are
    no safetensors files, or do not fit their quantization_config."""
    headers = read_headers(directory)
    shapes = {name: header.shape for name, header in headers.items()}
    quantization = read_quantization(directory)
    codes: dict[str, CodeForm] = {}
    for part in all_parts(decoder_parts(spec)) if quantization is not None else ():
        assert quantization is not None
        matrix = quantization.format.matrix(part, headers)
        if matrix is not None:
            shapes[part.name] = matrix.shape
            if matrix.code_form is not None:
                codes[part.name] = matrix.code_form
    return CheckpointSizes(shapes, codes)


def header_shapes(directory: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a checkpoint's folder, by name. Reads headers only. Raises
    `InvalidConfiguration` for a file that is no safetensors file."""
    return {name: header.shape for name, header in read_headers(directory).items()}


def read_headers(directory: Path) -> dict[str, TensorHeader]:
    """The same with their types."""
    if is_gguf(directory):
        tensors = open_checkpoint(directory).tensors.items()
        return {
            name: TensorHeader(each.place.type.name, each.place.shape) for name, each in tensors
        }
    headers: dict[str, TensorHeader] = {}
    for path in sorted(directory.glob("*.safetensors")):
        for name, entry in _header(path).items():
            if name != "__metadata__":
                headers[name] = TensorHeader(str(entry.get("dtype", "")), tuple(entry["shape"]))
    return headers


def _header(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            return read_header(path, file)
    except OSError as problem:
        raise InvalidConfiguration(f"{path} cannot be read: {problem}") from problem


def read_header(path: Path, file: BinaryIO) -> dict[str, dict[str, Any]]:
    """The header of a safetensors `file`, which is what lies at `path`: `dtype` and `shape` of each
    tensor by name, and `__metadata__`. Raises `InvalidConfiguration`."""
    try:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > HEADER_LIMIT_BYTES:
            raise ValueError(f"a header of {header_bytes:,} bytes")
        header = json.loads(file.read(header_bytes))
        sizes = (each for entry in header.values() for each in entry.get("shape", ()))
        if not all(isinstance(size, int) and size >= 0 for size in sizes):
            raise ValueError("a shape that is none")
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        raise InvalidConfiguration(
            f"{path} cannot be read as safetensors: {problem}; fetch it again"
        ) from problem
    found: dict[str, dict[str, Any]] = header
    return found
