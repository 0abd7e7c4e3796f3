"""Tensors of the Open Inference Protocol as plain values, and back: as lists in JSON, and as bytes.

Bytes have the lowest first and no padding; each element of a BYTES tensor has its length before it,
in four bytes. Everything here raises `InvalidRequest` naming the tensor.
"""

import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from tandem.facts.errors import InvalidRequest

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16",
    "FP32", "FP64", "BYTES",
]  # fmt: skip
DATATYPES: frozenset[str] = frozenset(get_args(Datatype))
NUMBERS: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
_LENGTH = struct.Struct("<I")
Value = str | bool | int | float


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input: its values one after the other, the last index first."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Sequence[Value]

    def texts(self, most: int) -> list[str]:
        """Of a batch. Raises `InvalidRequest` for any other shape, and for more than `most`."""
        if self.datatype != "BYTES":
            raise InvalidRequest(self.name, f"must be BYTES, not {self.datatype}")
        if len(self.shape) not in (1, 2) or self.shape[1:] not in ((), (1,)):
            problem = f"must have the shape [batch] or [batch, 1], not {list(self.shape)}"
            raise InvalidRequest(self.name, problem)
        if not self.values:
            raise InvalidRequest(self.name, "must not be empty")
        if len(self.values) > most:
            raise InvalidRequest(self.name, f"has {len(self.values)} texts, more than {most}")
        return [str(each) for each in self.values]

    def scalar(self) -> Value:
        """One value, or the same for each prompt of a batch."""
        if not self.values or len(self.shape) > 2:
            problem = f"must have one value, not the shape {list(self.shape)}"
            raise InvalidRequest(self.name, problem)
        if any(each != self.values[0] for each in self.values):
            raise InvalidRequest(self.name, "must be the same for all prompts of a call")
        return self.values[0]

    def items(self) -> list[Value]:
        """A list of values, the same for all prompts of the call."""
        if len(self.shape) > 2 or self.shape[:-1] not in ((), (1,)):
            problem = f"must have the shape [n] or [1, n], not {list(self.shape)}"
            raise InvalidRequest(self.name, problem)
        return list(self.values)


def tensor_of_json(name: str, datatype: str, shape: Sequence[int], data: list[Any]) -> Tensor:
    """`data` may be nested as the shape says, or flat."""
    flat = list(_flattened(data))
    _check_count(name, shape, len(flat))
    for value in flat:
        if not _fits(value, datatype):
            shown = repr(value)[:64]
            raise InvalidRequest(name, f"is {datatype}, and has the value {shown}")
    if NUMBERS.get(datatype, np.dtype(object)).kind == "f":
        flat = _as_written(name, _floats(name, datatype, flat))
    return Tensor(name, datatype, tuple(shape), flat)


def tensor_of_bytes(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> Tensor:
    """The values that these bytes are."""
    values = _texts_of(name, raw) if datatype == "BYTES" else _numbers_of(name, datatype, raw)
    _check_count(name, shape, len(values))
    return Tensor(name, datatype, tuple(shape), values)


def raw_texts(texts: Iterable[bytes]) -> bytes:
    """The elements of a BYTES tensor."""
    return b"".join(part for text in texts for part in (_LENGTH.pack(len(text)), text))


def raw_numbers(name: str, datatype: str, values: Sequence[Any]) -> bytes:
    """The elements of any other."""
    try:
        return np.array(values, NUMBERS[datatype]).tobytes()
    except (OverflowError, ValueError) as error:
        raise InvalidRequest(name, f"has a value that is not {datatype}") from error


def _floats(name: str, datatype: str, values: list[Any]) -> np.ndarray[Any, Any]:
    """What is too large for its type is infinite."""
    try:
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(NUMBERS[datatype])
    except OverflowError as error:
        raise InvalidRequest(name, "has a value that is not finite") from error


def _flattened(data: list[Any]) -> Iterable[Any]:
    for each in data:
        if isinstance(each, list):
            yield from _flattened(each)
        else:
            yield each


def _fits(value: object, datatype: str) -> bool:
    if datatype == "BYTES":
        return isinstance(value, str)
    if datatype == "BOOL":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    kind = NUMBERS[datatype]
    if kind.kind == "f":
        return isinstance(value, int | float)
    bits = 8 * kind.itemsize - (kind.kind == "i")
    least = -(1 << bits) if kind.kind == "i" else 0
    return isinstance(value, int) and least <= value < 1 << bits


def _check_count(name: str, shape: Sequence[int], count: int) -> None:
    wanted = math.prod(shape)
    if wanted != count:
        raise InvalidRequest(name, f"has {count} elements; its shape {list(shape)} means {wanted}")


def _texts_of(name: str, raw: bytes) -> list[Value]:
    texts: list[Value] = []
    at, end = 0, len(raw)
    while at < end:
        begin = at + _LENGTH.size
        at = begin + (_LENGTH.unpack_from(raw, at)[0] if begin <= end else 0)
        if at > end or begin > end:
            raise InvalidRequest(name, f"breaks off in its element {len(texts)}")
        try:
            texts.append(raw[begin:at].decode())
        except UnicodeDecodeError as error:
            raise InvalidRequest(name, f"element {len(texts)} is not UTF-8 text") from error
    return texts


def _numbers_of(name: str, datatype: str, raw: bytes) -> list[Value]:
    kind = NUMBERS[datatype]
    if len(raw) % kind.itemsize:
        problem = f"has {len(raw)} bytes, and an element of {datatype} takes {kind.itemsize}"
        raise InvalidRequest(name, problem)
    numbers = np.frombuffer(raw, kind)
    if kind.kind != "f":
        values: list[Value] = numbers.tolist()
        return values
    return _as_written(name, numbers)


def _as_written(name: str, numbers: np.ndarray[Any, Any]) -> list[Value]:
    """0.7 as its client wrote it, not the nearest to it of 32 bits written with 64."""
    if not np.isfinite(numbers).all():
        raise InvalidRequest(name, "has a value that is not finite")
    return [float(str(each)) for each in numbers]
