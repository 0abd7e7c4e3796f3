"""Where weights come from: the safetensors files of a directory, or seeded random numbers.

Tensors are read one by one from mapped files; nothing is ever unpickled.
"""

import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.names import first_shard, is_gguf, shard_paths
from tandem.kernels.coded import CodedWeight
from tandem.models.directory import read_fields
from tandem.models.parameters import SLAB_ROWS, TensorPart

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
FLOATS = {torch.float64, torch.float32, torch.bfloat16, torch.float16}
# Old checkpoints store the frequencies, which the configuration gives too.
DERIVED_SUFFIX = ".rotary_emb.inv_freq"
NAMES_SHOWN = 4

EVERY = slice(None)


class WeightSource(Protocol):
    """Gives the tensors of a model by name."""

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> Tensor:
        """Some rows of a tensor, or all, and of a matrix some columns of these; on the CPU in the
        precision of the source, or decoded to float32; read-only. Slices have no step."""
        ...

    def read_coded(
        self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY
    ) -> CodedWeight | None:
        """The same slice of a matrix as codes, where the source holds it so: whole numbers of four
        or eight bits with scales for groups along its inputs, which the kernels can pack."""
        ...


class DummyWeights:
    """Random weights of a fixed seed, scaled so that activations and logits stay near 1.

    A tensor depends on its name and shape alone, so loading order and slicing change nothing.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> Tensor:
        if part.name.endswith("norm.weight"):
            return torch.ones(part.shape)[rows]
        if part.name.endswith(".bias"):
            return torch.zeros(part.shape)[rows]
        start, stop, _ = rows.indices(part.shape[0])
        slabs = range(start // SLAB_ROWS, -(-stop // SLAB_ROWS))
        drawn = torch.cat([self._slab(part, slab)[:, columns] for slab in slabs])
        return drawn[start - slabs.start * SLAB_ROWS :][: stop - start]

    def read_coded(
        self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY
    ) -> CodedWeight | None:
        return None

    def _slab(self, part: TensorPart, slab: int) -> Tensor:
        """Rows are drawn in slabs, each with its own seed, so that any of them can be had alone."""
        name = f"{part.name} {slab}".encode()
        generator = torch.Generator().manual_seed(self.seed ^ zlib.crc32(name))
        rows = min(SLAB_ROWS, part.shape[0] - slab * SLAB_ROWS)
        slab_RC = torch.randn((rows, *part.shape[1:]), generator=generator)
        return slab_RC.mul_(part.shape[-1] ** -0.5)


class SafetensorsWeights:
    """The checkpoint of a directory: one file, or shards with an index. Use as a context: the
    files stay mapped until it ends, and tensors that were read may not outlive it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file_of = _find_files(directory)
        self._open = ExitStack()
        self._handles: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._handles.clear()
        self._open.close()

    def check(self, parts: Iterable[TensorPart], ignored: frozenset[str]) -> None:
        """Raises `InvalidConfiguration` unless the checkpoint holds these tensors in these shapes,
        and beside them at most those in `ignored`. Reads headers only."""
        expected = {part.name: part for part in parts}
        self._refuse_names("lacks", set(expected) - set(self._file_of))
        extra = set(self._file_of) - set(expected) - ignored
        extra = {name for name in extra if not name.endswith(DERIVED_SUFFIX)}
        self._refuse_names("also holds", extra)
        for part in expected.values():
            found = tuple(self._slice(part.name).get_shape())
            if found != part.shape:
                raise InvalidConfiguration(
                    f"{self._file_of[part.name]}: {part.name} has shape {list(found)}; "
                    f"config.json says {list(part.shape)}"
                )

    @property
    def names(self) -> frozenset[str]:
        """Of all tensors."""
        return frozenset(self._file_of)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._file_of

    def read(self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY) -> Tensor:
        found = self._slice(part.name)
        tensor: Tensor = found[rows] if len(part.shape) == 1 else found[rows, columns]
        if tensor.dtype not in FLOATS:
            raise InvalidConfiguration(
                f"{self._file_of[part.name]}: {part.name} is stored as {tensor.dtype}; expected "
                "float32, bfloat16 or float16, or a quantization_config that says what it means"
            )
        return tensor

    def read_coded(
        self, part: TensorPart, rows: slice = EVERY, columns: slice = EVERY
    ) -> CodedWeight | None:
        return None

    def stored(self, name: str, *spans: slice) -> Tensor:
        """A slice of any tensor, as it is stored."""
        tensor: Tensor = self._slice(name)[spans or (...,)]
        return tensor

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The type of a tensor, as the format spells it ("BF16"), and its shape."""
        found = self._slice(name)
        return found.get_dtype(), tuple(found.get_shape())

    def _slice(self, name: str) -> Any:
        path = self._file_of[name]
        handle = self._handles.get(path) or self._map(path)
        try:
            return handle.get_slice(name)
        except SafetensorError as problem:
            raise InvalidConfiguration(f"{path}: {name} cannot be read: {problem}") from problem

    def _map(self, path: Path) -> Any:
        handle = self._open.enter_context(open_safetensors(path))
        self._handles[path] = handle
        return handle

    def _refuse_names(self, verb: str, names: set[str]) -> None:
        if not names:
            return
        raise InvalidConfiguration(
            f"{self.directory}: the checkpoint {verb} {some_of(names)}; "
            "config.json and the weights belong to different models or a download is incomplete"
        )


def some_of(names: set[str]) -> str:
    """The first few, and how many more there are."""
    shown = ", ".join(sorted(names)[:NAMES_SHOWN])
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown


def weight_files(directory: Path) -> tuple[Path, ...]:
    """All files that weights are read from, and what says which tensor lies where; in order. Raises
    `InvalidConfiguration` where there are none."""
    if is_gguf(directory):
        return shard_paths(first_shard(directory))
    files = set(_find_files(directory).values())
    if (directory / INDEX_NAME).is_file():
        files.add(directory / INDEX_NAME)
    return tuple(sorted(files))


def open_safetensors(path: Path) -> Any:
    """A mapped file. Raises `InvalidConfiguration` when it is missing, cut short or not one."""
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (OSError, SafetensorError) as problem:
        raise InvalidConfiguration(
            f"{path} cannot be read as safetensors: {problem}; fetch it again"
        ) from problem


def _find_files(directory: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    if is_gguf(directory):
        raise InvalidConfiguration(
            f"{directory} is a GGUF file, which is served as a model only; give the folder of the "
            "same weights in safetensors"
        )
    if (directory / INDEX_NAME).is_file():
        return _read_index(directory)
    files = sorted(directory.glob("*.safetensors"))
    path = directory / SINGLE_NAME if directory / SINGLE_NAME in files else None
    if path is None and len(files) == 1:
        path = files[0]
    if path is None:
        found = f"{len(files)} safetensors files without {INDEX_NAME}" if files else "none"
        raise InvalidConfiguration(
            f"{directory} should hold {SINGLE_NAME} or {INDEX_NAME}; found {found} "
            "(other formats such as .bin must be converted to safetensors first)"
        )
    with open_safetensors(path) as handle:
        return dict.fromkeys(handle.keys(), path)


def _read_index(directory: Path) -> dict[str, Path]:
    weight_map = read_fields(directory / INDEX_NAME).group("weight_map")
    if weight_map is None:
        raise InvalidConfiguration(f"{directory / INDEX_NAME}: weight_map is missing")
    file_of: dict[str, Path] = {}
    for tensor_name, file_name in weight_map.values.items():
        # An index is somebody else's text: it may name files of its own directory only.
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            weight_map.refuse(tensor_name, "the name of a file beside the index")
        file_of[tensor_name] = directory / file_name
    return file_of
