"""The text files of a checkpoint directory: tokenizer, chat templates, configurations. Errors name
the file."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from tandem.facts.errors import InvalidConfiguration


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The text-related files of a checkpoint; an absent optional file is an empty mapping.

    `chat_templates` by name: `default`, and perhaps others such as `tool_use`. `sampling_source` is
    the file of `generation_config`, for messages.
    """

    tokenizer_json: str
    tokenizer_config: dict[str, object]
    generation_config: dict[str, object]
    config: dict[str, object]
    chat_templates: dict[str, str] = field(default_factory=dict)
    sampling_source: str = "generation_config.json"


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Raises `InvalidConfiguration` without a tokenizer.json or with broken JSON."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise InvalidConfiguration(
            f"{directory} has no tokenizer.json; point to a checkpoint with a fast tokenizer"
        )
    # The tokenizers library tells broken files by no type of its own, so they are told here.
    if not isinstance(read_json(path).get("model"), dict):
        raise InvalidConfiguration(f"{path} describes no tokenizer model")
    # special_tokens_map.json is where older checkpoints keep what tokenizer_config.json now holds.
    special_tokens = read_json(directory / "special_tokens_map.json")
    tokenizer_config = read_json(directory / "tokenizer_config.json")
    sampling = directory / "generation_config.json"
    return TokenizerFiles(
        tokenizer_json=_read_text(path),
        tokenizer_config=special_tokens | tokenizer_config,
        generation_config=read_json(sampling),
        config=read_json(directory / "config.json"),
        chat_templates=_chat_templates(directory, tokenizer_config.get("chat_template")),
        sampling_source=str(sampling),
    )


def _chat_templates(directory: Path, declared: object) -> dict[str, str]:
    templates: dict[str, str] = {}
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        templates = {entry["name"]: entry["template"] for entry in declared if _is_named(entry)}
    path = directory / "chat_template.jinja"
    if path.is_file():
        templates["default"] = _read_text(path)
    return templates


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in `path`, empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except ValueError as error:
        raise InvalidConfiguration(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidConfiguration(f"{path} must hold a JSON object")
    return content


def _is_named(entry: object) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("template"), str)
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error}") from error
