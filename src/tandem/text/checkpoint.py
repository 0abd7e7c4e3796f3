"""What a checkpoint says of texts, be it a folder or a GGUF file."""

from pathlib import Path

from tandem.gguf.names import is_gguf
from tandem.text.files import TokenizerFiles, read_tokenizer_files
from tandem.text.gguf.files import read_gguf_text


def read_text_files(checkpoint: Path) -> TokenizerFiles:
    """Raises `InvalidConfiguration` where it has no tokenizer, or one that cannot be read."""
    return read_gguf_text(checkpoint) if is_gguf(checkpoint) else read_tokenizer_files(checkpoint)
