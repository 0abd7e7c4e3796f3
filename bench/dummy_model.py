"""A model of random weights that is heavier than the bundled one: about 27 million parameters."""

import json
from pathlib import Path

from tandem.config.environment import BUNDLED_MODEL

SHAPE = {
    "num_hidden_layers": 6,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
}


def dummy_model(folder: Path) -> Path:
    """The bundled model's folder with another shape and no weights (`load_format: dummy`)."""
    directory = folder / "dummy"
    directory.mkdir(exist_ok=True)
    for file in BUNDLED_MODEL.iterdir():
        if file.suffix != ".safetensors":
            (directory / file.name).write_bytes(file.read_bytes())
    config = json.loads((BUNDLED_MODEL / "config.json").read_text()) | SHAPE
    (directory / "config.json").write_text(json.dumps(config))
    return directory
