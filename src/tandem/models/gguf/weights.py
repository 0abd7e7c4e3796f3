"""The weights of a GGUF file as a `WeightSource`: tensors under their Hugging Face names, with what
converters to GGUF changed in them undone.

Blocks are read from the mapped file and decoded for the rows that are asked for alone.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.tensor_types import FLOAT_TYPES
from tandem.kernels.coded import CodedWeight
from tandem.models.checkpoint import EVERY, some_of
from tandem.models.gguf.blocks import codes_of, floats_of
from tandem.models.gguf.checkpoint import (
    ROPE_FACTORS,
    StoredTensor,
    gguf_name,
    open_checkpoint,
)
from tandem.models.parameters import TensorPart

# What is made of so many rows on the way stays in a processor's cache.
ROWS_AT_ONCE = 64
# Whose heads converters turn from halves to pairs, as their rotary embedding is computed there.
PAIRED_ARCHITECTURES = frozenset({"llama"})
PAIRED = (".q_proj.weight", ".q_proj.bias", ".k_proj.weight", ".k_proj.bias")
# Whose norms have one added, which is what they multiply with.
SHIFTED_ARCHITECTURES = frozenset({"gemma"})
NORM = "norm.weight"


class GgufWeights:
    """The checkpoint of a GGUF file, and of those beside it that belong to it."""

    def __init__(self, path: Path) -> None:
        checkpoint = open_checkpoint(path)
        self.path = checkpoint.path
        self._tensors = dict(checkpoint.tensors)
        self._paired = checkpoint.architecture in PAIRED_ARCHITECTURES
        self._shifted = checkpoint.architecture in SHIFTED_ARCHITECTURES

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # What was read is memory of its own.
        self._tensors.clear()

    def check(self, parts: Iterable[TensorPart], ignored: frozenset[str]) -> None:
        """Raises `InvalidConfiguration` unless the file holds these tensors in these shapes, and
        beside them at most those in `ignored`. Reads headers only."""
        expected = {part.name: part for part in parts}
        self._refuse_names(
            "lacks", {gguf_name(name) for name in set(expected) - set(self._tensors)}
        )
        extra = set(self._tensors) - set(expected) - ignored - {ROPE_FACTORS}
        self._refuse_names("also holds", {self._tensors[name].name for name in extra})
        for part in expected.values():
            stored = self._tensors[part.name]
            if stored.place.shape != part.shape:
                raise InvalidConfiguration(
                    f"{stored.file.path}: {stored.name} has shape {list(stored.place.shape)}; the "
                    f"metadata says {list(part.shape)}"
                )
            if len(part.shape) == 1 and stored.place.type.name not in FLOAT_TYPES:
                raise InvalidConfiguration(
                    f"{stored.file.path}: {stored.name} is stored as {stored.place.type.name}; "
                    f"expected {', '.join(FLOAT_TYPES)} of a vector"
                )

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> Tensor:
        """As `WeightSource`; of types with codes float32."""
        stored = self._tensors[part.name]
        if len(part.shape) == 1:
            vector_N1 = floats_of(stored.place.type.name, self._blocks(part, rows, EVERY))
            return vector_N1[:, 0] - 1 if self._is_shifted(part) else vector_N1[:, 0]
        first, last, _ = columns.indices(part.shape[1])
        blocks, skipped = _covering(first, last, stored)
        name = stored.place.type.name
        if name in FLOAT_TYPES:
            return floats_of(name, self._blocks(part, rows, blocks))
        start, stop, _ = rows.indices(part.shape[0])
        values_NC = torch.empty((stop - start, last - first))
        for at in range(start, stop, ROWS_AT_ONCE):
            some = slice(at, min(at + ROWS_AT_ONCE, stop))
            decoded_NC = codes_of(name, self._blocks(part, some, blocks)).values()
            values_NC[at - start : some.stop - start] = decoded_NC[:, skipped:][:, : last - first]
        return values_NC

    def read_coded(
        self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY
    ) -> CodedWeight | None:
        """As `WeightSource`: None where the tensor has no codes, or `columns` cut a group."""
        stored = self._tensors[part.name]
        if len(part.shape) == 1 or stored.place.type.name in FLOAT_TYPES:
            return None
        first, last, _ = columns.indices(part.shape[1])
        blocks, skipped = _covering(first, last, stored)
        coded = codes_of(stored.place.type.name, self._blocks(part, rows, blocks))
        if first % coded.size or last % coded.size:
            return None
        groups = slice(skipped // coded.size, (skipped + last - first) // coded.size)
        return replace(
            coded,
            codes=coded.codes[:, skipped : skipped + last - first],
            scale=coded.scale[:, groups],
            offset=None if coded.offset is None else coded.offset[:, groups],
        )

    def _blocks(self, part: TensorPart, rows: slice, blocks: slice) -> Tensor:
        """Some blocks of some rows as bytes [N, K, B], in memory of their own. A vector is a matrix
        of one column."""
        stored = self._tensors[part.name]
        place = stored.place
        count = 1 if len(part.shape) == 1 else part.shape[1] // place.type.block_weights
        shape = (part.shape[0], count, place.type.block_bytes)
        found = np.frombuffer(stored.file.data, np.uint8, place.bytes, place.start).reshape(shape)
        if self._paired and part.name.endswith(PAIRED):
            return torch.from_numpy(found[_paired_rows(part, rows), blocks])
        return torch.from_numpy(found[rows, blocks].copy())

    def _is_shifted(self, part: TensorPart) -> bool:
        return self._shifted and part.name.endswith(NORM)

    def _refuse_names(self, verb: str, names: set[str]) -> None:
        if not names:
            return
        raise InvalidConfiguration(
            f"{self.path} {verb} {some_of(names)}; its metadata and its tensors belong to "
            "different models, or a download is incomplete"
        )


def _covering(first: int, last: int, stored: StoredTensor) -> tuple[slice, int]:
    """The blocks that hold these columns, and how many columns lie before them there."""
    size = stored.place.type.block_weights
    return slice(first // size, -(-last // size)), first % size


def _paired_rows(part: TensorPart, rows: slice) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Where these rows lie in the file: the heads are whole there, and of each the first half of
    its rows takes turns with the second."""
    head_dim = part.split_unit
    wanted = np.arange(*rows.indices(part.shape[0]))
    half, pair = np.divmod(wanted % head_dim, head_dim // 2)
    found: np.ndarray[tuple[int], np.dtype[np.intp]] = wanted - wanted % head_dim + 2 * pair + half
    return found
