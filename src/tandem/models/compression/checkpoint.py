"""Reads a checkpoint with some of its tensors replaced, and writes one tensor by tensor, in files
of a few gigabytes."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from tandem.kernels.coded import CodedWeight
from tandem.models.checkpoint import EVERY, INDEX_NAME, SINGLE_NAME, WeightSource
from tandem.models.parameters import TensorPart

SHARD_BYTES = 4 << 30


class ReplacedWeights:
    """A source of weights, some of which are others now."""

    def __init__(self, source: WeightSource, replaced: Mapping[str, Tensor]) -> None:
        self._source = source
        self._replaced = replaced

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> Tensor:
        tensor = self._replaced.get(part.name)
        if tensor is None:
            return self._source.read(part, rows, columns)
        return tensor[rows] if tensor.dim() == 1 else tensor[rows, columns]

    def read_coded(
        self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY
    ) -> CodedWeight | None:
        if part.name in self._replaced:
            return None
        return self._source.read_coded(part, rows, columns)


class CheckpointWriter:
    """Owns what was added and not yet written: at most `shard_bytes` of it and one tensor."""

    def __init__(self, folder: Path, shard_bytes: int = SHARD_BYTES) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._tensors: dict[str, Tensor] = {}
        self._held_bytes = 0
        self._shards: list[tuple[str, ...]] = []
        self.total_bytes = 0

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """They are copied: a view would be written with all that it is a part of."""
        for name, tensor in tensors.items():
            self._tensors[name] = tensor.contiguous().clone()
            self._held_bytes += tensor.nbytes
            self.total_bytes += tensor.nbytes
            if self._held_bytes >= self._shard_bytes:
                self._write_shard()

    def finish(self) -> None:
        """The last file, and the index where there are several."""
        if self._tensors:
            self._write_shard()
        count = len(self._shards)
        if count == 1:
            (self._folder / _unfinished(0)).rename(self._folder / SINGLE_NAME)
            return
        file_of = {}
        for number, names in enumerate(self._shards):
            file_name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
            (self._folder / _unfinished(number)).rename(self._folder / file_name)
            file_of.update(dict.fromkeys(names, file_name))
        index = {"metadata": {"total_size": self.total_bytes}, "weight_map": file_of}
        (self._folder / INDEX_NAME).write_text(json.dumps(index, indent=2, sort_keys=True))

    def _write_shard(self) -> None:
        path = self._folder / _unfinished(len(self._shards))
        save_file(self._tensors, path, {"format": "pt"})
        self._shards.append(tuple(self._tensors))
        self._tensors = {}
        self._held_bytes = 0


def _unfinished(number: int) -> str:
    # How many there will be is known at the end.
    return f"part-{number}.safetensors"
