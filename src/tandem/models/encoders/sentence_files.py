"""What the files of sentence-transformers beside a checkpoint say of its embeddings: how hidden
states are pooled, and how long a text may be."""

from pathlib import Path

from tandem.facts.encoder import PoolingMode, PoolingSpec
from tandem.facts.errors import InvalidConfiguration
from tandem.models.directory import Fields, read_fields, read_objects

MODULES_NAME = "modules.json"
LENGTH_NAME = "sentence_bert_config.json"
POOLING_CONFIG = "config.json"
FLAG_PREFIX = "pooling_mode_"
# By the names of their flags, and of the one field that newer files have instead.
MODES: dict[str, PoolingMode] = {
    "cls_token": "cls",
    "mean_tokens": "mean",
    "lasttoken": "last",
    "cls": "cls",
    "mean": "mean",
}

# What most encoders are used with, where nothing is said.
MEAN = PoolingSpec()


def read_pooling(directory: Path, default: PoolingSpec = MEAN) -> PoolingSpec:
    """Of a directory without such files: the `default`. Raises `InvalidConfiguration` for modules
    that are not supported."""
    if not (directory / MODULES_NAME).is_file():
        return default
    pooling = MEAN
    for module in read_objects(directory / MODULES_NAME):
        # The module's class under the package that had it when the file was written.
        kind = module.text("type", "").rsplit(".", 1)[-1]
        if kind == "Pooling":
            folder = module.text("path", "")
            if Path(folder).name != folder:
                module.refuse("path", "the name of a folder beside modules.json")
            mode = _read_mode(read_fields(directory / folder / POOLING_CONFIG))
            pooling = PoolingSpec(mode, pooling.normalised)
        elif kind == "Normalize":
            pooling = PoolingSpec(pooling.mode, normalised=True)
        elif kind != "Transformer":
            module.refuse("type", "Transformer, Pooling or Normalize; no other is supported")
    return pooling


def read_longest_text(directory: Path) -> int | None:
    """In tokens, special ones included; None where nothing but the model bounds it."""
    if not (directory / LENGTH_NAME).is_file():
        return None
    fields = read_fields(directory / LENGTH_NAME)
    return fields.integer("max_seq_length") if fields.has("max_seq_length") else None


def _read_mode(config: Fields) -> PoolingMode:
    named = config.text("pooling_mode", "")
    flags = [name for name, value in config.values.items() if value is True]
    found = [flag.removeprefix(FLAG_PREFIX) for flag in flags if flag.startswith(FLAG_PREFIX)]
    chosen = [named] if named else found
    if len(chosen) != 1 or chosen[0] not in MODES:
        raise InvalidConfiguration(
            f"{config.label} of the pooling: {' and '.join(chosen) or 'no mode'} is not supported; "
            "expected one of cls_token, mean_tokens and lasttoken"
        )
    if not config.flag("include_prompt", True):
        config.refuse("include_prompt", "true; prompts cannot be left out of the mean")
    return MODES[chosen[0]]
