"""GGUF, the container of llama.cpp's models: metadata by key, and where each tensor lies.

Versions 2 and 3, little endian, as https://github.com/ggml-org/ggml/blob/master/docs/gguf.md has
them. Knows neither models nor tokenizers. The file is somebody else's: every count and length is
held against the bytes that are there before it is believed.
"""

import mmap
from dataclasses import dataclass
from math import isfinite, prod
from pathlib import Path
from struct import Struct
from typing import Final, NoReturn

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.tensor_types import (
    READABLE_FILES,
    TENSOR_TYPES,
    UNREADABLE_TYPES,
    TensorType,
)

Scalar = int | float | bool | str

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
DEFAULT_ALIGNMENT: Final = 32
MOST_AXES: Final = 4
# Keys are paths of a few words.
MOST_KEY_BYTES: Final = 65_535
# No version is so large: read with the wrong endianness, all are.
LARGEST_VERSION: Final = 0xFFFF
TEXT, ARRAY = 8, 9
U32, U64 = Struct("<I"), Struct("<Q")
NUMBERS: Final = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: U32,
    5: Struct("<i"),
    6: Struct("<f"),
    7: Struct("<?"),
    10: U64,
    11: Struct("<q"),
    12: Struct("<d"),
}
# Of a text: its length. Of a pair: the length of its key, its type, a byte. Of a tensor: the length
# of its name, the number of its axes, one axis, its type, its place.
TEXT_LEAST, PAIR_LEAST, TENSOR_LEAST = 8, 13, 32


@dataclass(frozen=True, slots=True)
class ArrayPlace:
    """An array of the metadata: `count` elements of a `kind`, from `start` on."""

    kind: int
    count: int
    start: int


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor whose bytes begin at `start` of its file. The last axis of `shape` lies in one
    piece."""

    type: TensorType
    shape: tuple[int, ...]
    start: int

    @property
    def bytes(self) -> int:
        return prod(self.shape) // self.type.block_weights * self.type.block_bytes


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file, mapped into memory as long as anybody holds this or a piece of `data`."""

    path: Path
    data: memoryview
    values: dict[str, Scalar]
    arrays: dict[str, ArrayPlace]
    tensors: dict[str, TensorPlace]

    def has(self, key: str) -> bool:
        return key in self.values

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 on. Raises `InvalidConfiguration`, as all readers here do."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            self.refuse(key, "a whole number, 0 or more")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._value(key, default)
        if isinstance(value, bool | str) or not isfinite(value) or value <= 0:
            self.refuse(key, "a positive number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            self.refuse(key, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        """An array of texts; empty when missing."""
        place = self.arrays.get(key)
        if place is None:
            return []
        if place.kind != TEXT:
            self.refuse(key, "an array of texts")
        # Where each begins was followed when the header was read: none lies beyond the file.
        texts, at, length = [], place.start, U64.unpack_from
        try:
            for _ in range(place.count):
                start = at + TEXT_LEAST
                at = start + length(self.data, at)[0]
                texts.append(str(self.data[start:at], "utf-8"))
        except UnicodeDecodeError:
            raise InvalidConfiguration(
                f"{self.path} has bytes in {key} that are no UTF-8"
            ) from None
        return texts

    def numbers(self, key: str) -> list[int | float]:
        """An array of numbers; empty when missing."""
        place = self.arrays.get(key)
        if place is None:
            return []
        if place.kind == TEXT:
            self.refuse(key, "an array of numbers")
        one = NUMBERS[place.kind]
        piece = self.data[place.start : place.start + place.count * one.size]
        return [value for (value,) in one.iter_unpack(piece)]

    def refuse(self, key: str, expected: str) -> NoReturn:
        found = repr(self.values[key])[:80] if key in self.values else "an array"
        raise InvalidConfiguration(f"{self.path}: {key} is {found}; expected {expected}")

    def _value(self, key: str, default: Scalar | None) -> Scalar:
        value = self.values.get(key, default)
        if key in self.arrays:
            self.refuse(key, "a single value")
        if value is None:
            raise InvalidConfiguration(
                f"{self.path}: {key} is missing; the file is incomplete, or of a kind that Tandem "
                "does not know"
            )
        return value


def open_gguf(path: Path) -> GgufFile:
    """Maps a file and reads its header. Raises `InvalidConfiguration` when it is missing, cut short
    or none."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as problem:
        raise InvalidConfiguration(f"{path} cannot be read as GGUF: {problem}") from problem
    return _read_header(path, data)


def _read_header(path: Path, data: memoryview) -> GgufFile:
    reader = _Reader(path, data)
    if bytes(data[: len(MAGIC)]) != MAGIC:
        raise InvalidConfiguration(f"{path} is no GGUF file; it does not begin with {MAGIC!r}")
    reader.at = len(MAGIC)
    version = reader.number(U32)
    if version > LARGEST_VERSION:
        raise InvalidConfiguration(
            f"{path} is a big-endian GGUF file; take the little-endian one of the same model"
        )
    if version not in VERSIONS:
        raise InvalidConfiguration(
            f"{path} is a GGUF file of version {version}; expected 2 or 3, which llama.cpp writes "
            "since August 2023"
        )
    tensors, pairs = reader.number(U64), reader.number(U64)
    reader.expect(tensors, TENSOR_LEAST, "tensors")
    reader.expect(pairs, PAIR_LEAST, "metadata")
    values: dict[str, Scalar] = {}
    arrays: dict[str, ArrayPlace] = {}
    for _ in range(pairs):
        key = reader.key()
        if key in values or key in arrays:
            reader.refuse(f"holds {key} twice")
        kind = reader.number(U32)
        if kind == ARRAY:
            arrays[key] = reader.array(key)
        else:
            values[key] = reader.scalar(kind, key)
    file = GgufFile(path, data, values, arrays, {})
    alignment = file.whole("general.alignment", DEFAULT_ALIGNMENT)
    if alignment < 1 or alignment & (alignment - 1):
        file.refuse("general.alignment", "a power of two")
    relative: dict[str, TensorPlace] = {}
    for _ in range(tensors):
        name = reader.key()
        if name in relative:
            reader.refuse(f"holds the tensor {name} twice")
        relative[name] = reader.tensor(name)
    base = -(-reader.at // alignment) * alignment
    for name, tensor in relative.items():
        start = base + tensor.start
        if tensor.start % alignment:
            reader.refuse(f"has the tensor {name} at an offset that is not aligned")
        if start + tensor.bytes > len(data):
            reader.refuse(f"ends before its tensor {name} does; fetch it again")
        file.tensors[name] = TensorPlace(tensor.type, tensor.shape, start)
    return file


class _Reader:
    """Reads a header from `at` on. Raises `InvalidConfiguration` for what is not there."""

    def __init__(self, path: Path, data: memoryview, at: int = 0) -> None:
        self.path, self.data, self.at = path, data, at

    def refuse(self, problem: str) -> NoReturn:
        raise InvalidConfiguration(f"{self.path} {problem}")

    def expect(self, count: int, least_bytes: int, what: str) -> None:
        """Sees to it that `count` things of at least so many bytes fit into the rest."""
        if count > (len(self.data) - self.at) // least_bytes:
            self.refuse(f"ends before its {what} ({count:,} promised); fetch it again")

    def number(self, form: Struct) -> int:
        """Of a whole one's form."""
        self.expect(1, form.size, "header")
        value: int = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def key(self) -> str:
        start = self.at
        key = self.text("a name")
        if self.at - start > MOST_KEY_BYTES or not key.isprintable():
            self.refuse(f"has a name that is none, of {self.at - start:,} bytes")
        return key

    def text(self, what: str) -> str:
        count = self.number(U64)
        self.expect(count, 1, what)
        self.at += count
        try:
            return str(self.data[self.at - count : self.at], "utf-8")
        except UnicodeDecodeError:
            self.refuse(f"has bytes in {what} that are no UTF-8")

    def scalar(self, kind: int, key: str) -> Scalar:
        if kind == TEXT:
            return self.text(key)
        if kind not in NUMBERS:
            self.refuse(f"holds {key} as the unknown type {kind}")
        return self.number(NUMBERS[kind])

    def array(self, key: str) -> ArrayPlace:
        kind, count = self.number(U32), self.number(U64)
        place = ArrayPlace(kind, count, self.at)
        if kind == TEXT:
            self.expect(count, TEXT_LEAST, key)
            self._skip_texts(count, key)
        elif kind in NUMBERS:
            self.expect(count, NUMBERS[kind].size, key)
            self.at += count * NUMBERS[kind].size
        else:
            self.refuse(f"holds {key} as an array of the unknown type {kind}")
        return place

    def _skip_texts(self, count: int, key: str) -> None:
        # Vocabularies have hundreds of thousands: their letters are looked at when they are wanted.
        at, last, length = self.at, len(self.data) - TEXT_LEAST, U64.unpack_from
        for _ in range(count):
            if at > last:
                self.refuse(f"ends within {key}; fetch it again")
            at += TEXT_LEAST + length(self.data, at)[0]
        if at > len(self.data):
            self.refuse(f"ends within {key}; fetch it again")
        self.at = at

    def tensor(self, name: str) -> TensorPlace:
        """Its place counts from where the tensors begin."""
        axes = self.number(U32)
        if not 1 <= axes <= MOST_AXES:
            self.refuse(f"has a tensor {name} of {axes} axes; expected 1 to {MOST_AXES}")
        shape = tuple(self.number(U64) for _ in range(axes))[::-1]
        kind, start = self.number(U32), self.number(U64)
        stored = TENSOR_TYPES.get(kind)
        if stored is None:
            self.refuse(
                f"stores {name} as {UNREADABLE_TYPES.get(kind, f'type {kind}')}, which Tandem "
                f"cannot read; take the same model as {READABLE_FILES}"
            )
        if 0 in shape or shape[-1] % stored.block_weights:
            self.refuse(
                f"has a tensor {name} of shape {list(shape)}; expected a positive multiple of "
                f"{stored.block_weights} in rows of {stored.name}"
            )
        return TensorPlace(stored, shape, start)
