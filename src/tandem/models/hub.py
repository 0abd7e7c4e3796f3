"""The directory of a model by its name, fetched from the Hugging Face hub where it is not here.

Launchers ask, too: nothing in here may import torch.
"""

from importlib import import_module
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration

# Weights, configuration, chat templates and tokenizers; never code, never a pickle.
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt"]
# Second copies of the weights, in the layout of their makers.
HUB_DUPLICATES = ["original/*", "consolidated*", "onnx/*"]


def find_model(name: str, revision: str | None = None) -> Path:
    """The local directory of a model: `name` is one, or is fetched from the Hugging Face hub.

    Raises `InvalidConfiguration` when it is neither.
    """
    directory = Path(name).expanduser()
    if directory.is_dir():
        return directory
    if directory.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise InvalidConfiguration(
            f"model {name!r} is no directory; see the path for a typing slip"
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
