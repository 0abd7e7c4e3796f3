"""The bundled model as a GGUF file."""

from pathlib import Path

from tandem.config.environment import BUNDLED_MODEL
from tests.models.gguf_files import Type, write_gguf
from tests.text.gguf_files import byte_pairs, tell


def write_bundled(path: Path, kind: Type = Type.BF16) -> Path:
    return write_gguf(
        path, BUNDLED_MODEL, kind, more=lambda writer: tell(writer, byte_pairs(BUNDLED_MODEL))
    )
