"""Which format the weights of a checkpoint are in, by its `quantization_config`.

Needs no torch: it is asked before anything is loaded.
"""

from collections.abc import Callable
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration
from tandem.gguf.names import is_gguf
from tandem.gguf.tensor_types import FLOAT_TYPES
from tandem.models.directory import Fields, read_fields
from tandem.models.formats.awq import read_awq
from tandem.models.formats.compressed_tensors import read_compressed_tensors
from tandem.models.formats.contract import Format, Quantization
from tandem.models.formats.fp8 import read_fp8
from tandem.models.formats.gguf import GgufBlocks
from tandem.models.formats.gptq import read_gptq
from tandem.models.gguf.checkpoint import open_checkpoint

COMPRESSED_TENSORS = "compressed-tensors"
READERS: dict[str, Callable[[Fields], Format]] = {
    "gptq": read_gptq,
    "awq": read_awq,
    COMPRESSED_TENSORS: read_compressed_tensors,
    "fp8": read_fp8,
    "fbgemm_fp8": read_fp8,
}
METHODS = tuple(READERS)
# Where older tools wrote the same, if config.json says nothing.
OLDER_FILES = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
BITSANDBYTES_FLAGS = ("load_in_4bit", "load_in_8bit")


def read_quantization(directory: Path) -> Quantization | None:
    """How the weights of a model's directory are quantised; None where they are plain. Raises
    `InvalidConfiguration` for what cannot be read, in one line."""
    if is_gguf(directory):
        return None if is_plain(directory) else Quantization("gguf", GgufBlocks())
    config = read_fields(directory / "config.json")
    if (group := config.group("quantization_config")) is not None:
        return _read(group, group.text("quant_method", _unnamed(group)))
    if (group := config.group("compression_config")) is not None:
        return _read(group.group("quantization_config") or group, COMPRESSED_TENSORS)
    for name, method in OLDER_FILES.items():
        if (directory / name).is_file():
            return _read(read_fields(directory / name), method)
    return None


def is_plain(path: Path) -> bool:
    tensors = open_checkpoint(path).tensors.values()
    return all(each.place.type.name in FLOAT_TYPES for each in tensors)


def _unnamed(group: Fields) -> str:
    if any(group.values.get(flag) for flag in BITSANDBYTES_FLAGS):
        return "bitsandbytes"
    return COMPRESSED_TENSORS if group.has("config_groups") else ""


def _read(group: Fields, method: str) -> Quantization:
    method = method.lower()
    reader = READERS.get(method)
    if reader is None:
        raise InvalidConfiguration(
            f"{group.label}: quant_method is {method or 'missing'}, which Tandem cannot read; take "
            f"a checkpoint in one of {', '.join(METHODS)}, or the original weights with "
            "--quantization int8 or int4"
        )
    return Quantization(method, reader(group))


def refuse_quantized(directory: Path, what: str) -> None:
    """Raises `InvalidConfiguration` where weights are quantised, for `what` needs plain ones."""
    if (found := read_quantization(directory)) is not None:
        raise InvalidConfiguration(
            f"{directory}: the weights are quantised ({found.method}); {what} needs the original "
            "ones"
        )
