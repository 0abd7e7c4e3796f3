"""The directory of a model: found by name or fetched from the Hugging Face hub, and the fields of
its config.json read by type, with errors that name field, value and remedy.

Knows JSON, not models. Launchers use it, too: nothing in here may import torch.
"""

import json
import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.names import first_shard, is_gguf, model_stem

# Weights, configuration, chat templates and tokenizers; never code, never a pickle.
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
# Second copies of the weights, in the layout of their makers.
HUB_DUPLICATES = ["original/*", "consolidated*", "onnx/*"]
# What of a checkpoint people name instead of its folder.
_OF_A_CHECKPOINT = ("config.json", "model.safetensors.index.json")
# Endings of files of weights, which are no names on the hub.
_FILE_ENDINGS = (".safetensors", ".gguf", ".json", ".bin", ".pt", ".pth")


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object under its `label` (for messages). A null counts as missing."""

    label: str
    values: dict[str, object]

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def is_null(self, name: str) -> bool:
        """Present and null, which some fields use to say "none"."""
        return name in self.values and self.values[name] is None

    def integer(self, name: str, default: int | None = None, *, other_name: str = "") -> int:
        """A positive whole number, under its other name where it has only that. Raises
        `InvalidConfiguration`, as all readers here do."""
        if other_name and not self.has(name) and self.has(other_name):
            name = other_name
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            self.refuse(name, "a positive whole number")
        return value

    def whole(self, name: str, default: int) -> int:
        """A whole number from 0 on."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            self.refuse(name, "a whole number, 0 or more")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(name, "a positive number")
        if not math.isfinite(value) or value <= 0:
            self.refuse(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def text(self, name: str, default: str) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            self.refuse(name, "a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty when missing."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.refuse(name, "a list of texts")
        items = tuple(item for item in value if isinstance(item, str))
        if len(items) != len(value):
            self.refuse(name, "a list of texts")
        return items

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of positive finite numbers."""
        value = self._value(name, None)
        if not isinstance(value, list):
            self.refuse(name, "a list of positive numbers")
        numbers = [item for item in value if type(item) in (int, float)]
        if len(numbers) != len(value) or not all(0 < item < math.inf for item in numbers):
            self.refuse(name, "a list of positive numbers")
        return tuple(float(item) for item in numbers)

    def group(self, name: str) -> "Fields | None":
        """A nested object, or None when missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Fields(f"{self.label}: {name}", {str(key): item for key, item in value.items()})

    def refuse(self, name: str, expected: str) -> NoReturn:
        raise InvalidConfiguration(
            f"{self.label}: {name} is {self.values.get(name)!r}; expected {expected}"
        )

    def _value(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise InvalidConfiguration(
                f"{self.label}: {name} is missing; this checkpoint is incomplete, or of a kind "
                "that needs a conversion first"
            )
        return default


def read_fields(path: Path) -> Fields:
    """The JSON object in a file. Raises `InvalidConfiguration` if there is none."""
    values = _read_json(path)
    if not isinstance(values, dict):
        raise InvalidConfiguration(f"{path} holds no JSON object")
    return Fields(path.name, values)


def read_objects(path: Path) -> tuple[Fields, ...]:
    """The JSON objects in a file that is a list of them. Raises `InvalidConfiguration` if it is
    not."""
    values = _read_json(path)
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise InvalidConfiguration(f"{path} holds no list of JSON objects")
    return tuple(Fields(path.name, value) for value in values)


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidConfiguration(
            f"{path} does not exist; the directory of a model holds it beside the weights, and a "
            "GGUF model is named by its file"
        ) from None
    except (OSError, ValueError) as problem:
        raise InvalidConfiguration(f"{path} cannot be read: {problem}") from problem


def checkpoint_path(name: str) -> str:
    """The same name, or the folder of the checkpoint whose config.json or weights it is; of a GGUF
    model in several files, the first. Raises `InvalidConfiguration` for a file that is none of
    these."""
    path = Path(name).expanduser()
    if is_gguf(path) and path.is_file():
        return str(first_shard(path))
    if path.is_dir():
        # Models are called as their folders, which `.` does not tell.
        return name if path.name not in ("", "..") else str(path.resolve())
    if path.is_file() and (path.suffix == ".safetensors" or path.name in _OF_A_CHECKPOINT):
        return str(path.absolute().parent)
    if path.exists():
        raise InvalidConfiguration(
            f"model {name!r} is a file; give the folder of a checkpoint, with config.json and "
            "safetensors, or a GGUF file"
        )
    return name


def model_label(name: str) -> str:
    """What a model is called unless somebody says otherwise; `name` is a path or one on the hub."""
    path = Path(name)
    return model_stem(path) if is_gguf(path) else path.name


def find_model(name: str, revision: str | None = None) -> Path:
    """The local directory of a model, or its GGUF file: `name` is one or a file in one
    (`checkpoint_path`), or is fetched from the Hugging Face hub.

    Raises `InvalidConfiguration` when it is neither.
    """
    directory = Path(checkpoint_path(name)).expanduser()
    if directory.is_dir() or (is_gguf(directory) and directory.is_file()):
        return directory
    is_path = directory.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1
    if is_path or directory.suffix in _FILE_ENDINGS:
        raise InvalidConfiguration(
            f"model {name!r} is no directory and no GGUF file; see the path for a typing slip"
        )
    # A third of a second that no process pays which finds its model in a directory.
    hub = import_module("huggingface_hub")
    try:
        found = hub.snapshot_download(
            name, revision=revision, allow_patterns=HUB_FILES, ignore_patterns=HUB_DUPLICATES
        )
    except (OSError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[:1]
        raise InvalidConfiguration(
            f"model {name!r} is neither a directory nor to be had from the hub "
            f"({''.join(reason)}); give the path of a downloaded model"
        ) from problem
    return Path(found)
